import re
import shlex
from dataclasses import asdict, replace

import pytest
import torch
from made_records import record as made_record

from tespec.cli import cells
from tespec.cli import plan as plan_cli
from tespec.cli.main import main
from tespec.comparison.frame import to_frame
from tespec.comparison.records import ARCHIVE, read_records, write_archive, write_record
from tespec.plan.jobs import command, expand, read_plan
from tespec.runs.finetune import prepare_run
from tespec.runs.identity import pretraining_cell


@pytest.fixture
def places(tmp_path):
    return ["--results", str(tmp_path / "results"), "--runs", str(tmp_path / "runs")]


def test_missing_runs_are_printed_as_commands(tmp_path, capsys):
    assert main(["plan", "sample", "--results", str(tmp_path), "--dry-run"]) == 0
    first, *commands = capsys.readouterr().out.splitlines()
    assert first.endswith("): 0 of 281 runs done, 24 pre-trainings come first")
    assert len(commands) == 305
    assert commands[0] == "tespec pretrain --method imagenet --profile study --seed 0 --data sample"
    assert not list(tmp_path.iterdir())
    assert main(["plan", "demo", "--results", str(tmp_path), "--status"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("demo: 0 of 2 runs done, 1 pre-training comes first\n")


def test_a_dry_run_adds_up_the_hours_of_fine_tunings_on_real_data(tmp_path, capsys):
    (tmp_path / "mine.yaml").write_text(
        "profile: paper\ndata: /nowhere\nseeds: [0, 1]\ncells:\n"
        "  - {methods: [scratch], tasks: [mvsec], architectures: [feedforward]}\n"
        "  - {methods: [tespec], tasks: [mvsec], architectures: [feedforward],\n"
        "     set: [pretraining.batch_size=4]}\n"
    )
    words = ["plan", str(tmp_path / "mine.yaml"), "--results", str(tmp_path / "r"), "--dry-run"]
    assert main(words) == 0
    *_, cell, total = capsys.readouterr().out.splitlines()
    (hours,) = re.findall(
        r"mvsec, feedforward, swin_tiny: 4 x (0\.\d+) h of an H100, with 23,480 windows of", cell
    )
    assert total.startswith(f"fine-tunings: {4 * float(hours):.1f} h of an H100")


@pytest.fixture
def study(tmp_path):
    """A plan, and the records of its runs."""
    path = tmp_path / "study.yaml"
    path.write_text(
        "data: sample\nprofile: study\npretrainings: {0: [0, 1]}\nreferences: [ddd17]\ncells:\n"
        "  - {methods: [scratch, moby], architectures: [feedforward], tasks: [ddd17]}\n"
    )
    return str(path), [
        made_record(**asdict(job.cell), seed=job.seed, pretraining=job.pretraining)
        for job in expand(read_plan(str(path)))
    ]


def test_status_counts_runs_by_method_and_task(tmp_path, study, capsys):
    plan, records = study
    write_archive([record for record in records if record.seed != 1], tmp_path / "r" / ARCHIVE)
    assert main(["plan", plan, "--status", "--results", str(tmp_path / "r")]) == 0
    first, head, *rows = capsys.readouterr().out.splitlines()
    assert (" runs done, " in first, head.split()) == (True, ["ddd17"])
    assert {*map(tuple, map(str.split, rows))} == {
        ("scratch", "1/2"),
        ("moby", "1/2"),
        ("prior", "1/1"),
    }


def test_a_damaged_record_of_a_plan_is_named_and_its_run_is_missing(tmp_path, study, capsys):
    results = tmp_path / "results"
    plan, records = study
    damaged, *others = sorted(records, key=lambda record: record.cell.method != "scratch")
    write_archive(others, results / ARCHIVE)
    write_record(damaged, results).write_text('{"format": 5, "cell": "\\u001b[2J"}')
    write_record(made_record("gep"), results).write_text("{")
    options = ["--only", "scratch", "--results", str(results)]
    assert main(["plan", plan, "--status", *options]) == 1
    output = capsys.readouterr()
    assert output.out.startswith("study: 1 of 2 runs done")
    (line,) = output.err.splitlines()
    assert line.startswith(f"skipped: {results}/runs/{damaged.name}.json: not a record: name: ")


def test_losses_with_and_without_memory_are_printed_in_words(tmp_path, capsys):
    losses = {"loss_masked_carried": 0.5, "loss_masked_zeroed": 0.75, "loss_zero": 1.0}
    record = made_record("tespec", metrics=losses | {"last_stage_rank": 3.0})
    (tmp_path / "pictures").mkdir()
    picture = tmp_path / "pictures" / f"{record.name}.png"
    picture.touch()
    plan_cli.print_pretraining(record, tmp_path)
    assert capsys.readouterr().out.splitlines() == [
        f"{record.name}: masked loss with the state carried 0.500, with the state zeroed 0.750, "
        "of predicting zero 1.000",
        f"picture: {picture}",
    ]


def test_a_plan_shows_frozen_beside_full_scores(tmp_path, capsys):
    for miou, frozen in ((41.25, False), (23.5, True)):
        write_record(made_record(miou=miou, frozen=frozen), tmp_path)
    plan_cli.show_table("segmentation", tmp_path)
    scores = re.findall(r"(\d+\.\d+) \(1\)", capsys.readouterr().out)
    assert {"41.25", "23.50"} <= {*scores}


MISTAKES = [
    (["sample", "--only", "kitti"], "--only kitti: not in this plan; choose from"),
    (["sampl"], "plan sampl: no such plan; did you mean 'sample'"),
    (["none.yaml"], "none.yaml: not a readable YAML file"),
    (
        ["demo", "--checkpoints", "moby"],
        "checkpoints moby=.: is not METHOD=FILE with an existing file",
    ),
    (["demo", "--slurm", "partition=gpu"], "--slurm requires --cluster slurm"),
    (["demo", "--cluster", "slurm", "--gpus", "1"], "with --cluster, use --slurm gpus_per_node=1"),
    (["demo", "--gpus", "0"], 'Invalid value "0" for --gpus. Must be > 0'),
    (["demo", "--gpus", "1", "2"], "Unused Tokens: ['2']; see --help"),
    *(
        (["demo", f"--run-args=--workers 2 {option}"], f"--run-args {option.split('=')[0]} is not")
        for option in ("--label-fraction=0.5", "--dry-run", "--new-stem", "--list", "--overwrite")
    ),
    (["demo", "--run-args='--workers 2"], "Invalid value for --run-args: No closing quotation"),
    (["empty.yaml", "--status"], "plan: has no cells, ablations or references; list some"),
    (
        ["tables", "--data", "/nowhere", "--only", "scratch", "ddd17"],
        "/nowhere/ddd17: the data of plan tables is",
    ),
    (["ablations", "--results", "."], "is not a results folder"),
    (["mine.yaml", "--dry-run"], "--method scrach: unknown method; did you mean 'scratch'?"),
    (["back.yaml", "--dry-run"], "backbone: unknown value 'nope'; choose from "),
    (
        ["bare.yaml", "--status"],
        "plan bare, ecddp_resnet: has no pre-trained weights; give --checkpoints ecddp",
    ),
    (["arch.yaml"], "feedforward only"),
]


def test_a_method_without_weights_may_be_left_out(tmp_path, without_data, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cells = "[{methods: [scratch, ecddp_resnet], architectures: [feedforward], tasks: [ddd17]}]"
    (tmp_path / "mine.yaml").write_text(f"data: sample\ncells: {cells}")
    assert main(["plan", "mine.yaml", "--status", "--only", "scratch"]) == 0
    assert "0 of 1 runs done" in capsys.readouterr().out


@pytest.mark.parametrize(("options", "output"), MISTAKES)
def test_mistakes_are_answered_in_one_line_before_anything_runs(
    tmp_path, without_data, capsys, options, output
):
    for name, methods in {
        "mine": "scrach",
        "bare": "ecddp_resnet",
        "arch": "ecdp",
        "back": "scratch",
    }.items():
        archs = "feedforward" if name == "bare" else "recurrent"
        more = ", backbone: nope" if name == "back" else ""
        cells = f"[{{methods: [{methods}], architectures: [{archs}], tasks: [ddd17]{more}}}]"
        (tmp_path / f"{name}.yaml").write_text(f"data: sample\ncells: {cells}")
    (tmp_path / "empty.yaml").write_text("data: sample\n")
    results = [] if "--results" in options else ["--results", "results"]
    assert main(["plan", *options, "--runs", "runs", *results]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert output in line
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(("visible", "usable"), [("", 0), ("", 1), ("0,1", 0), ("5", 1)])
def test_gpus_that_torch_cannot_use_are_refused(tmp_path, monkeypatch, capsys, visible, usable):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: usable)
    folders = ["--runs", str(tmp_path / "runs"), "--results", str(tmp_path / "results")]
    assert main(["plan", "demo", "--gpus", "2", *folders]) == 2
    error = f"error: --gpus 2: torch can use {usable} GPUs of this machine; give at most this"
    assert capsys.readouterr().err.startswith(error)
    assert not list(tmp_path.iterdir())


def test_options_reach_every_run_and_failures_the_user(tmp_path, monkeypatch, capsys, places):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    calls = []

    def run_all(jobs, arguments, logs, slots, executor):
        calls.extend(" ".join(arguments(job)) for job in jobs)
        assert (logs, list(slots)) == (tmp_path / "runs" / "logs" / "demo", ["0", "0"])
        return {jobs[-1].name: "error: the disk is full (log.txt)"}

    monkeypatch.setattr(plan_cli, "run_all", run_all)
    monkeypatch.setattr(plan_cli, "show_table", lambda name, results: None)
    given = (
        "--gpus 1 --processes 2 --accumulate 2 --run-args='--workers 2 --device cuda' --only tespec"
    )
    assert main(["plan", "demo", *shlex.split(given), *places]) == 1
    _, failed, last = capsys.readouterr().out.splitlines()
    assert failed.startswith("failed: evaluation-tespec-ddd17-feedforward-frozen-p0-s0-")
    assert failed.endswith(": error: the disk is full (log.txt)")
    assert last.startswith("0 of 1 runs done; records: ")
    assert len(calls) == 2
    for words in calls:
        assert words.startswith("-m tespec.cli ")
        assert words.endswith(
            f" --accumulate 2 --workers 2 --device cuda {' '.join(places)} --threads 1"
        )


RUN = [
    "methods: [scratch, tespec], evaluations: [full, frozen]",
    "methods: [scratch], label_fraction: [0.5], set: [batch_size=2], evaluations: [frozen]",
    "methods: [scratch], backbone: resnet_micro",
]


@pytest.mark.parametrize("fields", [*RUN, "references"])
def test_a_run_by_its_job_s_command_has_the_job_s_cell(
    tmp_path, tiny_world, monkeypatch, places, fields
):
    groups = f"cells: [{{tasks: [ddd17], {fields}}}]" if fields in RUN else "references: [ddd17]"
    file = tmp_path / "mine.yaml"
    file.write_text(f"profile: smoke\nsplit: val\naccumulate: 2\n{groups}")
    jobs = expand(replace(read_plan(str(file)), data=str(tiny_world)))
    specs = []

    def measure(spec, **_):
        specs.append(spec)
        return made_record()

    for name in ("finetune", "label_prior"):
        monkeypatch.setattr(cells, name, measure)
    assert [main([*command(job), *places]) for job in jobs] == [0] * len(jobs)
    for job, spec in zip(jobs, specs, strict=True):
        if job.upstream:
            start = pretraining_cell(spec.recipe, spec.data.label, spec.setup.accumulate)
            assert (start, spec.seed) == (job.cell.start, job.pretraining)
        else:
            run, *_ = prepare_run(job.cell.kind, spec)
            assert (run.cell, run.seed, run.pretraining) == job.key


@pytest.mark.slow
def test_a_plan_is_run_once_from_each_of_its_pretrainings(tmp_path, tiny_world, capsys, places):
    file = tmp_path / "mine.yaml"
    file.write_text(
        "profile: smoke\n"
        "set: [pretraining.optimisation.steps=2, pretraining.optimisation.warmup_steps=1]\n"
        "pretrainings: {0: [0], 1: [0]}\n"
        "cells:\n- {methods: [tespec], architectures: [feedforward], tasks: [ddd17],\n"
        "   label_fraction: [0.5], evaluations: [frozen]}\n"
        "- {methods: [scratch], architectures: [feedforward], tasks: [ddd17], controls: true}\n"
    )
    command = ["plan", str(file), "--data", str(tiny_world), *places]
    assert main(command) == 0
    output = capsys.readouterr()
    assert "mine: 0 of 4 runs done, 2 pre-trainings come first" in output.out
    assert "4 of 4 runs done" in output.out
    assert output.out.count("\npretraining-tespec-") == 2
    assert "/6] done: evaluation-tespec-ddd17-feedforward-frozen-" in output.err
    records, problems = read_records(tmp_path / "results")
    assert problems == []
    starts = {
        record.weights.sha256: record.seed
        for record in records
        if record.cell.kind == "pretraining"
    }
    (control,) = [record for record in records if record.cell.kind == "control"]
    (scratch,) = [record for record in records if record.cell.method == "scratch"]
    assert (control.cell.start, control.cell.frozen) == (scratch.cell, True)
    evaluated = [record for record in records if record.cell.method == "tespec"]
    evaluated = [record for record in evaluated if record.cell.kind == "evaluation"]
    assert all((record.seed, record.cell.label_fraction) == (0, 0.5) for record in evaluated)
    assert all(record.cell.frozen for record in evaluated)
    assert [starts[record.weights.sha256] for record in evaluated] == [
        record.pretraining for record in evaluated
    ]
    assert (
        sorted(starts.values()) == [0, 1] == sorted(to_frame(evaluated).pretraining_seed.unique())
    )
    assert main(command) == 0
    assert "mine: 4 of 4 runs done\n" in capsys.readouterr().out
    tuned = tmp_path / "runs" / scratch.name / "model.safetensors"
    tuned.unlink()
    (tmp_path / "results" / "runs" / f"{control.name}.json").unlink()
    assert main(command) == 0  # the fine-tuned network is trained again
    assert tuned.is_file()
    assert "mine: 2 of 4 runs done\n" in capsys.readouterr().out

"""Plan files, their jobs and commands, and matching jobs to records."""

import hashlib
from pathlib import Path

import pytest
from guides import forgotten_afterwards

from tespec.comparison.records import Record
from tespec.core import config
from tespec.core.config import names, pretraining_settings
from tespec.core.errors import UserError
from tespec.core.settings import build
from tespec.plan.jobs import (
    Plan,
    choices_of,
    command,
    expand,
    missing_jobs,
    read_plan,
    select,
    up_to_date,
)
from tespec.registry import register_methods
from tespec.runs.data import find_unlabelled
from tespec.runs.pretrain import identity_of

RUNS = Path("no runs")


def jobs_of(*given_seeds, **groups):
    """Jobs of a plan, by default on the sample world; `given_seeds`: those of the command line."""
    facts = {"name": "a", "title": "a", "data": "sample", "profile": "study", **groups}
    return expand(build(Plan, facts, "a.yaml"), given_seeds)


CELL = {"methods": ["scratch"], "tasks": ["ddd17"], "architectures": ["recurrent"]}
TESPEC = CELL | {"methods": ["tespec"]}
MEMORY = {"tables": ["memory"], "task": "ddd17"}
EXPANDED = [
    (
        {"cells": [CELL | {"architectures": ["recurrent", "feedforward"]}], "seeds": [1, 0]},
        [
            f"evaluation-scratch-ddd17-{arch}-s{seed}"
            for seed in (0, 1)
            for arch in ("recurrent", "feedforward")
        ],
    ),
    (
        {"cells": [CELL | {"seeds": [2], "label_fraction": [0.05, 1], "set": ["batch_size=2"]}]},
        [
            f"evaluation-scratch-ddd17-recurrent-batch_size=2-{share}s2"
            for share in ("label_fraction=0.05-", "")
        ],
    ),
    ({"cells": [CELL, CELL]}, ["evaluation-scratch-ddd17-recurrent-s0"]),
    ({"references": ["gen1"], "seeds": [3, 4]}, ["reference-prior-gen1-feedforward-s3"]),
    (
        {"ablations": [MEMORY], "split": "val"},
        [
            f"evaluation-tespec-ddd17-recurrent-{change}val-s0"
            for change in ("pretraining.recurrent=false-", "")
        ],
    ),
]


@pytest.mark.parametrize(("groups", "wanted"), EXPANDED)
def test_a_plan_is_every_combination_once(groups, wanted):
    assert [job.name for job in jobs_of(**groups)] == wanted


def test_seeds_of_the_command_line_replace_those_of_all_groups():
    assert [
        job.seed for job in jobs_of(7, cells=[CELL | {"seeds": [2, 3]}], references=["ddd17"])
    ] == [7, 7]


def test_a_pretraining_is_shared_by_all_cells_that_start_from_it():
    cells = [{"methods": ["tespec", "scratch"], "tasks": ["ddd17", "gen1"]}]
    shared = missing_jobs(jobs_of(cells=cells, seeds=[0, 1], pretraining_seeds=[5]), [], RUNS)
    assert [job.name for job in shared[:2]] == [
        "pretraining-tespec-1mpx-s5",
        "evaluation-tespec-ddd17-recurrent-p5-s0",
    ]
    assert len(shared) == 1 + 16
    missing = missing_jobs(jobs_of(cells=cells, seeds=[0, 1]), [], RUNS)
    assert [job.name for job in missing[:2]] == [
        "pretraining-tespec-1mpx-s0",
        "pretraining-tespec-1mpx-s1",
    ]
    assert len({job.name for job in missing}) == len(missing) == 2 + 16


def test_every_seed_runs_from_each_pretraining():
    jobs = jobs_of(
        cells=[CELL | {"methods": ["scratch", "tespec"]}], seeds=[0, 1], pretraining_seeds=[0, 3]
    )
    starts = [(job.method, job.seed, job.upstream and job.upstream.seed) for job in jobs]
    of_seed = [("scratch", None), ("tespec", 0), ("tespec", 3)]
    assert starts == [(method, seed, start) for seed in (0, 1) for method, start in of_seed]
    missing = missing_jobs(jobs, [], RUNS)
    assert len({job.name for job in missing}) == len(missing) == 2 + 6
    assert "--pretraining-seed 3" in " ".join(command(jobs[2]))
    rows = jobs_of(ablations=["memory"], pretraining_seeds=[0, 3])
    of_rows = [("memory: without", 0), ("memory: without", 3), ("", 0), ("", 3)]
    assert [(job.variant, job.upstream.seed) for job in rows] == of_rows


def record_of(method, records):
    """Record of a method's recurrent cell with seed 0, from the pre-training with seed 0."""
    jobs = jobs_of(cells=[CELL | {"methods": [method]}], pretraining_seeds=[0])
    (match,) = [record for record in records if missing_jobs(jobs, [record], RUNS) == []]
    return match


def changed(record, **fields):
    if recipe := fields.pop("recipe", None):
        fields["weights"] = record.weights | {"recipe": record.weights["recipe"] | recipe}
    return record.model_copy(update=fields)


ANOTHER = [
    {"seed": 9},
    {"split": "val"},
    {"profile": "paper"},
    {"data": "ddd17"},
    {"arch": "feedforward"},
    {"task_version": 9},
    {"overrides": {"label_fraction": 0.5}},
    {"kind": "probe"},
    {"recipe": {"seed": 1}},
    {"recipe": {"overrides": {"recurrent": False}}},
    {"recipe": {"data": "1mpx"}},
    {"recipe": {"profile": "sample"}},
    # older weights
    {"weights": {"recipe": {"method": "tespec", "seed": 0, "profile": "study", "data": "sample"}}},
]


@pytest.mark.parametrize("fields", ANOTHER, ids=str)
def test_a_record_of_other_choices_is_not_the_job_s(records, fields):
    record = record_of("tespec", records)
    assert (record.method, record.task, record.arch, record.seed, record.variant) == (
        "tespec",
        "ddd17",
        "recurrent",
        0,
        "",
    )
    (job,) = jobs_of(cells=[TESPEC], pretraining_seeds=[0])
    assert job in missing_jobs([job], [changed(record, **fields)], RUNS)


def test_a_row_whose_record_has_no_variant_yet_is_run_again(records):
    rows = jobs_of(ablations=[MEMORY], pretraining_seeds=[0])
    default = record_of("tespec", records)
    without = changed(
        default, variant="memory: without", recipe={"overrides": {"recurrent": False}}
    )
    assert missing_jobs(rows, [default, without], RUNS) == []
    missing = missing_jobs(rows, [default, changed(without, variant="")], RUNS)
    assert [job.variant for job in missing if job.kind == "evaluation"] == ["memory: without"]


def test_settings_count_by_their_values(records):
    few = jobs_of(
        cells=[CELL | {"set": ["label_fraction=5.0e-2"]}], set=["pretraining.batch_size=3"]
    )
    assert (
        missing_jobs(
            few, [changed(record_of("scratch", records), overrides={"label_fraction": 0.05})], RUNS
        )
        == []
    )
    # the default
    assert missing_jobs(jobs_of(cells=[CELL], set=["optimisation.steps=500"]), records, RUNS) == []
    assert len(missing_jobs(jobs_of(cells=[CELL], accumulate=2), records, RUNS)) == 1


def pretraining_of(method, *changes):
    """Job of the pre-training of a method with changed settings."""
    cell = CELL | {"methods": [method], "architectures": ["feedforward"]}
    (job,) = jobs_of(cells=[cell], set=[f"pretraining.{change}" for change in changes])
    return job.upstream


def choices_of_pretraining(method, **facts):
    """Choices of the record of a pre-training on the sample world with seed 0."""
    usual = {"profile": "study", "data": "sample", "seed": 0, "overrides": {}, "config": {}}
    return choices_of(Record.model_construct(kind="pretraining", method=method, **(usual | facts)))


def test_the_file_of_another_network_counts_by_its_content(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        (tmp_path / f"{name}.pth").write_text(name)
    changes = [
        f"objective.teacher_weights={path}" for path in ("a.pth", "./a.pth", f"{tmp_path}/a.pth")
    ]
    file = {"upstream_sha256": hashlib.sha256(b"a").hexdigest()}
    of_file = choices_of_pretraining("scaleevent", config=file)
    for change in changes:
        assert identity_of(pretraining_settings("scaleevent", "study", [change])) == ({}, file)
        assert pretraining_of("scaleevent", change).choices in of_file
    assert pretraining_of("scaleevent", "objective.teacher_weights=b.pth").choices not in of_file
    usual = pretraining_of("scaleevent").choices
    assert usual not in of_file
    assert usual in choices_of_pretraining("scaleevent")


def test_a_changed_pretraining_of_another_backbone_is_found():
    resnet = pretraining_of("ecdp", "batch_size=8")
    assert resnet.choices in choices_of_pretraining("ecdp", overrides={"batch_size": 8})


def test_given_weights_are_those_of_the_default_row(tmp_path):
    file = tmp_path / "weights.pth"
    file.touch()
    rows = jobs_of(ablations=["memory"], checkpoints={"tespec": file})
    starts = [(row.variant, row.checkpoint, row.upstream is None) for row in rows]
    assert starts == [("memory: without", None, False), ("", file, True)]


PLUGGED = """
from tespec.registry import METHODS
from tespec.pretraining.method import Method


@METHODS.register_module(name="plugged")
class Plugged(Method):
    title = "Plugged"
"""


def test_records_of_edited_files_are_not_up_to_date(records, tmp_path, monkeypatch):
    monkeypatch.setattr(config, "_added", {})
    texts = {tmp_path / "mine.yaml": "base: sample\n", tmp_path / "plugin.py": PLUGGED}
    for file, text in texts.items():
        file.write_text(text)
    config.add_file("profiles", tmp_path / "mine.yaml")
    with forgotten_afterwards():
        register_methods([tmp_path / "plugin.py"])
        plugin = hashlib.sha256("\0".join(sorted(texts.values())).encode()).hexdigest()[:12]
        made = changed(
            record_of("scratch", records), method="plugged", profile="mine", plugin=plugin
        )
        others = [
            changed(made, **fields)
            for fields in ({"plugin": ""}, {"method_version": 2}, {"method": "scratch"})
        ]
        assert up_to_date([made, *others]) == [made]
        for file, text in texts.items():
            file.write_text(f"{text}# edited\n")
            assert up_to_date([made]) == []
            file.write_text(text)
        assert up_to_date([made]) == [made]


def test_weights_given_in_a_file_count_by_their_content(records, tmp_path):
    file = tmp_path / "weights.pth"
    file.write_bytes(b"weights")
    (job,) = jobs_of(cells=[CELL | {"methods": ["imagenet"]}], checkpoints={"imagenet": file})
    assert job.upstream is None
    assert missing_jobs([job], records, RUNS) == [job]
    record = changed(
        record_of("imagenet", records), weights={"sha256": hashlib.sha256(b"weights").hexdigest()}
    )
    assert missing_jobs([job], [record], RUNS) == []
    file.write_bytes(b"others")
    assert missing_jobs([job], [record], RUNS) == [job]
    assert f"run --method imagenet --task ddd17 --arch recurrent --checkpoint {file} " in " ".join(
        command(job)
    )


def test_commands_name_all_choices():
    cell = TESPEC | {"set": ["pretraining.recurrent=false", "batch_size=3"]}
    (job,) = jobs_of(cells=[cell], seeds=[1], pretraining_seeds=[0], split="val")
    start = "run --method tespec --task ddd17 --arch recurrent"
    end = "--split val --profile study --seed 1 --data sample"
    changes = "--set batch_size=3 --set pretraining.recurrent=false"
    assert " ".join(command(job)) == f"{start} --pretraining-seed 0 {changes} {end}"
    assert " ".join(command(job, "FILE")) == f"{start} --checkpoint FILE --set batch_size=3 {end}"
    upstream = (
        "pretrain --method tespec --set recurrent=false --profile study --seed 0 --data sample"
    )
    assert " ".join(command(job.upstream)) == upstream
    assert command(jobs_of(ablations=["memory"])[0])[-8:-6] == ["--variant", "memory: without"]
    (job,) = jobs_of(cells=[TESPEC | {"backbone": "swin_tiny"}], pretraining_seeds=[0])
    assert all("--backbone swin_tiny" in " ".join(command(run)) for run in (job, job.upstream))
    assert all('"backbone": "swin_tiny"' in run.overrides for run in (job, job.upstream))


def test_data_of_a_folder_has_its_own_label_and_profile(tmp_path, monkeypatch):
    (tmp_path / "ddd17").mkdir()
    (real,) = jobs_of(cells=[CELL], data=str(tmp_path), profile=None)
    assert (real.data, real.label, real.profile) == (str(tmp_path / "ddd17"), "ddd17", "paper")
    monkeypatch.setenv("TESPEC_DATA", str(tmp_path))
    assert jobs_of(cells=[CELL], data=None, profile=None) == [real]
    (tmp_path / "ddd17" / "dataset.json").write_text('{"data": "sample"}')
    (sample,) = jobs_of(cells=[CELL], data=str(tmp_path), profile=None, seeds=[1])
    assert (sample.label, sample.profile) == ("sample", "sample")


def test_pretraining_data_has_the_label_that_its_run_gives_it(tmp_path, monkeypatch):
    monkeypatch.setenv("TESPEC_DATA", str(tmp_path))
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "drive.raw").touch()
    (tmp_path / "1mpx").symlink_to(tmp_path / "elsewhere")
    for seed, (of_pretraining, of_cell) in enumerate((("1mpx", "ddd17"), ("winter", "winter"))):
        (job,) = jobs_of(cells=[TESPEC], data=None, seeds=[seed])
        for given in (None, Path(job.upstream.data)):
            assert find_unlabelled("1mpx", given).label == job.upstream.label == of_pretraining
        assert job.label == of_cell
        (tmp_path / "dataset.json").write_text('{"data": "winter"}')


UNKNOWN = [
    (
        {"cells": [CELL], "checkpoints": {"scrach": "a"}},
        "plan a, checkpoints scrach: no cell has this method; did",
    ),
    (
        {
            "cells": [CELL | {"set": ["pretraining.batch_size=8"]}],
            "checkpoints": {"scratch": "a.pth"},
        },
        "plan a, scratch, set pretraining.batch_size=8: its weights are given by a.pth; "
        "set it only for",
    ),
    (
        {"cells": [CELL | {"tasks": ["kitti"]}]},
        "plan a, task kitti: no such task; choose from 1mpx, ddd17",
    ),
    ({"ablations": ["maskin"]}, "plan a, ablation maskin: no such table; choose from masking"),
    ({"cells": [CELL], "set": ["batch_sise=2"]}, "batch_sise"),
    ({"cells": [CELL], "set": ["batch_size"]}, "no '='"),
    ({"cells": [CELL], "profile": "huge"}, "choose from demo, paper, sample"),
]


@pytest.mark.parametrize(("groups", "message"), UNKNOWN)
def test_unknown_names_are_refused(groups, message):
    with pytest.raises(UserError) as error:
        jobs_of(**groups)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("only", "chosen"),
    [
        (["ddd17", "scratch"], lambda job: (job.task, job.method) == ("ddd17", "scratch")),
        (["masking"], lambda job: "masking" in job.ablations),
        (
            ["reference", "gen1", "mvsec"],
            lambda job: job.kind == "reference" and job.task != "ddd17",
        ),
        ([], lambda job: True),
    ],
)
def test_names_narrow_a_plan(only, chosen):
    every = {"tasks": ["ddd17", "gen1", "mvsec"]}
    cells = [{"methods": ["scratch", "cm3ae"], **every}, {"methods": ["ecdp"], "tasks": ["ddd17"]}]
    study = jobs_of(
        cells=cells, references=every["tasks"], ablations=[{"tables": ["masking"], "task": "ddd17"}]
    )
    assert select(study, only) == [job for job in study if chosen(job)] != []
    with pytest.raises(UserError, match="matches no run of this plan"):
        select(study, ["ecdp", "gen1"])


@pytest.mark.parametrize("name", names("plans"))
def test_every_plan_of_the_project_can_be_read(name):
    assert expand(read_plan(name))


WRONG = [
    ("title: a\ncelsl: []", ": unknown setting 'celsl'; did you mean 'cells'?"),
    (
        "cells: [{methods: [scratch], task: [ddd17]}]",
        ", cells.0: unknown setting 'task'; did you mean 'tasks'?",
    ),
    (
        "ablations: [masking, {table: [steps]}]",
        ", ablations.1: unknown setting 'table'; did you mean 'tables'?",
    ),
    ("world: {size: small}", ": unknown setting 'world'; choose from"),
    ("cells: [{tasks: [ddd17]}]", ": setting 'cells.0.methods' is missing"),
    (
        "cells: [{methods: []}]",
        ", cells.0.methods: [] is not allowed; it should have at least 1 item",
    ),
    (
        "cells: [{methods: [a], label_fraction: [0]}]",
        ", cells.0.label_fraction: 0 is not allowed; it should be greater",
    ),
    (
        "cells: [{methods: [a], architectures: [b]}]",
        ", cells.0.architectures: 'b' is not allowed; it should be 'rec",
    ),
    ("seeds: [0, -1]", ", seeds: -1 is not allowed; it should be greater than or equal to 0"),
    ("at_once: 0", ", at_once: 0 is not allowed; it should be greater than 0"),
    ("split: train", ", split: 'train' is not allowed; it should be 'test' or 'val'"),
    (
        "name: mine",
        "not a readable YAML file of settings "
        "(dict() got multiple values for keyword argument 'name')",
    ),
    ("- a\n- b", "not a readable YAML file of settings"),
    ("cells: [", "not a readable YAML file of settings"),
]


@pytest.mark.parametrize(("text", "message"), WRONG)
def test_mistakes_are_named_with_their_place(tmp_path, text, message):
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(UserError) as error:
        read_plan(str(path))
    assert str(error.value).startswith(f"{path}")
    assert message in str(error.value)

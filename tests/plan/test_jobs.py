"""Plan files, their jobs and commands, and matching jobs to records."""

import hashlib
import string
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from guides import forgotten_afterwards
from made_records import cell
from made_records import record as made_record

from tespec.comparison.cell import OWN_WEIGHTS
from tespec.core import config
from tespec.core.config import names
from tespec.core.errors import UserError
from tespec.core.settings import build
from tespec.plan.jobs import (
    Job,
    Plan,
    command,
    expand,
    missing_jobs,
    read_plan,
    select,
)
from tespec.registry import register_methods
from tespec.runs.data import find_data
from tespec.runs.identity import REQUIRED_SHA256

RUNS = Path("no runs")
SAFE = {*string.ascii_letters, *string.digits, *".=_-"}  # in names of files


def jobs_of(*given_seeds, **groups):
    """Jobs of a plan, by default on the sample world; `given_seeds`: those of the command line."""
    facts = {"name": "a", "title": "a", "data": "sample", "profile": "study", **groups}
    return expand(build(Plan, facts, "a.yaml"), given_seeds)


def readable(job):
    """Name of a job without the hash at its end."""
    return job.name.rpartition("-")[0]


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
            for change in ("pretraining.recurrent=false-p0-", "p0-")
        ],
    ),
    (
        {"ablations": [MEMORY | {"evaluation": "frozen"}]},
        [
            f"evaluation-tespec-ddd17-recurrent-frozen{change}-p0-s0"
            for change in ("-pretraining.recurrent=false", "")
        ],
    ),
    (
        {"cells": [CELL | {"evaluations": ["full", "frozen"], "label_fraction": [1, 0.5]}]},
        [
            f"evaluation-scratch-ddd17-recurrent-{facts}s0"
            for facts in ("", "frozen-", "label_fraction=0.5-", "frozen-label_fraction=0.5-")
        ],
    ),
    (
        {
            "cells": [CELL | {"methods": ["scratch", "tespec"]}],
            "pretrainings": {3: [0, 1], 4: [2]},
        },
        [
            f"evaluation-{facts}"
            for seed, first in ((0, 3), (1, 3), (2, 4))
            for facts in (
                f"scratch-ddd17-recurrent-s{seed}",
                f"tespec-ddd17-recurrent-p{first}-s{seed}",
            )
        ],
    ),
    # settings count by their values: the default profile's steps
    (
        {"cells": [CELL, CELL | {"set": ["optimisation.steps=500"]}]},
        ["evaluation-scratch-ddd17-recurrent-s0"],
    ),
]


def test_names_of_different_jobs_differ():
    facts = [("a", "my task"), ("a", "my_task"), ("a-b", "c"), ("a", "b-c"), ("a", "x" * 300)]
    cells = [cell(method, task=task) for method, task in facts]
    cells += [cell("a", task="x" * 300, split="val"), cell(frozen=True), cell()]
    jobs = [Job(each, seed, "sample", ()) for each in cells for seed in (0, 1)]
    names = {job.name for job in jobs}
    assert len(names) == len(jobs)
    assert all(len(name) < 200 and set(name) <= SAFE for name in names)


@pytest.mark.parametrize(("groups", "wanted"), EXPANDED)
def test_a_plan_is_every_combination_once(groups, wanted):
    assert [readable(job) for job in jobs_of(**groups)] == wanted


def test_seeds_of_the_command_line_replace_those_of_all_groups():
    assert [
        job.seed for job in jobs_of(7, cells=[CELL | {"seeds": [2, 3]}], references=["ddd17"])
    ] == [7, 7]


def test_a_pretraining_is_shared_by_all_cells_that_start_from_it():
    cells = [{"methods": ["tespec", "scratch"], "tasks": ["ddd17", "gen1"]}]
    shared = missing_jobs(jobs_of(cells=cells, pretrainings={5: [0, 1]}), {}, RUNS)
    assert [readable(job) for job in shared[:2]] == [
        "pretraining-tespec-1mpx-recurrent-s5",
        "evaluation-tespec-ddd17-recurrent-p5-s0",
    ]
    assert len(shared) == 1 + 16
    missing = missing_jobs(jobs_of(cells=cells, seeds=[0, 1]), {}, RUNS)
    assert [readable(job) for job in missing[:2]] == [
        "pretraining-tespec-1mpx-recurrent-s0",
        "pretraining-tespec-1mpx-recurrent-s1",
    ]
    assert len({job.name for job in missing}) == len(missing) == 2 + 16


def test_every_seed_runs_from_each_pretraining():
    jobs = jobs_of(
        cells=[CELL | {"methods": ["scratch", "tespec"]}], pretrainings={0: [0, 1], 3: [0, 1]}
    )
    starts = [(job.cell.method, job.seed, job.upstream and job.upstream.seed) for job in jobs]
    of_seed = [("scratch", None), ("tespec", 0), ("tespec", 3)]
    assert starts == [(method, seed, start) for seed in (0, 1) for method, start in of_seed]
    missing = missing_jobs(jobs, {}, RUNS)
    assert len({job.name for job in missing}) == len(missing) == 2 + 6
    assert "--pretraining-seed 3" in " ".join(command(jobs[2]))
    rows = jobs_of(ablations=["memory"], pretrainings={0: [0], 3: [0]})
    without = {"recurrent": False}
    of_rows = [(without, 0), (without, 3), ({}, 0), ({}, 3)]
    assert [(job.cell.start.overrides, job.pretraining) for job in rows] == of_rows


def missing(jobs, *records):
    return missing_jobs(jobs, {record.key: record for record in records}, RUNS)


def record_of(job):
    """Record of a finished job."""
    return made_record(**asdict(job.cell), seed=job.seed, pretraining=job.pretraining)


def changed(record, pretraining=None, start=None, **fields):
    """Copy of a record with changed fields of its cell, and of the cell of its pre-training."""
    cell = replace(record.cell, **fields)
    if start:
        cell = replace(cell, start=replace(cell.start, **start))
    pretraining = record.pretraining if pretraining is None else pretraining
    return record.model_copy(update={"cell": cell, "pretraining": pretraining})


ANOTHER = [
    {"split": "val"},
    {"profile": "paper"},
    {"data": "ddd17"},
    {"arch": "feedforward"},
    {"backbone": "swin_tiny"},
    {"task_version": 9},
    {"method_version": 9},
    {"results_version": 9},
    {"plugin": "0123456789ab"},
    {"label_fraction": 0.5},
    {"frozen": True},
    {"overrides": {"batch_size": 3}},
    {"kind": "probe"},
    {"pretraining": 1},
    {"start": {"overrides": {"recurrent": False}}},
    {"start": {"data": "1mpx"}},
    {"start": {"profile": "sample"}},
    {"start": {"method_version": 9}},
    {"start": {"results_version": 9}},
]


@pytest.mark.parametrize("fields", ANOTHER, ids=str)
def test_a_record_of_another_cell_is_not_the_job_s(fields):
    (job,) = jobs_of(cells=[TESPEC], pretrainings={0: [0]})
    record = record_of(job)
    assert missing([job], record) == []
    assert job in missing([job], changed(record, **fields))
    assert job in missing([job], record.model_copy(update={"seed": 9}))


def test_rows_that_two_ablations_share_are_done_together():
    shared = [MEMORY, {"tables": ["masking"], "task": "ddd17"}]
    rows = jobs_of(ablations=shared, pretrainings={0: [0]})
    of_memory = [job for job in rows if "memory" in job.ablations]
    assert [job.ablations for job in of_memory] == [("memory",), ("memory", "masking")]
    left = [job for job in missing(rows, *map(record_of, of_memory)) if job.upstream]
    assert len(rows) == len(left) + 2
    assert all(job.ablations == ("masking",) for job in left)


def test_settings_count_by_their_values():
    few = CELL | {"set": ["label_fraction=5.0e-2"]}
    (usual,) = map(record_of, jobs_of(cells=[CELL]))
    of_pretraining = ["pretraining.batch_size=3"]
    assert (
        missing(jobs_of(cells=[few], set=of_pretraining), changed(usual, label_fraction=0.05)) == []
    )
    # the default
    assert missing(jobs_of(cells=[CELL], set=["optimisation.steps=500"]), usual) == []
    assert len(missing(jobs_of(cells=[CELL], accumulate=2), usual)) == 1


def test_a_pretraining_is_shared_however_the_plan_spells_it():
    cells = [
        TESPEC | {"label_fraction": [0.1], "evaluations": ["frozen"]},
        TESPEC | {"label_fraction": [0.2], "set": ["pretraining.batch_size=4"]},
        TESPEC | {"label_fraction": [0.3], "backbone": "swin_micro"},
    ]
    first, *others = missing_jobs(jobs_of(cells=cells, profile="smoke"), {}, RUNS)
    assert first.cell.kind == "pretraining"
    assert [job.upstream.key for job in others] == [first.key] * 3


def pretraining_of(method, *changes):
    """Cell of the pre-training of a method with changed settings."""
    cell = CELL | {"methods": [method], "architectures": ["feedforward"]}
    (job,) = jobs_of(cells=[cell], set=[f"pretraining.{change}" for change in changes])
    return job.upstream.cell


def test_the_file_of_another_network_counts_by_its_content(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        (tmp_path / f"{name}.pth").write_text(name)
    paths = ("a.pth", "./a.pth", f"{tmp_path}/a.pth")
    cells = {pretraining_of("scaleevent", f"objective.teacher_weights={path}") for path in paths}
    (of_file,) = cells
    assert of_file.start == OWN_WEIGHTS
    assert of_file.overrides == {REQUIRED_SHA256: hashlib.sha256(b"a").hexdigest()}
    assert pretraining_of("scaleevent", "objective.teacher_weights=b.pth") != of_file
    usual = pretraining_of("scaleevent")
    assert (usual.start.method, usual.start.task, usual.overrides) == ("imagenet", "objects", {})


def test_given_weights_are_those_of_the_default_row(tmp_path):
    file = tmp_path / "weights.pth"
    file.touch()
    rows = jobs_of(ablations=["memory"], checkpoints={"tespec": file})
    starts = [(row.cell.start == OWN_WEIGHTS, row.checkpoint, row.upstream) for row in rows]
    assert starts == [(False, None, rows[0].upstream), (True, file, None)]


PLUGGED = """
from tespec.pretraining.method import Method, TableRow
from tespec.registry import METHODS


@METHODS.register_module(name="plugged")
class Plugged(Method):
    row = TableRow(title="Plugged")
"""


def test_edited_files_of_the_user_make_another_cell(tmp_path, monkeypatch):
    monkeypatch.setattr(config, "_added", {})
    texts = {tmp_path / "mine.yaml": "base: sample\n", tmp_path / "plugin.py": PLUGGED}
    for file, text in texts.items():
        file.write_text(text)
    config.add_file("profiles", tmp_path / "mine.yaml")

    def cell():
        (job,) = jobs_of(cells=[CELL | {"methods": ["plugged"]}], profile="mine")
        return job.cell

    with forgotten_afterwards():
        register_methods([tmp_path / "plugin.py"])
        first = cell()
        assert first.plugin
        for file, text in texts.items():
            file.write_text(f"{text}# edited\n")
            assert cell() == replace(first, plugin=cell().plugin) != first
            file.write_text(text)
        assert cell() == first


def test_weights_given_in_a_file_count_by_their_content(tmp_path):
    file = tmp_path / "weights.pth"
    file.write_bytes(b"weights")

    def job():
        (job,) = jobs_of(cells=[TESPEC], checkpoints={"tespec": file})
        return job

    digest = hashlib.sha256(b"weights").hexdigest()
    record = record_of(job())
    assert (record.cell.start, record.pretraining) == (OWN_WEIGHTS, digest)
    assert job().upstream is None
    assert missing([job()], *map(record_of, jobs_of(cells=[TESPEC]))) == [job()]
    assert missing([job()], record) == []
    words = f"run --method tespec --task ddd17 --arch recurrent --checkpoint {file} "
    assert words in " ".join(command(job()))
    file.write_bytes(b"others")
    assert missing([job()], record) == [job()]


def test_commands_name_all_choices():
    cell = TESPEC | {"set": ["pretraining.recurrent=false", "batch_size=3"]}
    (job,) = jobs_of(cells=[cell], pretrainings={0: [1]}, split="val")
    start = "run --method tespec --task ddd17 --arch recurrent"
    end = "--split val --profile study --seed 1 --data sample"
    changes = "--set pretraining.recurrent=false --set batch_size=3"
    assert " ".join(command(job)) == f"{start} {changes} --pretraining-seed 0 {end}"
    assert " ".join(command(job, "FILE")) == f"{start} --set batch_size=3 --checkpoint FILE {end}"
    upstream = (
        "pretrain --method tespec --set recurrent=false --profile study --seed 0 --data sample"
    )
    assert " ".join(command(job.upstream)) == upstream
    (job,) = jobs_of(cells=[TESPEC | {"backbone": "swin_tiny"}], pretrainings={0: [0]})
    assert all("--backbone swin_tiny" in " ".join(command(run)) for run in (job, job.upstream))
    assert [run.cell.backbone for run in (job, job.upstream)] == ["swin_tiny", "swin_tiny"]


def test_data_of_a_folder_has_its_own_label_and_profile(tmp_path, monkeypatch):
    def facts(job):
        return job.data, job.cell.data, job.cell.profile

    (tmp_path / "ddd17").mkdir()
    (real,) = jobs_of(cells=[CELL], data=str(tmp_path), profile=None)
    assert facts(real) == (str(tmp_path / "ddd17"), "ddd17", "paper")
    monkeypatch.setenv("TESPEC_DATA", str(tmp_path))
    assert jobs_of(cells=[CELL], data=None, profile=None) == [real]
    (tmp_path / "ddd17" / "dataset.json").write_text('{"data": "sample"}')
    (sample,) = jobs_of(cells=[CELL], data=str(tmp_path), profile=None, seeds=[1])
    assert facts(sample)[1:] == ("sample", "sample")


def test_pretraining_data_has_the_label_that_its_run_gives_it(tmp_path, monkeypatch):
    monkeypatch.setenv("TESPEC_DATA", str(tmp_path))
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "drive.raw").touch()
    (tmp_path / "1mpx").symlink_to(tmp_path / "elsewhere")
    for seed, (of_pretraining, of_cell) in enumerate((("1mpx", "ddd17"), ("winter", "winter"))):
        (job,) = jobs_of(cells=[TESPEC], data=None, seeds=[seed])
        label = job.upstream.cell.data
        for given in (None, Path(job.upstream.data)):
            assert find_data("1mpx", given, labelled=False).label == label == of_pretraining
        assert job.cell.data == of_cell
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
        "kitti: no such file in configs/tasks; choose from 1mpx, ddd17",
    ),
    ({"ablations": ["maskin"]}, "plan a, ablation maskin: no such table; choose from masking"),
    ({"cells": [CELL], "set": ["batch_sise=2"]}, "batch_sise"),
    ({"cells": [CELL], "set": ["batch_size"]}, "no '='"),
    ({"cells": [CELL], "profile": "huge"}, "choose from demo, paper, quick, sample"),
    (
        {"cells": [CELL], "seeds": [0], "pretrainings": {0: [0]}},
        "plan a, seeds: are also in pretrainings; remove one of the two",
    ),
    (
        {"cells": [TESPEC | {"seeds": [0, 4]}], "pretrainings": {0: [0, 1], 1: [3]}},
        "plan a, tespec, seed 4: no pre-training in pretrainings has this seed; choose from 0, 1,",
    ),
]


@pytest.mark.parametrize(("groups", "message"), UNKNOWN)
def test_unknown_names_are_refused(groups, message):
    with pytest.raises(UserError) as error:
        jobs_of(**groups)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("only", "chosen"),
    [
        (
            ["ddd17", "scratch"],
            lambda job: (job.cell.task, job.cell.method) == ("ddd17", "scratch"),
        ),
        (["masking"], lambda job: "masking" in job.ablations),
        (["frozen"], lambda job: job.cell.frozen),
        (
            ["reference", "gen1", "mvsec"],
            lambda job: job.cell.kind == "reference" and job.cell.task != "ddd17",
        ),
        ([], lambda job: True),
    ],
)
def test_names_narrow_a_plan(only, chosen):
    every = {"tasks": ["ddd17", "gen1", "mvsec"], "evaluations": ["full", "frozen"]}
    cells = [{"methods": ["scratch", "cm3ae"], **every}, CELL | {"methods": ["cpc"]}]
    study = jobs_of(
        cells=cells, references=every["tasks"], ablations=[{"tables": ["masking"], "task": "ddd17"}]
    )
    assert select(study, only) == [job for job in study if chosen(job)] != []
    with pytest.raises(UserError, match="matches no run of this plan"):
        select(study, ["cpc", "gen1"])


def test_controls_are_new_heads_on_the_fine_tuned_networks_of_a_group():
    of_network = ["optimisation.steps=900", "new_stem=true", "window_ms=25", "bins=5"]
    full = TESPEC | {"label_fraction": [0.5], "set": of_network, "controls": True}
    frozen = TESPEC | {"evaluations": ["frozen"], "controls": True}
    jobs = jobs_of(cells=[full, frozen], pretrainings={4: [1]}, set=["segments=2"])
    kinds = [(job.cell.kind, job.cell.frozen) for job in jobs]
    assert kinds == [("evaluation", False), ("control", True), ("evaluation", True)]
    tuned, control, _ = jobs
    assert control.upstream == tuned
    assert (control.cell.start, control.pretraining) == (tuned.cell, 4)
    kept = {"segments": 2, "window_ms": 25, "bins": 5}
    assert (control.cell.label_fraction, control.cell.overrides) == (0.5, kept)
    line = " ".join(command(control, "FILE"))
    assert line == (
        "run --reference control --task ddd17 --arch recurrent --set segments=2 --set window_ms=25 "
        "--set bins=5 --set label_fraction=0.5 --checkpoint FILE --backbone swin_micro "
        "--profile study --seed 1 --data sample"
    )
    order = [job.cell.kind for job in missing_jobs([control], {}, RUNS)]
    assert order == ["pretraining", "evaluation", "control"]


def test_every_fine_tuned_network_has_one_control():
    cells = [CELL | {"methods": ["scratch", "tespec"], "controls": True}]
    jobs = jobs_of(cells=cells, pretrainings={0: [0], 1: [0]})
    networks = [job.key for job in jobs if job.cell.kind == "evaluation"]
    controls = [job.upstream.key for job in jobs if job.cell.kind == "control"]
    assert sorted(controls, key=str) == sorted(networks, key=str)


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
    ("pretrainings: {0: []}", ", pretrainings: [] is not allowed; it should have at least 1"),
    ("pretrainings: {}", ", pretrainings: {} is not allowed; "),
    ("pretrainings: {a: [0]}", "'a' is not allowed; it should be a valid integer"),
    ("pretraining_seeds: [0]", "unknown setting 'pretraining_seeds'; did you mean 'pretrainings'?"),
    (
        "cells: [{methods: [a], evaluations: [probe]}]",
        ", cells.0.evaluations: 'probe' is not allowed; it should be 'full' or 'frozen'",
    ),
    (
        "ablations: [{tables: [memory], evaluation: none}]",
        ", ablations.0.evaluation: 'none' is not allowed; it should be 'full' or 'frozen'",
    ),
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

"""The command in a record, given in an empty folder, computes the same numbers."""

import shlex
import shutil

import pytest
from guides import forgotten_afterwards
from short_runs import short_pretrainings

from tespec.cli.main import main
from tespec.comparison.records import read_records
from tespec.core import config
from tespec.core.paths import CONFIGS, REPOSITORY

FEW = ["--profile", "smoke", "--set", "optimisation.steps=2", "--set=optimisation.warmup_steps=0"]
PRETRAIN = ["pretrain", "--data", "1mpx", *FEW]
PLUGIN = ["--import", "mine.py", "--method", "byol"]


def start(folder, words):
    """Run a command in a folder that holds its results; return its records by name."""
    with pytest.MonkeyPatch.context() as patch, forgotten_afterwards(), short_pretrainings():
        patch.setattr(config, "_added", {})
        patch.chdir(folder)
        assert main([*words, "--results", "results", "--runs", "runs"]) == 0
    return {record.name: record for record in read_records(folder / "results")[0]}


def numbers(record):
    return record.metrics, record.recordings, record.classes, record.curve


@pytest.fixture
def folder(tiny_world, tmp_path):
    """A folder with data, a plug-in and a task, and an empty one next to it."""
    folder = tmp_path / "here"
    folder.mkdir()
    (tmp_path / "empty").mkdir()
    for dataset in ("ddd17", "1mpx"):
        (folder / dataset).symlink_to(tiny_world / dataset)
    shutil.copy(REPOSITORY / "examples" / "my_method.py", folder / "mine.py")
    shutil.copy(CONFIGS / "tasks" / "ddd17.yaml", folder / "my_task.yaml")
    return folder


def repeat(folder, records):
    """Give the commands of records in an empty folder, and compare the numbers."""
    for name, record in records.items():
        _, *words = shlex.split(record.command)
        again = start(folder.parent / "empty", words)
        assert numbers(again[name]) == numbers(record)


def test_of_a_reference(folder):
    words = ["run", "--reference", "prior", "--task", "ddd17", "--data", "ddd17", "--split=val"]
    repeat(folder, start(folder, [*words, "--profile", "smoke"]))


@pytest.mark.slow
def test_of_a_probe_with_several_seeds_and_a_task_of_ones_own(folder):
    words = ["run", "--probe", "--method", "scratch", "--task=my_task.yaml", "--data", "ddd17"]
    records = start(folder, [*words, "--profile", "smoke", "--seeds", "0", "1"])
    assert len(records) == 2
    (first, second) = records.values()
    assert first.command.endswith(" --seed 0")
    assert second.command.endswith(" --seed 1")
    repeat(folder, records)
    assert len(read_records(folder.parent / "empty" / "results")[0]) == 2


@pytest.mark.slow
def test_of_a_pretraining_by_a_plug_in_and_a_run_from_its_weights(folder):
    records = start(folder, [*PRETRAIN, *PLUGIN, "--seed", "1"])
    repeat(folder, records)
    (weights,) = folder.glob("runs/*/backbone.safetensors")
    words = ["run", *PLUGIN, "--task", "ddd17", "--data", "ddd17", *FEW]
    words += ["--checkpoint", str(weights.relative_to(folder))]
    both = start(folder, words)
    repeat(folder, {name: both[name] for name in both.keys() - records.keys()})


PLAN = """
data: {folder}
profile: smoke
pretrainings: {{1: [0]}}
cells: [{{methods: [scratch, tespec], architectures: [recurrent], tasks: [ddd17]}}]
set: [optimisation.steps=2, pretraining.optimisation.steps=2, optimisation.warmup_steps=0,
      pretraining.optimisation.warmup_steps=0]
"""


@pytest.mark.slow
def test_of_a_plan(folder):
    (folder / "plan.yaml").write_text(PLAN.format(folder=folder))
    records = start(folder, ["plan", "plan.yaml", "--run-args=--device=cpu"])
    kinds = ["evaluation", "evaluation", "pretraining"]
    assert sorted(record.cell.kind for record in records.values()) == kinds
    repeat(folder, records)

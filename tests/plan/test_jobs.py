"""Which jobs a plan has, and by which commands they run."""

from __future__ import annotations

from pathlib import Path

import pytest
from planned import LONGER, ONE, started, tiny_plan, workshop

from tespec.comparison.ablations import read_ablation
from tespec.comparison.published import read_published
from tespec.core.config import names
from tespec.core.errors import UserError
from tespec.core.registry import METHODS
from tespec.plan.files import Ablations, Cells, Pretrainings, References, Start, World, read_plan
from tespec.plan.jobs import EVALUATION, PRETRAINING, REFERENCE, Job, Workshop, command, find_all_data, select
from tespec.runs.data import Data
from tespec.sample import world_folder


@pytest.mark.parametrize("name", names("plans"))
def test_every_plan_is_made_of_jobs_that_can_be_run(name, tmp_path, monkeypatch):
    plan = read_plan(name)
    monkeypatch.setattr("tespec.runs.data.given_data", lambda dataset: tmp_path)
    shop, jobs = workshop(plan, tmp_path)
    every = shop.with_pretrainings(jobs)
    assert len(set(every)) == len({job.name for job in every}) == len(every)
    assert all(shop.before(job) in every for job in jobs if shop.before(job))
    for job in every:
        assert command(job, shop)[0] == ("pretrain" if job.kind == PRETRAINING else "run")


@pytest.mark.parametrize("name", ["small", "medium"])
def test_every_row_of_the_paper_s_tables_that_can_be_made_here_is_there(tmp_path, name):
    _, jobs = workshop(read_plan(name), tmp_path)
    cells = {(job.method, job.arch, job.task) for job in jobs if not (job.changes or job.settings or job.start)}
    twins = {task for _, _, task in cells}
    assert len(twins) == {"small": 3, "medium": 5}[name]
    for table in ("detection", "segmentation", "depth"):
        reference = read_published(table)
        for row in reference.rows:
            method = METHODS.get(row.method)
            if method is None or (method.recipe is None and method.pretraining_data != "-") or row.method == "rvt":
                continue
            for task in (task for task in reference.tasks if task.name in twins):
                if any(row.scores[task.name, metric.name] is not None for metric in reference.metrics):
                    assert (row.method, "recurrent" if row.recurrent else "feedforward", task.name) in cells
    assert len({job.seed for job in jobs if job.kind == EVALUATION and job.split == "test"}) >= 3


def test_the_demo_covers_both_methods_and_architectures(tmp_path):
    shop, jobs = workshop(read_plan("demo").model_copy(update={"seeds": (3,)}), tmp_path)
    lines = [" ".join(command(job, shop)) for job in shop.with_pretrainings(jobs)]
    assert len(lines) == 6
    assert any("--reference prior --task ddd17" in line for line in lines)
    for method in ("scratch", "tespec"):
        for arch in ("recurrent", "feedforward"):
            (line,) = (line for line in lines if f"--method {method} --task ddd17 --arch {arch} " in line)
            assert "--seed 3 --threads 1" in line


def test_names_choose_by_group(tmp_path):
    _, jobs = workshop(read_plan("small"), tmp_path)
    chosen = select(jobs, ["mvsec", "ddd17", "scratch"])
    assert {(job.task, job.method) for job in chosen} == {("mvsec", "scratch"), ("ddd17", "scratch")}
    assert {job.kind for job in select(jobs, ["reference"])} == {REFERENCE}
    # Rows of several ablations, and plain cells that are a row as well, are there for each of them.
    for name in ("masking", "target", "objective", "patch_norm", "memory"):
        rows = {job.changes for job in select(jobs, [name])}
        assert len(rows) == len(read_ablation(name).rows)
        assert {job.task for job in select(jobs, [name])} == {"ddd17"}
    with pytest.raises(UserError, match="--only kitti: nothing of this plan; choose from cm3ae, ddd17, "):
        select(jobs, ["kitti"])
    with pytest.raises(UserError, match="--only: leaves nothing of this plan"):
        select(jobs, ["gen1", "ecdp"])


def test_pretrainings_references_and_ablations_have_seeds_as_well(tmp_path, monkeypatch):
    monkeypatch.setenv("TESPEC_CACHE", str(tmp_path))
    own = {
        "references": (References(tasks=("ddd17",), seeds=(3, 4)),),
        "pretrainings": (Pretrainings(methods=("tespec",), seeds=(5,)),),
        "ablations": ("target_ddd17", Ablations(tables=("masking",), task="ddd17", seeds=(6,))),
    }
    _, jobs = workshop(tiny_plan(**own), tmp_path)
    assert {(job.method, job.seed) for job in jobs if job.kind == REFERENCE} == {
        ("prior", 3),
        ("frame", 3),
        ("frame", 4),
    }
    assert [job.seed for job in jobs if job.kind == PRETRAINING] == [5]
    assert {(job.ablations, job.task, job.seed) for job in jobs if job.ablations} == {
        (("target_ddd17",), "ddd17", 0),
        (("masking",), "ddd17", 6),
    }
    plan = tiny_plan(
        ablations=({"tables": ["masking"], "task": "mvsec"},),
    )
    with pytest.raises(UserError, match="plan a, ablation masking on mvsec: stands in no table; its numbers are those"):
        workshop(plan, tmp_path)


def test_a_group_s_changes_to_its_pretrainings_are_of_them_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("TESPEC_CACHE", str(tmp_path))
    cells = Cells(**(ONE | {"methods": ("tespec",)}), set=(*LONGER, "pretraining.batch_size=3"))
    shop, (job,) = workshop(tiny_plan(cells=(cells,)), tmp_path)
    assert (job.settings, job.changes) == (LONGER, ("batch_size=3",))
    assert shop.before(job).changes == ("batch_size=3",)
    assert "--set optimisation.steps=4 --set pretraining.batch_size=3" in " ".join(command(job, shop))


def test_commands_name_nothing_of_this_machine_where_the_world_is_the_usual_one(tmp_path):
    shop, _ = workshop(read_plan("small"), tmp_path)
    job = Job(EVALUATION, "tespec", "ddd17", "recurrent", 1, ("objective.mask.ratio=0.0",))
    assert shop.data["ddd17"] == Data(world_folder() / "ddd17", "sample")
    usual = command(job, shop)
    assert usual[:-7] == ["run", "--method", "tespec", "--task", "ddd17", "--arch", "recurrent",
                          "--pretraining-seed", "0", "--no-picture",
                          "--set", "pretraining.objective.mask.ratio=0.0", "--profile", "small",
                          "--seed", "1"]  # fmt: skip
    shop.data["ddd17"] = Data(tmp_path / "world" / "ddd17", "sample")
    assert str(tmp_path / "world" / "ddd17") in command(job, shop)


def test_jobs_are_given_the_files_and_configs_of_one_s_own(tmp_path):
    shop, jobs = workshop(read_plan("tiny"), tmp_path, plugins=(tmp_path / "mine.py",), configs=(tmp_path,))
    for job in shop.with_pretrainings(jobs):
        assert f"--import {tmp_path / 'mine.py'} --configs {tmp_path}" in " ".join(command(job, shop))


def test_a_cell_starts_from_a_network_that_is_trained_on_another_world(tmp_path, monkeypatch):
    monkeypatch.setenv("TESPEC_CACHE", str(tmp_path))
    shop, job = started(tmp_path, seeds=(2,))
    before = shop.before(job)
    assert shop.with_pretrainings([job]) == [before, job]
    assert before.name == "evaluation-scratch-ddd17-recurrent-optimisation.steps=4-on_world_tiny_1-s2"
    assert job.name == "evaluation-labels-ddd17-recurrent-from_world_tiny_1-optimisation.steps=4-s2"
    first = " ".join(command(before, shop))
    assert f"--data {world_folder('tiny', 1) / 'ddd17'} " in first
    assert f"--results {tmp_path / 'results' / 'starts'} " in first
    assert "--set batch_size=3 --set optimisation.steps=4" in first
    then = " ".join(command(job, shop, Path("model.safetensors")))
    assert "run --method labels --task ddd17 --arch recurrent " in then
    assert " --checkpoint model.safetensors " in then
    assert "optimisation.steps=4" not in then
    assert f"--results {tmp_path / 'results'} " in then


@pytest.mark.parametrize(
    ("changes", "plan", "message"),
    [
        (
            {"start": Start(world=World(size="tiny"))},
            {},
            "start: is of the world that its cells are of; give its world",
        ),
        ({"methods": None}, {}, "start: goes with the methods that start from it; name them"),
        ({"set": ("pretraining.batch_size=3",)}, {}, "start: is no pre-training, whose settings could be changed"),
        ({}, {"world": None}, "start: is trained on a sample world, and the cells are on real data; leave it out"),
    ],
)
def test_starts_that_there_cannot_be_are_named(tmp_path, monkeypatch, changes, plan, message):
    monkeypatch.setattr("tespec.runs.data.given_data", lambda dataset: tmp_path)
    other = Start(world=World(size="tiny", seed=1))
    cells = Cells(**(ONE | {"methods": ("labels",), "start": other} | changes))
    with pytest.raises(UserError, match=message):
        workshop(tiny_plan(**({"cells": (cells,)} | plan)), tmp_path)


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        (Cells(tasks=("kitti",)), "plan a, task kitti: no such task; choose from 1mpx"),
        (Cells(methods=("ecddp_resnet",)), "plan a, ecddp_resnet: has no weights to start from; give --checkpoints"),
        (Cells(methods=("ecdp",), architectures=("recurrent",)), "--method ecdp --arch recurrent: "),
    ],
)
def test_cells_that_there_are_not_are_named(tmp_path, cells, message):
    with pytest.raises(UserError, match=message):
        workshop(tiny_plan(cells=(cells,)), tmp_path)


def test_real_data_that_is_missing_is_named_and_never_replaced(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TESPEC_DATA", raising=False)
    (tmp_path / "data" / "ddd17").mkdir(parents=True)
    with pytest.raises(UserError, match=r"^\./data/1mpx, \./data/dsec, .*: the data of plan tables is not there; "):
        workshop(read_plan("tables"), tmp_path)
    plan = read_plan("tables").model_copy(update={"cells": (Cells(methods=("tespec",), tasks=("ddd17",)),)})
    with pytest.raises(UserError, match=r"^\./data/1mpx: the data of plan tables is not there; "):
        workshop(plan, tmp_path)
    # The world that a plan names gives way to a folder that is given, and stands in for nothing of it.
    demo, empty = read_plan("demo").model_copy(update={"world": None}), tmp_path / "empty"
    with pytest.raises(UserError, match=r"empty/ddd17: the data of plan demo is not there; "):
        find_all_data(Workshop(demo, tmp_path, tmp_path), [Job(EVALUATION, "scratch", "ddd17", "recurrent", 0)], empty)

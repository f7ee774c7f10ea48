"""Which jobs a plan has, and which of them a record is of."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from tespec.comparison.ablations import read_ablation
from tespec.comparison.identity import package_code
from tespec.comparison.published import read_published
from tespec.comparison.records import new_record
from tespec.core.config import as_facts, names
from tespec.core.errors import UserError
from tespec.core.paths import REPOSITORY, RESULTS
from tespec.core.registry import METHODS, register_methods
from tespec.plan.files import Ablations, Cells, Plan, Pretrainings, References, Start, World, read_plan
from tespec.plan.jobs import (
    EVALUATION,
    PRETRAINING,
    PROBE,
    REFERENCE,
    Job,
    Workshop,
    all_jobs,
    command,
    find_all_data,
    select,
)
from tespec.plan.states import Ledger, forecast, in_order, of_other_code, seconds_of, states_of
from tespec.runs.data import Data
from tespec.weights.files import sha256_of
from tespec.world import world_folder

CLOSED = [name for name in names("plans") if read_plan(name).world and read_plan(name).cells]


def workshop(plan: Plan, folder: Path, **changes):
    """A plan's workshop and all of its jobs, on a world that is not made."""
    register_methods()
    shop = Workshop(plan, folder / "results", folder / "runs", **changes)
    jobs = all_jobs(shop)
    return find_all_data(shop, jobs, None), jobs


def record_of(job: Job, ledger: Ledger, **changes):
    """What a run of a job would leave, but for the data, which is not made."""
    shop = ledger.shop
    recipe = shop.recipe(job.method, job.task, job.changes) if job.kind == EVALUATION else None
    if job.start is not None:
        recipe = as_facts(ledger.settings(shop.before(job)))
    weights = {"start_sha256": "ff", "sha256": ""}
    if recipe:
        weights["recipe"] = recipe | {"seed": shop.before(job).seed}
    fields = {
        "kind": job.kind,
        "method_name": job.method,
        "method": {"title": job.method},
        "task": job.task,
        "arch": job.arch,
        "profile": shop.profile(job.task),
        "data": "sample",
        "data_fingerprint": "",
        "seed": job.seed,
        "split": job.split,
        "config": ledger._config(job),
        "weights": weights,
        "command": "",
        "time": {"total": 60.0},
        "code": package_code(),
    }
    empty = ("protocol", "metrics", "groups", "recordings", "classes", "environment")
    return new_record(**(fields | {name: {} for name in empty} | {"curve": []} | changes))


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


@pytest.mark.parametrize("name", CLOSED)
def test_a_job_is_done_by_a_record_of_its_own_alone(name, tmp_path, monkeypatch):
    monkeypatch.setenv("TESPEC_CACHE", str(tmp_path))
    shop, jobs = workshop(read_plan(name), tmp_path)
    empty = Ledger(shop, [])
    records = {job: record_of(job, empty) for job in jobs}
    full = Ledger(shop, list(records.values()))
    for job in jobs[:: max(1, len(jobs) // 12)]:
        assert full.record(job) == records[job]
        assert Ledger(shop, [record for other, record in records.items() if other != job]).record(job) is None


def test_a_record_of_other_code_data_settings_or_weights_is_not_a_job_s(tmp_path, monkeypatch):
    monkeypatch.setenv("TESPEC_CACHE", str(tmp_path))
    plan = Plan(name="a", title="a", world=World(size="tiny"), profile="tiny", cells=(
        Cells(methods=("scratch", "tespec"), architectures=("recurrent",), tasks=("ddd17",)),))  # fmt: skip
    shop, (scratch, tespec) = workshop(plan, tmp_path)
    ledger = Ledger(shop, [])
    config = ledger._config(scratch)
    assert Ledger(shop, [record_of(scratch, ledger)]).record(scratch)
    precise = config | {"optimisation": config["optimisation"] | {"precision": "bf16"}}
    assert Ledger(shop, [record_of(scratch, ledger, config=precise)]).record(scratch)
    longer = config | {"optimisation": config["optimisation"] | {"steps": 4}}
    others = {
        "code": {"code": "bbbbbbbb"},
        "data": {"data_fingerprint": "another"},
        "settings": {"config": longer},
        "accumulated": {"config": config | {"accumulate": 2}},
        "kind": {"kind": "probe"},
        "seed": {"seed": 1},
        "split": {"split": "val"},
        "method": {"method_name": "tespec"},
        "task": {"task": "dsec"},
        "architecture": {"arch": "feedforward"},
    }
    for changes in others.values():
        assert Ledger(shop, [record_of(scratch, ledger, **changes)]).record(scratch) is None
    by_other = Ledger(shop, [record_of(scratch, ledger, code="bbbbbbbb")])
    assert of_other_code(by_other, [scratch]) == (
        "records of other code do not count: 1 of bbbbbbbb; --accept-code HASH takes those of the same settings"
    )
    taking, _ = workshop(plan, tmp_path, accept_code=("bbbbbbbb",))
    assert Ledger(taking, by_other.records).record(scratch)
    # Weights of another seed or recipe.
    right = record_of(tespec, ledger)
    assert Ledger(shop, [right]).record(tespec)
    recipe = right["weights"]["recipe"]
    for changed in (recipe | {"seed": 1}, recipe | {"dataset": "gen1"}, {}):
        assert Ledger(shop, [record_of(tespec, ledger, weights={"recipe": changed})]).record(tespec) is None


def test_weights_of_other_data_are_not_a_job_s(tmp_path, monkeypatch):
    monkeypatch.setenv("TESPEC_CACHE", str(tmp_path))
    cells = Cells(methods=("tespec",), architectures=("recurrent",), tasks=("ddd17",))
    plan = Plan(name="a", title="a", world=World(size="tiny"), profile="tiny", cells=(cells,))
    shop, (job,) = workshop(plan, tmp_path)
    empty = Ledger(shop, [])
    recipe = record_of(job, empty)["weights"]["recipe"]
    monkeypatch.setattr(Ledger, "_fingerprint", lambda ledger, asked: asked.task)
    for fingerprint, counts in ((shop.before(job).task, True), ("of another world", False)):
        weights = {"recipe": recipe | {"data_fingerprint": fingerprint}}
        record = record_of(job, empty, weights=weights, data_fingerprint="ddd17")
        assert (Ledger(shop, [record]).record(job) is not None) == counts


def test_a_run_stays_done_where_its_pretraining_was_made_on_another_machine_and_is_made_again(tmp_path, monkeypatch):
    monkeypatch.setenv("TESPEC_CACHE", str(tmp_path))
    cells = Cells(methods=("tespec",), architectures=("recurrent",), tasks=("ddd17",))
    plan = Plan(name="a", title="a", world=World(size="tiny"), profile="tiny", cells=(cells,))
    shop, (job,) = workshop(plan, tmp_path)
    before, empty = shop.before(job), Ledger(shop, [])
    there = record_of(before, empty, arch="recurrent", weights={"sha256": "there"})
    fine_tuned = record_of(job, empty)
    fine_tuned["weights"]["sha256"] = "there"
    alone = Ledger(shop, [there, fine_tuned])
    assert alone.record(before) is None  # its weights would have to be made again, if a run needed them
    assert alone.record(job) is fine_tuned
    file = shop.runs / "here" / "backbone.safetensors"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"weights")
    here = there | {"name": "here", "weights": {"sha256": sha256_of(file)}}
    # Of one name, the newer takes the older one's place.
    for records in ([there, fine_tuned, here], [fine_tuned, here]):
        again = Ledger(shop, records)
        assert again.record(before) == here
        assert again.weights(job) == file
        assert again.record(job) is fine_tuned


@pytest.mark.parametrize("kind", ["cells", "probes", "references"])
def test_jobs_on_the_validation_split_are_others(tmp_path, monkeypatch, kind):
    monkeypatch.setenv("TESPEC_CACHE", str(tmp_path))
    if kind == "references":
        groups = [References(tasks=("ddd17",), split=split) for split in ("test", "val")]
    else:
        one = {"methods": ("scratch",), "architectures": ("recurrent",), "tasks": ("ddd17",)}
        groups = [Cells(**one, split=split) for split in ("test", "val")]
    plan = Plan(name="a", title="a", world=World(size="tiny"), profile="tiny", **{kind: groups})
    shop, jobs = workshop(plan, tmp_path)
    ledger = Ledger(shop, [])
    of_test, of_val = ([job for job in jobs if job.split == split] for split in ("test", "val"))
    assert len(of_test) == len(of_val) > 0
    assert len({job.name for job in jobs}) == len({(job.label, job.method) for job in jobs}) == len(jobs)
    for one, other in zip(of_test, of_val, strict=True):
        assert "--split" not in command(one, shop)
        assert "--split val" in " ".join(command(other, shop))
        records = [record_of(job, ledger) for job in (one, other)]
        assert records[0]["config"]["splits"].keys() == {"train", "test"}
        assert records[1]["config"]["splits"].keys() == {"train", "val"}
        for job, own in zip((one, other), records, strict=True):
            assert Ledger(shop, records).record(job) == own
            assert Ledger(shop, [each for each in records if each != own]).record(job) is None


def test_a_plan_is_scored_on_the_split_that_it_names(tmp_path, monkeypatch):
    monkeypatch.setenv("TESPEC_CACHE", str(tmp_path))
    shop, jobs = workshop(read_plan("small").model_copy(update={"split": "val"}), tmp_path)
    assert {job.split for job in jobs} == {"val"}
    assert {job.split for job in shop.with_pretrainings(jobs) if job.kind == PRETRAINING} == {"test"}
    Ledger(shop, []).require_splits(jobs)


def test_data_without_a_validation_split_is_refused_before_anything_runs(tmp_path, monkeypatch):
    monkeypatch.setattr("tespec.runs.data.given_data", lambda dataset: tmp_path)
    shop, jobs = workshop(read_plan("tables").model_copy(update={"split": "val"}), tmp_path)
    ledger = Ledger(shop, [])
    for task in ("ddd17", "dsec", "mvsec"):
        with pytest.raises(UserError, match=rf"plan tables, {task}: has no validation split; take recordings out of"):
            ledger.require_splits(select(jobs, [task]))
    ledger.require_splits(select(jobs, ["gen1", "1mpx"]))


def test_weights_that_are_given_decide(tmp_path, monkeypatch):
    monkeypatch.setenv("TESPEC_CACHE", str(tmp_path))
    file = tmp_path / "weights.safetensors"
    file.write_bytes(b"weights")
    plan = Plan(name="a", title="a", world=World(size="tiny"), profile="tiny", checkpoints={"tespec": file}, cells=(
        Cells(methods=("tespec",), architectures=("recurrent",), tasks=("ddd17",)),))  # fmt: skip
    shop, (job,) = workshop(plan, tmp_path)
    assert shop.before(job) is None
    assert command(job, shop)[9:11] == ["--checkpoint", str(file)]
    from tespec.weights.files import sha256_of

    ledger = Ledger(shop, [])
    assert Ledger(shop, [record_of(job, ledger, weights={"sha256": sha256_of(file)})]).record(job)
    assert Ledger(shop, [record_of(job, ledger, weights={"sha256": "ff"})]).record(job) is None


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


def test_a_pretraining_comes_before_what_waits_for_it(tmp_path):
    shop, jobs = workshop(read_plan("small"), tmp_path)
    ordered = in_order(shop.with_pretrainings(jobs), Ledger(shop, []))
    places = {job: place for place, job in enumerate(ordered)}
    waiting = [job for job in ordered if shop.before(job)]
    assert waiting
    assert all(places[shop.before(job)] < places[job] for job in waiting)


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


def test_jobs_are_computed_as_the_plan_is_told_and_accumulation_is_another_run(tmp_path):
    plain, jobs = workshop(read_plan("tiny"), tmp_path)
    shop, _ = workshop(read_plan("tiny"), tmp_path, accumulate=2, switches=("--device", "cpu", "--recompute"))
    ledger = Ledger(shop, [])
    for job in shop.with_pretrainings(jobs):
        given = " ".join(command(job, shop))
        assert " --accumulate 2 --device cpu --recompute --workers 0 " in given
        assert "--accumulate" not in " ".join(command(job, plain))
        assert ledger._config(job) == Ledger(plain, [])._config(job) | {"accumulate": 2}


def test_jobs_are_given_the_files_and_configs_of_one_s_own(tmp_path):
    shop, jobs = workshop(read_plan("tiny"), tmp_path, plugins=(tmp_path / "mine.py",), configs=(tmp_path,))
    for job in shop.with_pretrainings(jobs):
        assert f"--import {tmp_path / 'mine.py'} --configs {tmp_path}" in " ".join(command(job, shop))


def test_rates_follow_from_what_the_weights_were_made_of(tmp_path):
    plan = read_plan("medium").model_copy(update={"profile": "paper"})
    shop, _ = workshop(plan, tmp_path)
    ledger = Ledger(shop, [])

    def peak(method, *changes):
        settings = ledger.settings(Job(EVALUATION, method, "1mpx", "recurrent", 0, changes))
        return settings.optimisation.peak_lr

    assert (peak("tespec"), peak("ecddp"), peak("moby"), peak("scratch")) == (1e-4, 1e-4, 3.46e-4, 3.46e-4)
    assert peak("tespec", "dataset=gen1") == 3.46e-4


def test_what_was_measured_before_says_how_long_it_takes(tmp_path, monkeypatch):
    monkeypatch.setenv("TESPEC_CACHE", str(tmp_path))
    shop, _ = workshop(read_plan("small"), tmp_path)
    ledger = Ledger(shop, [])
    job = Job(EVALUATION, "scratch", "ddd17", "recurrent", 0)
    longer = replace(job, settings=(f"optimisation.steps={2 * ledger.steps(job)}",))
    stated = shop.plan.seconds["recurrent"]["ddd17"]
    assert (seconds_of(job, ledger), seconds_of(longer, ledger)) == (stated, 2 * stated)
    known = Ledger(shop, [record_of(job, ledger, resources={"peak_memory_bytes": 3 * 2**30})])
    assert seconds_of(job, known) == seconds_of(Job(EVALUATION, "moby", "ddd17", "recurrent", 1), known) == 60
    # What a run of the same method took on another task, or by another architecture, says nothing.
    for other in (replace(job, task="gen1"), replace(job, arch="feedforward")):
        assert seconds_of(other, known) == shop.plan.seconds[other.arch][other.task]
    prior, frame = (Job(REFERENCE, kind, "ddd17", "feedforward", 0) for kind in ("prior", "frame"))
    counted = Ledger(shop, [record_of(prior, ledger, kind=REFERENCE, method_name="prior")])
    assert (seconds_of(prior, counted), seconds_of(frame, counted)) == (60, shop.plan.seconds["reference"]["ddd17"])
    probe = replace(job, kind=PROBE)
    probed = Ledger(shop, [record_of(probe, ledger, kind=PROBE)])
    assert (seconds_of(probe, probed), seconds_of(replace(job, kind=PROBE), ledger)) == (60, None)
    # Of the record's minute, 40 s are training.
    measured = Ledger(shop, [record_of(job, ledger, time={"total": 60.0, "train": 40.0})])
    assert seconds_of(longer, measured) == 100
    said = forecast([job], known, 2)
    assert "about 0.0 h for 1 runs, 2 at once, up to 3.0 GiB of a process" in said
    tiny, tiny_jobs = workshop(read_plan("tiny"), tmp_path)
    assert forecast(tiny_jobs, Ledger(tiny, []), 1).startswith("no forecast")


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


@pytest.mark.skipif(not (REPOSITORY / ".git").exists(), reason="not a git checkout")
@pytest.mark.parametrize("name", names("plans"))
def test_no_plan_writes_over_a_file_that_git_tracks(name):
    plan = read_plan(name)
    folder = RESULTS.parent / (plan.results or RESULTS.name)
    asked = ["git", "-C", str(REPOSITORY), "ls-files", str(folder)]
    tracked = set(subprocess.run(asked, capture_output=True, text=True, check=True).stdout.splitlines())
    place = folder.relative_to(REPOSITORY).as_posix()
    # Its records end in the hash of this code, and it writes no tables but those it shows.
    assert not [
        path for path in tracked if path.startswith(f"{place}/runs/") and path.endswith(f"{package_code()}.json")
    ]
    assert not [path for path in tracked if plan.show and path.startswith(f"{place}/tables/{plan.show}")]


ONE = {"methods": ("scratch",), "architectures": ("recurrent",), "tasks": ("ddd17",)}
LONGER = ("optimisation.steps=4",)


def test_groups_have_settings_and_seeds_of_their_own(tmp_path, monkeypatch):
    monkeypatch.setenv("TESPEC_CACHE", str(tmp_path))
    groups = (Cells(**ONE), Cells(**ONE, set=LONGER, seeds=(1, 2)))
    plan = Plan(name="a", title="a", world=World(size="tiny"), profile="tiny", cells=groups)
    shop, jobs = workshop(plan, tmp_path)
    assert [(job.seed, job.settings) for job in jobs] == [(0, ()), (1, LONGER), (2, LONGER)]
    assert jobs[1].name == "evaluation-scratch-ddd17-recurrent-optimisation.steps=4-s1"
    assert "--set optimisation.steps=4" in " ".join(command(jobs[1], shop))
    assert "--set" not in command(jobs[0], shop)
    ledger = Ledger(shop, [])
    assert [ledger.steps(job) for job in jobs[1:]] == [4, 4]
    one, other = record_of(jobs[0], ledger, seed=1), record_of(jobs[1], ledger)
    assert Ledger(shop, [one, other]).record(jobs[1]) == other
    assert Ledger(shop, [one]).record(jobs[1]) is None
    # What the command line says of seeds is said of all.
    assert {job.seed for job in workshop(plan.with_seeds((7,)), tmp_path)[1]} == {7}


def test_pretrainings_references_and_ablations_have_seeds_as_well(tmp_path, monkeypatch):
    monkeypatch.setenv("TESPEC_CACHE", str(tmp_path))
    own = {
        "references": (References(tasks=("ddd17",), seeds=(3, 4)),),
        "pretrainings": (Pretrainings(methods=("tespec",), seeds=(5,)),),
        "ablations": ("target_ddd17", Ablations(tables=("masking",), task="ddd17", seeds=(6,))),
    }
    _, jobs = workshop(Plan(name="a", title="a", world=World(size="tiny"), profile="tiny", **own), tmp_path)
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
    plan = Plan(
        name="a",
        title="a",
        world=World(size="tiny"),
        profile="tiny",
        ablations=({"tables": ["masking"], "task": "mvsec"},),
    )
    with pytest.raises(UserError, match="plan a, ablation masking on mvsec: stands in no table; its numbers are those"):
        workshop(plan, tmp_path)


def test_a_group_s_changes_to_its_pretrainings_are_of_them_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("TESPEC_CACHE", str(tmp_path))
    cells = Cells(**(ONE | {"methods": ("tespec",)}), set=(*LONGER, "pretraining.batch_size=3"))
    shop, (job,) = workshop(
        Plan(name="a", title="a", world=World(size="tiny"), profile="tiny", cells=(cells,)), tmp_path
    )
    assert (job.settings, job.changes) == (LONGER, ("batch_size=3",))
    assert shop.before(job).changes == ("batch_size=3",)
    assert "--set optimisation.steps=4 --set pretraining.batch_size=3" in " ".join(command(job, shop))


def test_all_seeds_start_from_one_pretraining_where_a_plan_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("TESPEC_CACHE", str(tmp_path))
    cells = Cells(**(ONE | {"methods": ("tespec",)}))
    plan = Plan(
        name="a", title="a", world=World(size="tiny"), profile="tiny", cells=(cells,), seeds=(3, 4), pretraining_seed=3
    )
    shop, (same, other) = workshop(plan, tmp_path)
    assert [shop.before(same).seed, shop.before(other).seed] == [3, 3]
    assert len(shop.with_pretrainings([same, other])) == 3
    assert "--pretraining-seed" not in command(same, shop)
    given = command(other, shop)
    assert [given[given.index(name) + 1] for name in ("--pretraining-seed", "--seed")] == ["3", "4"]
    record = record_of(other, Ledger(shop, []))
    assert Ledger(shop, [record]).record(other) is record
    own, _ = workshop(plan.model_copy(update={"pretraining_seed": None}), tmp_path)
    assert Ledger(own, [record]).record(other) is None


def started(tmp_path, **changes):
    """The workshop and the only job of a plan whose cell starts from a network of another world."""
    other = Start(world=World(size="tiny", seed=1), set=LONGER)
    cells = Cells(**(ONE | {"methods": ("labels",), "start": other} | changes))
    plan = Plan(name="a", title="a", world=World(size="tiny"), profile="tiny", set=("batch_size=3",), cells=(cells,))
    shop, (job,) = workshop(plan, tmp_path)
    return shop, job


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


def test_a_pretraining_for_its_own_sake_is_done_by_its_record(tmp_path, monkeypatch):
    monkeypatch.setenv("TESPEC_CACHE", str(tmp_path))
    own = {"cells": (Cells(**(ONE | {"methods": ("tespec",)})),), "pretrainings": (Pretrainings(methods=("tespec",)),)}
    shop, jobs = workshop(Plan(name="a", title="a", world=World(size="tiny"), profile="tiny", **own), tmp_path)
    (cell,), (made,) = ([job for job in jobs if job.kind == kind] for kind in (EVALUATION, PRETRAINING))
    assert shop.before(cell) == made
    ledger = Ledger(shop, [record_of(made, Ledger(shop, []), arch="recurrent")])
    assert states_of([made], ledger) == {made: "done"}
    # Its weights are not here, and a run that is missing needs them.
    assert states_of([made, cell], ledger) == {made: "missing", cell: "missing"}


def test_a_training_for_both_splits_is_counted_once(tmp_path, monkeypatch):
    monkeypatch.setenv("TESPEC_CACHE", str(tmp_path))
    shop, _ = workshop(read_plan("small"), tmp_path)
    test = Job(EVALUATION, "scratch", "ddd17", "recurrent", 0)
    both = [test, replace(test, split="val")]
    like = record_of(replace(test, seed=1), Ledger(shop, []), time={"total": 3600.0, "train": 2880.0})
    ledger = Ledger(shop, [like])
    assert "about 1.0 h for 1 runs" in forecast(both[:1], ledger, 1)
    assert "about 1.2 h for 2 runs" in forecast(both, ledger, 1)
    assert in_order(both[::-1], ledger) == both  # what only evaluates is no long run
    # Where the other split's network lies on this machine.
    (shop.runs / like["name"]).mkdir(parents=True)
    (shop.runs / like["name"] / "model.safetensors").touch()
    assert "about 0.2 h for 1 runs" in forecast([replace(both[1], seed=1)], ledger, 1)


def test_a_start_is_done_where_its_network_is_there(tmp_path, monkeypatch):
    monkeypatch.setenv("TESPEC_CACHE", str(tmp_path))
    shop, job = started(tmp_path)
    before, empty = shop.before(job), Ledger(shop, [])
    made = record_of(before, empty)
    gone = Ledger(shop, [made])
    assert gone.record(before) is None
    assert gone.weights(job) is None
    assert gone.lost_weights(before)
    assert not empty.lost_weights(before)
    file = shop.runs / made["name"] / "model.safetensors"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"weights")
    there = Ledger(shop, [made])
    assert there.record(before) == made
    assert there.weights(job) == file
    assert not there.lost_weights(before)
    # A cell's record is of a network that was trained in the same way, here or elsewhere.
    alone = record_of(job, empty)
    assert Ledger(shop, [made, alone]).record(job) == alone
    assert Ledger(shop, [alone]).record(job) == alone
    recipe = alone["weights"]["recipe"]
    for other in (recipe | {"seed": 1}, recipe | {"batch_size": 4}, {}):
        assert Ledger(shop, [record_of(job, empty, weights={"recipe": other})]).record(job) is None


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
        workshop(Plan(**({"name": "a", "title": "a", "world": World(size="tiny"), "cells": (cells,)} | plan)), tmp_path)


MISTAKES = [
    ("cells: [{metods: [tespec]}]", r"cells.0.metods: no such setting; did you mean 'methods'\?"),
    ("seeds: [a]", "seeds.0: "),
    ("seeds: []", "seeds: "),
    ("world: {seed: 0}", "world.size: Field required"),
    ("cells: [{seeds: []}]", "cells.0.seeds: "),
    ("cells: [{start: {seed: 1}}]", "cells.0.start.seed: no such setting; it belongs elsewhere in a plan"),
    ("cells: [{start: {set: []}}]", "cells.0.start.world: Field required"),
    ("ablations: [{tabels: [masking]}]", "no such setting; did you mean 'tables'"),
    ("[1]", "holds no settings by name"),
    ("a: [", "not a readable YAML file"),
]


@pytest.mark.parametrize(("text", "message"), MISTAKES)
def test_a_plan_that_is_not_as_it_has_to_be_is_named(tmp_path, text, message):
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    with pytest.raises(UserError, match=message):
        read_plan(str(file))


def test_an_unknown_plan_is_answered_with_the_nearest():
    with pytest.raises(UserError, match="plan smal: no such plan; did you mean 'small'"):
        read_plan("smal")
    with pytest.raises(
        UserError, match="plan huge: no such plan; choose from ablations, controls, curves, demo, medium, rates, small"
    ):
        read_plan("huge")


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
        workshop(Plan(name="a", title="a", world=World(size="tiny"), cells=(cells,)), tmp_path)

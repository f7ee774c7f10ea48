"""Which jobs a record is of, in which order they run and how long they take."""

from __future__ import annotations

from dataclasses import replace

import pytest
from planned import LONGER, ONE, record_of, started, tiny_plan, workshop

from tespec.core.config import names
from tespec.core.errors import UserError
from tespec.plan.files import Cells, Pretrainings, References, read_plan
from tespec.plan.jobs import EVALUATION, PRETRAINING, PROBE, REFERENCE, Job, command, select
from tespec.plan.states import (
    Ledger,
    forecast,
    in_order,
    of_other_code,
    of_worlds_not_made,
    seconds_of,
    states_of,
)
from tespec.weights.files import sha256_of

CLOSED = [name for name in names("plans") if read_plan(name).world and read_plan(name).cells]


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
    plan = tiny_plan(cells=(
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
        "ignored: 1 record of code bbbbbbbb; --accept-code HASH takes those of the same settings"
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
    plan = tiny_plan(cells=(cells,))
    shop, (job,) = workshop(plan, tmp_path)
    empty = Ledger(shop, [])
    recipe = record_of(job, empty)["weights"]["recipe"]
    monkeypatch.setattr(Ledger, "_fingerprint", lambda ledger, asked: asked.task)
    for fingerprint, counts in ((shop.before(job).task, True), ("of another world", False)):
        weights = {"recipe": recipe | {"data_fingerprint": fingerprint}}
        record = record_of(job, empty, weights=weights, data_fingerprint="ddd17")
        assert (Ledger(shop, [record]).record(job) is not None) == counts


def test_weights_that_other_code_made_are_not_a_job_s(tmp_path):
    cells = Cells(**(ONE | {"methods": ("tespec",)}))
    shop, (job,) = workshop(tiny_plan(cells=(cells,)), tmp_path)
    empty = Ledger(shop, [])
    recipe = shop.recipe("tespec", "ddd17") | {"seed": 0}
    tuned = record_of(job, empty, weights={"sha256": "aa", "recipe": recipe})
    for code, counts in ((tuned["code"].rpartition("+")[2], True), ("bbbbbbbb", False)):
        made = record_of(shop.before(job), empty, arch="recurrent", weights={"sha256": "aa"}, code=code)
        assert (Ledger(shop, [made, tuned]).record(job) is not None) == counts
        accepting = replace(shop, accept_code=("bbbbbbbb",))
        assert Ledger(accepting, [made, tuned]).record(job) is not None
    # Weights of which nothing else is known, as of another folder.
    assert Ledger(shop, [tuned]).record(job) is not None


def test_records_of_a_world_that_is_not_made_are_named_with_what_makes_it(tmp_path, monkeypatch):
    monkeypatch.setenv("TESPEC_CACHE", str(tmp_path / "cache"))
    shop, (job,) = workshop(tiny_plan(cells=(Cells(**ONE),)), tmp_path)
    there = record_of(job, Ledger(shop, []), data_fingerprint="of a world")
    ledger = Ledger(shop, [there])
    assert ledger.record(job) is None
    (line,) = of_worlds_not_made(ledger, [job])
    assert "the records of 1 runs" in line
    assert line.endswith("python -m tespec.sample --size tiny --seed 0 --datasets ddd17")
    other = record_of(job, ledger, data_fingerprint="of a world", code="bbbbbbbb")
    assert of_worlds_not_made(Ledger(shop, [other]), [job]) == []
    shop.data_of(job).root.mkdir(parents=True)
    assert of_worlds_not_made(ledger, [job]) == []


def test_a_run_stays_done_where_its_pretraining_was_made_on_another_machine_and_is_made_again(tmp_path, monkeypatch):
    monkeypatch.setenv("TESPEC_CACHE", str(tmp_path))
    cells = Cells(methods=("tespec",), architectures=("recurrent",), tasks=("ddd17",))
    plan = tiny_plan(cells=(cells,))
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
    plan = tiny_plan(**{kind: groups})
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
    plan = tiny_plan(checkpoints={"tespec": file}, cells=(
        Cells(methods=("tespec",), architectures=("recurrent",), tasks=("ddd17",)),))  # fmt: skip
    shop, (job,) = workshop(plan, tmp_path)
    assert shop.before(job) is None
    assert command(job, shop)[9:11] == ["--checkpoint", str(file)]
    ledger = Ledger(shop, [])
    assert Ledger(shop, [record_of(job, ledger, weights={"sha256": sha256_of(file)})]).record(job)
    assert Ledger(shop, [record_of(job, ledger, weights={"sha256": "ff"})]).record(job) is None


def test_a_pretraining_comes_before_what_waits_for_it(tmp_path):
    shop, jobs = workshop(read_plan("small"), tmp_path)
    ordered = in_order(shop.with_pretrainings(jobs), Ledger(shop, []))
    places = {job: place for place, job in enumerate(ordered)}
    waiting = [job for job in ordered if shop.before(job)]
    assert waiting
    assert all(places[shop.before(job)] < places[job] for job in waiting)


def test_jobs_are_computed_as_the_plan_is_told_and_accumulation_is_another_run(tmp_path):
    plain, jobs = workshop(read_plan("tiny"), tmp_path)
    shop, _ = workshop(read_plan("tiny"), tmp_path, accumulate=2, switches=("--device", "cpu", "--recompute"))
    ledger = Ledger(shop, [])
    for job in shop.with_pretrainings(jobs):
        given = " ".join(command(job, shop))
        assert " --accumulate 2 --device cpu --recompute --workers 0 " in given
        assert "--accumulate" not in " ".join(command(job, plain))
        assert ledger._config(job) == Ledger(plain, [])._config(job) | {"accumulate": 2}


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
    assert "estimated 1 min for 1 run, 2 at once, up to 3.0 GiB of memory of a process" in said
    tiny, tiny_jobs = workshop(read_plan("tiny"), tmp_path)
    assert forecast(tiny_jobs, Ledger(tiny, []), 1).startswith("no forecast")


def test_groups_have_settings_and_seeds_of_their_own(tmp_path, monkeypatch):
    monkeypatch.setenv("TESPEC_CACHE", str(tmp_path))
    groups = (Cells(**ONE), Cells(**ONE, set=LONGER, seeds=(1, 2)))
    plan = tiny_plan(cells=groups)
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


def test_all_seeds_start_from_one_pretraining_where_a_plan_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("TESPEC_CACHE", str(tmp_path))
    cells = Cells(**(ONE | {"methods": ("tespec",)}))
    plan = tiny_plan(cells=(cells,), seeds=(3, 4), pretraining_seed=3)
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


def test_a_pretraining_for_its_own_sake_is_done_by_its_record(tmp_path, monkeypatch):
    monkeypatch.setenv("TESPEC_CACHE", str(tmp_path))
    own = {"cells": (Cells(**(ONE | {"methods": ("tespec",)})),), "pretrainings": (Pretrainings(methods=("tespec",)),)}
    shop, jobs = workshop(tiny_plan(**own), tmp_path)
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
    assert "estimated 1.0 h for 1 run," in forecast(both[:1], ledger, 1)
    assert "estimated 1.2 h for 2 runs" in forecast(both, ledger, 1)
    assert in_order(both[::-1], ledger) == both  # what only evaluates is no long run
    # Where the other split's network lies on this machine.
    (shop.runs / like["name"]).mkdir(parents=True)
    (shop.runs / like["name"] / "model.safetensors").touch()
    assert "estimated 12 min for 1 run," in forecast([replace(both[1], seed=1)], ledger, 1)


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

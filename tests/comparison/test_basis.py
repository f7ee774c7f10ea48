from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tespec.comparison.basis import OF_THE_NETWORK, average, bases, is_default, is_older
from tespec.comparison.records import Record
from tespec.comparison.side_by_side import basis_notes
from tespec.core.config import as_facts, finetuning_settings, names, pretraining_settings

Make = Callable[..., Record]


def test_average_is_numpys_with_sample_deviation() -> None:
    values = [40.1, 43.7, 39.2]
    found = average(values)
    assert found is not None
    assert found.value == pytest.approx(np.mean(values))
    assert found.deviation == pytest.approx(np.std(values, ddof=1))
    assert found.runs == 3


def test_one_run_has_no_deviation_and_a_lacking_one_no_average() -> None:
    one = average([40.0])
    assert one is not None
    assert one.deviation is None
    assert average([40.0, None]) is None
    assert average([]) is None


@pytest.mark.parametrize(
    "change",
    [
        {"data": "ddd17"},
        {"profile": "paper"},
        {"data_fingerprint": "ba9876543210"},
        {"protocol": {"scores": "another definition", "events": "of the recurrent model"}},
        {"config": {"optimisation": {"steps": 151}, "arch": "recurrent"}},
        {"task": "dsec"},
        {"split": "val"},
    ],
)
def test_records_of_another_basis_are_never_put_together(record: Make, change: dict[str, Any]) -> None:
    split = {"split": change.get("split", "test")}
    found = bases(
        [record(), record(seed=1), record(seed=2, **{k: v for k, v in change.items() if k != "split"}) | split]
    )
    assert sorted(len(basis.records) for basis in found) == [1, 2]
    assert {basis.split for basis in found} == {"test", split["split"]}


def test_the_two_architectures_share_a_basis(record: Make) -> None:
    (basis,) = bases([record(), record(arch="feedforward")])
    assert len(basis.cells()) == 2


def test_architectures_part_when_one_was_run_with_two_windows(record: Make) -> None:
    config = dict(record(arch="feedforward")["config"]) | {"window_ms": 50.0}
    found = bases([record(), record(arch="feedforward"), record(arch="feedforward", config=config)])
    assert [len(basis.records) for basis in found] == [1, 1, 1]
    assert any("window_ms = 50.0" in basis.differs for basis in found)


def test_networks_of_other_widths_share_a_basis_until_one_has_two(record: Make) -> None:
    def of(backbone: str, width: str, seed: int = 0) -> Record:
        method = {"title": backbone, "backbone": backbone}
        return record(backbone, seed=seed, method=method, config=record()["config"] | {"width": width})

    swin, resnet, wide = of("Swin-T/7", "micro"), of("ResNet50", "resnet-micro"), of("Swin-T/7", "tiny", seed=1)
    (basis,) = bases([swin, resnet])
    assert len(basis.cells()) == 2
    assert [len(basis.records) for basis in bases([swin, resnet, wide])] == [1, 1, 1]


def test_the_difference_between_bases_is_named(record: Make) -> None:
    config = dict(record()["config"]) | {"optimisation": {"steps": 300}}
    found = bases([record(), record(arch="feedforward"), record(config=config)])
    assert sorted(basis.differs for basis in found) == ["optimisation.steps = 150", "optimisation.steps = 300"]


def test_a_seed_counts_once_and_the_newest_stands(record: Make) -> None:
    old, new = (record(weights={"sha256": sha256}, miou=miou) for sha256, miou in (("aa", 40.0), ("bb", 42.0)))
    old["written"], new["written"] = "2025-01-01T00:00:00+00:00", "2025-01-02T00:00:00+00:00"
    (basis,) = bases([new, old])
    assert basis.records == (new,)
    assert basis.superseded == (old,)


def test_another_backbone_is_another_row(record: Make) -> None:
    methods = [{"title": "ECDDP", "backbone": backbone} for backbone in ("ResNet50", "Swin-T/7")]
    (basis,) = bases([record("ecddp", method=method) for method in methods])
    assert len(basis.cells()) == 2
    assert basis.superseded == ()


def test_what_is_measured_beside_the_scores_divides_no_basis(record: Make) -> None:
    first = record()
    second = record("moby") | {"protocol": {**first["protocol"], "stages": "on some frames"}}
    assert len(bases([first, second])) == 1
    third = record("ecddp") | {"protocol": {**first["protocol"], "scores": "on some frames"}}
    assert len(bases([first, second, third])) == 2


def test_references_share_the_basis_of_the_methods(record: Make) -> None:
    own = {"config": record(arch="feedforward")["config"] | {"input": "frame"}, "arch": "feedforward"}
    seen = record("frame", kind="reference", protocol=record(arch="feedforward")["protocol"] | {"input": "x"}, **own)
    (basis,) = bases([record(), seen])
    assert basis.records == (record() | {"written": basis.records[0]["written"]}, seen)
    (alone, other) = bases([record(), seen | {"data_fingerprint": "another"}])
    assert len(alone.records) == len(other.records) == 1


def test_real_data_comes_before_the_sample_world(record: Make) -> None:
    found = bases([record(), record(data="ddd17", profile="paper")])
    assert [basis.data for basis in found] == ["ddd17", "sample"]


@pytest.mark.parametrize("task", names("tasks"))
def test_what_architectures_may_differ_in_is_what_the_configs_set_apart(task: str) -> None:
    recurrent, feedforward = (
        as_facts(finetuning_settings(task, arch, "paper")) for arch in ("recurrent", "feedforward")
    )
    differing = {key for key in recurrent if recurrent[key] != feedforward[key]}
    assert differing <= set(OF_THE_NETWORK["config"])


def pretrained(make, miou, changes=(), **fields):
    """A record whose weights come from TESPEC's recipe with changes."""
    recipe = as_facts(pretraining_settings("tespec", "sample", changes))
    weights = {"source": "backbone.safetensors", "sha256": str(miou), "start_sha256": str(miou), "recipe": recipe}
    return make("tespec", miou=miou, weights=weights, **fields)


def test_an_ablations_runs_do_not_stand_for_the_method(record):
    plain = [pretrained(record, 41.0, seed=0), pretrained(record, 42.0, seed=1)]
    cpc = pretrained(record, 99.0, ["objective=cpc"], seed=0) | {"written": "2099-01-01"}
    (basis,) = bases([*plain, cpc])
    assert sorted(each["metrics"]["miou"] for each in basis.records) == [41.0, 42.0]
    assert [each["metrics"]["miou"] for each in basis.variants] == [99.0]
    assert any("1 run after other pre-trainings left out" in note for note in basis_notes(basis, "measured", "DDD17"))


def test_changed_settings_alone_are_shown_and_said(record):
    (basis,) = bases([pretrained(record, 41.0, ["optimisation.steps=50"])])
    assert [each["metrics"]["miou"] for each in basis.records] == [41.0]
    assert any("a pre-training with changed settings" in note for note in basis_notes(basis, "measured", "DDD17"))


def test_seeds_of_different_pretrainings_are_never_averaged(record):
    short = pretrained(record, 41.0, ["optimisation.steps=50"], seed=0) | {"written": "2001-01-01"}
    long = pretrained(record, 45.0, ["optimisation.steps=90"], seed=1)
    (basis,) = bases([short, long])
    assert [each["metrics"]["miou"] for each in basis.records] == [45.0]


def test_a_setting_that_came_later_changes_no_older_recipe(record):
    made = pretrained(record, 41.0)
    del made["weights"]["recipe"]["optimisation"]["non_finite"]
    made["weights"]["recipe"]["optimisation"]["precision"] = "fp32"
    assert is_default(made)
    made["weights"]["recipe"]["optimisation"]["steps"] = 3
    assert not is_default(made)


def test_several_recipes_of_an_older_version_give_no_number(record: Make) -> None:
    def older(miou: float, seed: int, steps: int) -> Record:
        made = pretrained(record, miou, seed=seed)
        made["weights"]["recipe"] = {"name": "tespec", "random_share": 0.0, "seed": seed, "steps": steps}
        return made

    plain = record("scratch")
    (alone,) = bases([plain, older(50.0, 0, 400), older(51.0, 1, 400)])
    assert sorted(len(members) for members in alone.cells().values()) == [1, 2]
    (several,) = bases([plain, older(50.0, 0, 400), older(51.0, 1, 800)])
    assert [record["method_name"] for record in several.records] == ["scratch"]
    assert any("cannot be told apart" in note for note in basis_notes(several, "measured", "DDD17"))
    assert not bases([older(50.0, 0, 400), older(51.0, 1, 800)])


def test_each_architecture_may_have_a_budget_of_its_own(record: Make) -> None:
    longer = dict(record()["config"]) | {"optimisation": {"steps": 300}}
    (one,) = bases([record(config=longer), record("tespec", config=longer), record(arch="feedforward")])
    assert len(one.records) == 3
    # As soon as one has two, those of the same budget stay together.
    found = bases([record(config=longer), record(), record(arch="feedforward")])
    assert sorted(len(basis.records) for basis in found) == [1, 2]


def on_1mpx(make: Make, name: str, peak: float, **changes: Any) -> Record:
    """A fine-tuning by the paper's rule: another peak rate after weights of 1Mpx."""
    config = as_facts(finetuning_settings("1mpx", "recurrent", "paper"))
    config |= {"optimisation": config["optimisation"] | {"peak_lr": peak}}
    where = {"task": "1mpx", "profile": "paper", "data": "1mpx", "config": config, "metrics": {"map": 40.0}}
    return make(name, **(where | changes))


def test_a_rate_that_follows_from_the_weights_divides_no_column(record: Make) -> None:
    usual, after = 3.46e-4, 1e-4
    assert as_facts(finetuning_settings("1mpx", "recurrent", "paper"))["optimisation"]["peak_lr"] == usual
    recipe = as_facts(pretraining_settings("tespec", "paper"))
    made_here = {"weights": {"source": "b", "sha256": "1", "recipe": recipe}}
    downloaded = {"method": {"title": "T", "backbone": "Swin-T/7", "pretraining_data": "1Mpx"}}
    others = [on_1mpx(record, "scratch", usual), on_1mpx(record, "imagenet", usual)]
    for own in (made_here, downloaded):
        (basis,) = bases([*others, on_1mpx(record, "tespec", after, **own)])
        assert len(basis.cells()) == 3
        assert any("at 0.0001" in note for note in basis_notes(basis, "measured", "1Mpx"))
    # Where the rule's rate is that of all others there is nothing to say.
    same = on_1mpx(record, "tespec", usual, **made_here)
    same["config"]["peak_lr_after"] = {"1Mpx": usual}
    (basis,) = bases([same])
    assert not any("peak rates" in note for note in basis_notes(basis, "measured", "1Mpx"))
    # A rate that was set by hand, and one that is not the rule's, are other settings.
    assert len(bases([*others, on_1mpx(record, "mine", after)])) == 2
    assert len(bases([*others, on_1mpx(record, "tespec", 2e-4, **made_here)])) == 2


def test_seeds_by_code_of_a_plug_in_that_was_changed_are_not_averaged(record: Make) -> None:
    def by(code: str, seed: int, miou: float, written: str) -> Record:
        made = record("mine", seed=seed, miou=miou)
        assert made["code"].endswith(made["id"].partition("-")[2])
        return made | {
            "id": f"{made['id'].partition('-')[0]}-{code}",
            "written": written,
            "name": f"{made['name']}{code}",
        }

    old = [by("aaaaaaaa", seed, 50.0, "2026-01-01") for seed in range(3)]
    (basis,) = bases([record(), *old, by("bbbbbbbb", 0, 20.0, "2026-02-01")])
    assert [each["metrics"]["miou"] for each in basis.records if each["method_name"] == "mine"] == [20.0]
    assert len(basis.of_other_code) == 3
    assert any("3 runs of a row by older code left out" in note for note in basis_notes(basis, "measured", "DDD17"))


def test_weights_of_other_data_share_no_cell(record: Make) -> None:
    recipe = as_facts(pretraining_settings("tespec", "sample"))

    def after(data: str, seed: int, written: str) -> Record:
        facts = recipe | {"data": data, "data_fingerprint": data * 2, "seed": seed}
        made = record("tespec", seed=seed, weights={"source": "b", "sha256": f"{data}{seed}", "recipe": facts})
        return made | {"written": written}

    (same,) = bases([after("1mpx", seed, "2026-01-01") for seed in range(2)])
    assert (len(same.records), same.variants) == (2, ())
    (basis,) = bases([after("sample", 0, "2026-01-01"), after("1mpx", 1, "2026-02-01")])
    assert [each["seed"] for each in basis.records] == [1]
    assert len(basis.variants) == 1


def test_what_a_network_with_a_head_was_trained_by_is_no_older_recipe(record: Make) -> None:
    def start(steps: int, seed: int, written: str) -> Record:
        facts = {"head": {"channels": 8}, "optimisation": {"steps": steps}, "seed": 0}
        made = record("labels", seed=seed, weights={"source": "m", "sha256": str(steps), "recipe": facts})
        return made | {"written": written}

    (basis,) = bases([start(800, 0, "2026-01-01"), start(1600, 0, "2026-02-01"), start(1600, 1, "2026-02-01")])
    assert not any(map(is_older, (*basis.records, *basis.variants)))
    assert len(basis.cells()[("labels", "recurrent", "Swin-T/7")]) == 2
    assert not is_older(record(weights={"source": "random initialisation", "sha256": "", "recipe": {}}))

"""The controls, on made-up records: each passes, fails, and is not measured; how often noise fails the negative one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from tespec.comparison.contrasts import Part, decide
from tespec.comparison.controls import RESAMPLINGS, _halves, controls, controls_table
from tespec.comparison.records import Record
from tespec.comparison.render import render_csv, render_html, render_latex, render_long_csv, render_markdown
from tespec.comparison.statistics import Estimate

Make = Callable[..., Record]


def measured(
    make: Make, name: str, values: Sequence[float], arch: str = "recurrent", **changes: object
) -> list[Record]:
    return [make(name, arch, seed=seed, miou=value, split="val", **changes) for seed, value in enumerate(values)]


def floor(make: Make, miou: float = 20.0, **changes: object) -> Record:
    return make("prior", "feedforward", kind="reference", miou=miou, split="val", **changes)


def with_memory(make: Make, standing: Sequence[float], zeroed: Sequence[float], **changes: object) -> list[Record]:
    """Networks without pre-training that score `standing` where the camera stands, and `zeroed` without their state."""
    return [
        make(
            "scratch",
            seed=seed,
            split="val",
            miou=40.0 + seed,
            groups={
                "standing": {"miou": own},
                "state zeroed": {"miou": other + 1},
                "standing, state zeroed": {"miou": other},
            },
            **changes,
        )
        for seed, (own, other) in enumerate(zip(standing, zeroed, strict=True))
    ]


def of(records: Sequence[Record], kind: str) -> dict[str, tuple[bool | None, str]]:
    return {each.part.title: (each.passed, each.reason) for each in controls(records) if each.kind == kind}


SPREAD = (40.0, 41.0, 42.2)


@pytest.mark.parametrize(("gain", "passed"), [(6.0, True), (0.1, False), (-6.0, False)])
def test_the_control_of_pretraining_is_labels_over_none(record: Make, gain: float, passed: bool) -> None:
    records = [floor(record)]
    for arch in ("recurrent", "feedforward"):
        records += measured(record, "scratch", SPREAD, arch)
        records += measured(record, "labels", [40.9 + gain, 40.6 + gain, 42.6 + gain], arch)
    found = of(records, "pretraining")
    assert {title: each[0] for title, each in found.items()} == {
        "recurrent network": passed,
        "feedforward network": passed,
    }
    (control, *_) = (each for each in controls(records) if each.kind == "pretraining")
    assert control.part.estimate is not None
    assert control.part.estimate.effect == pytest.approx(gain + 0.3)
    assert control.part.seeds == 3


@pytest.mark.parametrize(("ranks", "passed"), [((20.0, 9.5, 31.0), True), ((20.0, 1.1, 31.0), False)])
def test_the_control_of_features_is_the_lowest_rank_of_the_last_stage(
    record: Make, ranks: Sequence[float], passed: bool
) -> None:
    stages = [{f"stage {number}": {"rank": 40.0 if number < 4 else rank} for number in range(1, 5)} for rank in ranks]
    records = [
        record("scratch", seed=seed, split="val", miou=40.0 + seed, groups=groups) for seed, groups in enumerate(stages)
    ]
    assert of(records, "features") == {"recurrent network": (passed, f"ranks from {min(ranks):.1f} to 31.0")}
    # What was pre-trained, or scored on other frames, is another matter.
    dead = {"stage 4": {"rank": 1.0}}
    others = [record("labels", split="val", groups=dead), record("scratch", "feedforward", split="test", groups=dead)]
    assert of([*records, *others], "features") == of(records, "features")


def test_what_was_not_measured_says_so(record: Make) -> None:
    only = [floor(record), *measured(record, "scratch", SPREAD)]
    assert of(only, "pretraining") == {"recurrent network": (None, "not measured: labels/recurrent")}
    assert of(only, "memory") == {
        "standing frames": (None, "not measured: state zeroed (evaluate_without_state: true)")
    }
    assert of(only, "negative")[next(iter(of(only, "negative")))] == (
        None,
        "no network without pre-training was trained with 8 seeds",
    )
    nothing = controls([])
    assert [each.kind for each in nothing] == ["pretraining", "memory", "negative", "features"]
    assert all(each.passed is None and each.task == "" for each in nothing)
    # Without the floor nothing can be decided, as on the page of claims.
    both = [*measured(record, "scratch", SPREAD), *measured(record, "labels", (50.0, 51.0, 52.4))]
    assert of(both, "pretraining")["recurrent network"] == (None, "floor not measured (run.py --reference prior)")


def test_at_the_floor_a_control_fails_and_says_why(record: Make) -> None:
    records = [floor(record, 60.0), *measured(record, "scratch", SPREAD), *measured(record, "labels", (50, 51, 52.4))]
    passed, reason = of(records, "pretraining")["recurrent network"]
    assert passed is False
    assert "is at the floor" in reason


def test_other_splits_take_no_part(record: Make) -> None:
    records = [floor(record), *measured(record, "scratch", SPREAD), *measured(record, "labels", (50.0, 51.0, 52.4))]
    assert all(each.passed is None for each in controls(records, "test"))


@pytest.mark.parametrize(("zeroed", "passed"), [(30.0, True), (39.9, False), (50.0, False)])
def test_the_control_of_memory_is_paired_by_network(record: Make, zeroed: float, passed: bool) -> None:
    # Networks differ by much more than their state does.
    own = (35.0, 40.0, 45.0)
    others = [zeroed - 40 + each + jitter for each, jitter in zip(own, (0.0, 0.4, -0.4), strict=True)]
    prior = floor(record, 10.0, groups={"standing": {"miou": 8.0}})
    records = [prior, *with_memory(record, own, others)]
    assert of(records, "memory")["standing frames"][0] is passed
    (control,) = (each for each in controls(records) if each.kind == "memory")
    assert control.part.estimate is not None
    assert control.part.estimate.effect == pytest.approx(40.0 - zeroed)
    assert control.part.estimate.freedom == 2


def test_without_standing_frames_all_of_them_count(record: Make) -> None:
    records = [floor(record)]
    for seed, each in enumerate(SPREAD):
        groups = {"state zeroed": {"miou": 30.0 + 0.9 * seed}}
        records.append(record("scratch", seed=seed, miou=each, groups=groups, split="val"))
    assert of(records, "memory")["all frames"][0] is True


def test_the_negative_control_looks_at_the_cell_with_most_seeds(record: Make) -> None:
    noise = np.random.default_rng(1).normal(40, 1, 9).tolist()
    records = [floor(record), *measured(record, "scratch", noise, "feedforward"), *measured(record, "scratch", SPREAD)]
    assert of(records, "negative") == {"feedforward network": (True, "undecided in 19 of 20")}
    # Without any spread nothing is tested.
    same = [floor(record), *measured(record, "scratch", [40.0] * 8)]
    assert of(same, "negative")["recurrent network"] == (None, "no variance over seeds")


def test_the_negative_control_fails_where_halves_are_told_apart_too_often(
    record: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    noise = np.random.default_rng(1).normal(40, 1, 8).tolist()
    records = [floor(record), *measured(record, "scratch", noise)]

    def seen(gains: Sequence[float], number: int) -> Part:
        return Part("halves", Estimate(5.0 if number < 2 else 0.0, 0.1, 6), 4)

    monkeypatch.setattr("tespec.comparison.controls._halves", seen)
    assert of(records, "negative")["recurrent network"] == (False, "undecided in 18 of 20")


@pytest.mark.parametrize("effect", [0.1, 10.0])
def test_noise_fails_the_negative_control_seldom_beside_other_controls(effect: float) -> None:
    page, rng, failed, decided = [[Part("another", Estimate(effect, 0.5, 8))]] * 4, np.random.default_rng(7), 0, 0
    for _ in range(60):
        gains = rng.normal(30, 1, 8).tolist()
        parts = [_halves(gains, number) for number in range(RESAMPLINGS)]
        verdicts = [decide([*page, [part]])[-1].verdict for part in parts]
        decided += RESAMPLINGS - verdicts.count("undecided")
        failed += RESAMPLINGS - verdicts.count("undecided") > 1
    assert failed <= 5
    assert decided <= 0.04 * 60 * RESAMPLINGS


def test_few_labels_are_no_basis_of_the_controls(record: Make) -> None:
    few = {"config": {"label_share": 0.05, "optimisation": {"steps": 150}, "arch": "recurrent", "window_ms": None}}
    records = [
        floor(record),
        *measured(record, "scratch", SPREAD),
        *measured(record, "labels", (50.0, 51.0, 52.4)),
        *measured(record, "scratch", (30.0, 31.0, 32.0), **few),
    ]
    records[-1]["written"] = "2999-01-01T00:00:00+00:00"
    assert of(records, "pretraining")["recurrent network"][0] is True


def test_the_table_says_what_follows(record: Make) -> None:
    noise = np.random.default_rng(1).normal(40, 1, 8).tolist()
    prior = floor(record, groups={"standing": {"miou": 20.0}})
    records = [prior, *with_memory(record, noise, [each + 5 + 0.1 * (each > 40) for each in noise])]
    records += measured(record, "labels", [each + 9 for each in reversed(noise)])
    table = controls_table(records)
    headings = [group.heading for group in table.groups]
    assert [heading.rpartition(". ")[2] for heading in headings] == [
        "passed 1", "failed 1", "passed 1", "not measured 1",
    ]  # fmt: skip
    assert any("it is not shown that recurrent networks use their state" in note for note in table.notes)
    assert not any("could not show a pre-training" in note for note in table.notes)
    assert table.notes[-1] == "Measured on the validation split."
    for render in (render_csv, render_html, render_latex, render_markdown):
        assert "of 20" in render(table)
    lines = render_long_csv(table).splitlines()
    assert lines[0].startswith("control,task,network_or_frames,metric,unit,effect,low_95,high_95,seeds,p,detectable")
    assert len(lines) == 5

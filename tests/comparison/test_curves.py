"""Learning curves and budgets, on made-up records."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable

import pytest

from tespec.comparison.curves import (
    budget,
    curves_table,
    leading,
    learning_curves,
    settings_of_curve,
    without_repeats,
)
from tespec.comparison.records import Record
from tespec.comparison.render import render_csv, render_long_csv, render_markdown
from tespec.pictures.learning_curves import draw_learning_curves

Make = Callable[..., Record]


def config(arch: str, steps: int, peak_lr: float = 3e-3, **changes: object) -> dict[str, object]:
    own = {"batch_size": 4, "segments": 4, "labels_per_chunk": 2, "window_ms": None, "protocol": {}}
    if arch == "feedforward":
        own |= {"batch_size": 8, "segments": 1, "window_ms": 100.0}
    return (
        {"arch": arch, "optimisation": {"steps": steps, "peak_lr": peak_lr, "warmup_steps": steps // 20}}
        | own
        | changes
    )


def curve(make: Make, scores: dict[int, tuple[float, ...]], arch: str = "recurrent", **changes: object) -> list[Record]:
    return [
        make("scratch", arch, seed=seed, miou=miou, config=config(arch, steps, **changes), split="val")
        for steps, each in scores.items()
        for seed, miou in enumerate(each)
    ]


SCORES = {200: (20.0, 22.0), 400: (25.0, 27.0), 800: (31.0, 33.0)}


def floor(make: Make, miou: float = 20.0) -> Record:
    return make("prior", "feedforward", kind="reference", miou=miou, split="val")


def test_a_curve_has_a_point_for_each_number_of_steps(record: Make) -> None:
    records = [floor(record), *curve(record, SCORES), *curve(record, {400: (30.0,), 200: (28.0,)}, "feedforward")]
    records += measured_otherwise(record)
    recurrent, feedforward = learning_curves(records)
    assert [point.steps for point in recurrent.points] == [200, 400, 800]
    assert [point.scores for point in recurrent.points] == [
        {"": each, "moving": each + 2, "standing": each - 5} for each in (21.0, 26.0, 32.0)
    ]
    # One variance for the curve: 2 at each point, of the mean of two 1.
    assert recurrent.points[0].errors[""] == pytest.approx(1.0)
    assert feedforward.points[0].errors[""] is None
    assert (recurrent.clips, recurrent.labels) == (4, 8)
    assert (feedforward.clips, feedforward.labels) == (8, 8)
    assert recurrent.floors == {"": 20.0, "moving": 22.0, "standing": 15.0}


def test_a_point_has_the_lowest_rank_of_its_seeds_where_all_say_it(record: Make) -> None:
    records = curve(record, {200: (20.0, 22.0), 400: (25.0, 27.0)})
    for each, rank in zip(records, (30.0, 1.2, 25.0), strict=False):
        each["groups"]["stage 4"] = {"rank": rank}
    (only,) = learning_curves(records)
    assert [point.rank for point in only.points] == [1.2, None]
    assert [row.cells[-1].text for row in curves_table(records).rows] == ["1.2", "-"]


def test_a_point_says_what_the_state_is_worth_where_all_of_its_seeds_do(record: Make) -> None:
    records = curve(record, {200: (20.0, 22.0), 400: (25.0, 27.0), 800: (31.0,)})
    # Standing frames score five less than all; the differences of both seeds are 1 and 3, then 2 and 2.
    for each, zeroed in zip(records, (14.0, 14.0, 18.0, 20.0, 21.0), strict=True):
        each["groups"]["standing, state zeroed"] = {"miou": zeroed}
    (found,) = learning_curves(records)
    # One variance for the curve: (2 + 0) / 2 over two degrees of freedom is 1.
    assert [point.memory for point in found.points] == [
        (2.0, pytest.approx(0.5**0.5)),
        (2.0, pytest.approx(0.5**0.5)),
        (5.0, pytest.approx(1.0)),
    ]
    assert "+2.000 ± 0.707" in render_markdown(curves_table(records))
    del records[0]["groups"]["standing, state zeroed"]
    (found,) = learning_curves(records)
    assert [point.memory for point in found.points] == [None, (2.0, 0.0), (5.0, 0.0)]
    (lone,) = learning_curves(records[-1:])
    assert lone.points[0].memory == (5.0, None)


def test_what_the_state_is_worth_is_an_error_saved_where_less_is_better(record: Make) -> None:
    groups = {"state zeroed": {"abs": 6.5}}
    made = record("scratch", task="mvsec", metrics={"abs": 6.0}, groups=groups, recordings={}, split="val",
                  config=config("recurrent", 200))  # fmt: skip
    (found,) = learning_curves([made])
    assert found.points[0].memory == (0.5, None)


def measured_otherwise(make: Make) -> list[Record]:
    """Records that are on no curve: of the test split, and of a pre-trained network."""
    return [
        make("scratch", miou=99.0, config=config("recurrent", 1600)),
        make("tespec", miou=99.0, config=config("recurrent", 1600), split="val"),
    ]


def test_rates_and_other_settings_are_curves_of_their_own(record: Make) -> None:
    records = [
        *curve(record, SCORES),
        *curve(record, SCORES, peak_lr=1e-3),
        *curve(record, SCORES, segments=8, deviations=["chunks of eight windows instead of four"]),
    ]
    found = learning_curves(records)
    assert [(each.peak_lr, each.settings) for each in found] == [
        (1e-3, ""),
        (3e-3, "segments = 4"),
        (3e-3, "segments = 8"),
    ]


def test_labels_of_boxes_come_less_often_than_windows(record: Make) -> None:
    sparse = {"protocol": {"frames": "rvt", "period_ms": 250}, "window_ms": 50.0, "labels_per_chunk": None}
    (found,) = learning_curves(curve(record, SCORES, **sparse))
    assert (found.clips, found.labels) == (4, 4)


@pytest.mark.parametrize(
    ("scores", "level", "least"),
    [
        (SCORES, 20.0, 400),
        (SCORES, 10.0, 200),
        (SCORES, 28.5, 800),
        (SCORES, 29.5, None),
        (SCORES, None, None),
        ({200: (30.0, 32.0), 400: (20.0, 22.0), 800: (31.0, 33.0)}, 20.0, 800),
        ({200: (30.0,), 400: (35.0,)}, 20.0, None),
    ],
)
def test_a_budget_is_clear_of_the_floor_by_three_standard_errors(
    record: Make, scores: dict[int, tuple[float, ...]], level: float | None, least: int | None
) -> None:
    (found,) = learning_curves(curve(record, scores))
    assert budget(found, level) == least


def test_an_error_has_to_fall_below_the_floor(record: Make) -> None:
    depth = {"task": "mvsec", "groups": {}, "recordings": {}, "split": "val"}
    records = [
        record("scratch", seed=seed, metrics={"abs": value}, config=config("recurrent", steps), **depth)
        for steps, values in {200: (9.0, 9.2), 400: (6.0, 6.2)}.items()
        for seed, value in enumerate(values)
    ]
    (found,) = learning_curves(records)
    assert budget(found, 8.0) == 400


def test_the_table_and_the_figure_show_each_curve(record: Make, tmp_path) -> None:
    records = [floor(record), *curve(record, SCORES), *curve(record, {200: (28.0,), 400: (30.0,)}, "feedforward")]
    table = curves_table(records)
    assert [group.heading for group in table.groups] == [
        "DDD17, recurrent, peak rate 0.003. all frames: floor 20.000, clear of it from 400 steps on; moving frames: "
        "floor 22.000, clear of it from 400 steps on; standing frames: floor 15.000, clear of it from 400 steps on",
        "DDD17, feedforward, peak rate 0.003. all frames: floor 20.000, which one seed cannot be clear of; "
        "moving frames: floor 22.000, which one seed cannot be clear of; "
        "standing frames: floor 15.000, which one seed cannot be clear of",
    ]
    assert "26.000 ± 1.000" in render_markdown(table)
    assert "3,200" in render_markdown(table)
    assert len(render_csv(table).splitlines()) == 6
    long = list(csv.DictReader(io.StringIO(render_long_csv(table))))
    assert len(long) == 5 * 3
    (point,) = (
        line for line in long if (line["arch"], line["steps"], line["frames"]) == ("recurrent", "400", "moving")
    )
    assert [point[name] for name in ("clips", "labels", "metric", "value", "standard_error", "seeds", "floor")] == [
        "1600", "3200", "miou", "28", "1", "2", "22"
    ]  # fmt: skip
    assert point["records"].split() == [
        each["name"]
        for each in records
        if (each["arch"], each["config"]["optimisation"]["steps"]) == ("recurrent", 400)
    ]
    one, other = tmp_path / "one.png", tmp_path / "other.png"
    draw_learning_curves(leading(learning_curves(records)), one)
    draw_learning_curves(leading(learning_curves(records[1:])), other)
    assert one.stat().st_size > 20_000
    assert one.read_bytes() != other.read_bytes()


def test_the_curve_with_the_best_last_score_leads(record: Make) -> None:
    higher = {steps: tuple(score + 1 for score in scores) for steps, scores in SCORES.items()}
    records = [
        *(dict(each, config=each["config"] | {"batch_size": 16}) for each in curve(record, higher)),
        *curve(record, SCORES),
        *curve(record, SCORES, "feedforward"),
    ]
    found = learning_curves(records)
    assert [(each.arch, each.clips == 16) for each in leading(found)] == [("recurrent", True), ("feedforward", False)]
    assert len(found) == 3


def test_a_curve_that_is_taken_leads_whatever_it_scores(record: Make) -> None:
    higher = {steps: tuple(score + 1 for score in scores) for steps, scores in SCORES.items()}
    found = learning_curves([*curve(record, higher, peak_lr=1e-3), *curve(record, SCORES)])
    (compared,) = curve(record, {800: (50.0,)}, splits={"train": ["a"], "test": ["c"]})
    compared["split"] = "test"
    tried = [*curve(record, higher, peak_lr=1e-3), *curve(record, SCORES, splits={"train": ["a"], "val": ["b"]})]
    (led,) = leading(found)
    (taken,) = leading(learning_curves(tried), {settings_of_curve(compared)})
    assert (led.peak_lr, taken.peak_lr) == (1e-3, 3e-3)


def test_of_a_curve_measured_by_two_versions_of_the_code_the_newest_stays(record: Make) -> None:
    by_old = curve(record, {400: (10.0, 11.0), 800: (11.0, 12.0)}, deviations=["in other words"])
    for each in by_old:
        each["code"], each["written"] = "0.1.0+old", "2026-01-01T00:00:00+00:00"
    by_new = curve(record, {800: (31.0, 33.0, 35.0)})
    lone = curve(record, {200: (5.0,)}, peak_lr=1e-3)
    kept = without_repeats([floor(record), *by_old, *by_new, *lone, *measured_otherwise(record)])
    assert [(each.peak_lr, [point.seeds for point in each.points]) for each in learning_curves(kept)] == [
        (1e-3, [1]),
        (3e-3, [3]),
    ]
    assert learning_curves(kept)[1].floors[""] == 20.0


def test_of_a_curve_measured_on_two_versions_of_the_data_the_newest_stays(record: Make) -> None:
    old, new = curve(record, {400: (10.0,)}), curve(record, {400: (30.0,)})
    for each, fingerprint, written in ((*old, "old", "2026-11-22"), (*new, "new", "2026-11-23")):
        each["data_fingerprint"], each["written"] = fingerprint, f"{written}T00:00:00+00:00"
    (found,) = learning_curves(without_repeats([*new, *old]))
    assert found.points[0].scores[""] == 30.0


def test_settings_that_tell_curves_apart_are_named_without_code(record: Make) -> None:
    smaller, larger = curve(record, SCORES, batch_size=4), curve(record, SCORES, batch_size=8)
    for each in smaller:
        each["code"] = "0.1.0+old"
    found = learning_curves([*smaller, *larger])
    assert sorted(each.settings for each in found) == ["batch_size = 4", "batch_size = 8"]

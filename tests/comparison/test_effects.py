from __future__ import annotations

import csv
import io
from collections.abc import Callable

import pytest

from tespec.comparison.effects import effect_of, effects_table, require_baseline
from tespec.comparison.published import read_published
from tespec.comparison.records import Record
from tespec.comparison.render import render_csv, render_long_csv, render_text
from tespec.core.errors import UserError

Make = Callable[..., Record]


def seeds_of(make: Make, name: str, values: list[float], **changes: object) -> list[Record]:
    return [make(name, seed=seed, miou=value, **changes) for seed, value in enumerate(values)]


def test_a_row_says_gain_and_intervals(record: Make) -> None:
    records = [*seeds_of(record, "scratch", [40.0, 41.0, 42.0]), *seeds_of(record, "tespec", [45.0, 46.1, 47.2])]
    table = effects_table("segmentation", records, "scratch")
    (row,) = table.rows
    texts = [cell.text for cell in row.cells]
    assert texts[:3] == ["TESPEC", "Yes", "+5.100"]
    assert texts[3:] == ["[+4.852, +5.348]", "-", "3", "1"]
    assert "recordings, not frames" in render_text(table)


def test_the_baseline_has_the_same_memory(record: Make) -> None:
    records = [
        *seeds_of(record, "scratch", [40.0, 41.0]),
        *seeds_of(record, "tespec", [45.0, 46.0], arch="feedforward"),
    ]
    (row,) = effects_table("segmentation", records, "scratch").rows
    assert [cell.text for cell in row.cells][2:] == ["-"] * 5


def test_a_smaller_error_is_a_gain(record: Make) -> None:
    ours = [record("tespec", seed=seed, metrics={"abs": 3.0 + seed}, recordings={}) for seed in range(2)]
    theirs = [record("scratch", seed=seed, metrics={"abs": 5.0 + seed}, recordings={}) for seed in range(2)]
    found = effect_of(ours, theirs, read_published("depth").main)
    assert found is not None
    assert found.value == 2.0


def test_different_data_are_never_compared(record: Make) -> None:
    records = [
        *seeds_of(record, "scratch", [40.0, 41.0]),
        *seeds_of(record, "tespec", [45.0, 46.0], data_fingerprint="another"),
    ]
    assert effects_table("segmentation", records, "scratch").groups == ()


def test_a_baseline_without_records_is_refused(record: Make) -> None:
    with pytest.raises(UserError, match=r"--baseline moby: has no record; choose from scratch"):
        require_baseline([record()], "moby")
    assert effects_table("segmentation", [record()], "moby").groups == ()


def test_one_seed_has_a_gain_and_no_interval(record: Make) -> None:
    (row,) = effects_table("segmentation", [record(), record("tespec", miou=90.0)], "scratch").rows
    assert [cell.text for cell in row.cells][2:5] == ["+50.000", "-", "-"]


def test_the_long_csv_says_where_a_gain_was_measured_and_how_sure_it_is(record: Make) -> None:
    records = [*seeds_of(record, "scratch", [40.0, 41.0, 42.0]), *seeds_of(record, "tespec", [35.0, 36.1, 37.2])]
    table = effects_table("segmentation", records, "scratch")
    line = next(csv.DictReader(io.StringIO(render_long_csv(table))))
    assert (line["task"], line["data"], line["profile"], line["source"]) == ("ddd17", "sample", "sample", "gain")
    assert (float(line["low_95"]), float(line["high_95"])) == pytest.approx((-5.1484, -4.6516), abs=1e-4)
    assert "'" not in render_csv(table)

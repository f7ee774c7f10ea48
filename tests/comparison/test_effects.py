from __future__ import annotations

from collections.abc import Callable

import pytest

from tespec.comparison.effects import effect_of, effects_table, require_baseline
from tespec.comparison.records import Record
from tespec.comparison.render_text import render_text
from tespec.errors import UserError

Make = Callable[..., Record]


def seeds_of(make: Make, name: str, values: list[float], **changes: object) -> list[Record]:
    return [make(name, seed=seed, miou=value, **changes) for seed, value in enumerate(values)]


def test_a_row_says_gain_intervals_and_verdict(record: Make) -> None:
    records = [*seeds_of(record, "scratch", [40.0, 41.0, 42.0]), *seeds_of(record, "tespec", [45.0, 46.1, 47.2])]
    table = effects_table("segmentation", records, "scratch")
    (row,) = table.rows
    texts = [cell.text for cell in row.cells]
    assert texts[:3] == ["TESPEC", "Yes", "+5.100"]
    assert texts[3] == "+4.852 to +5.348"
    assert texts[4:] == ["-", "3", "1", "better"]
    assert "recordings, not frames" in render_text(table)


def test_the_baseline_has_the_same_memory(record: Make) -> None:
    records = [
        *seeds_of(record, "scratch", [40.0, 41.0]),
        *seeds_of(record, "tespec", [45.0, 46.0], arch="feedforward"),
    ]
    (row,) = effects_table("segmentation", records, "scratch").rows
    assert [cell.text for cell in row.cells][2:] == ["-"] * 6


def test_a_smaller_error_is_a_gain(record: Make) -> None:
    ours = [record("tespec", seed=seed, metrics={"abs": 3.0 + seed}, recordings={}) for seed in range(2)]
    theirs = [record("scratch", seed=seed, metrics={"abs": 5.0 + seed}, recordings={}) for seed in range(2)]
    found = effect_of(ours, theirs, "abs", "lower")
    assert found is not None
    assert found.value == 2.0
    assert found.side == "higher"


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


def test_one_seed_decides_nothing(record: Make) -> None:
    (row,) = effects_table("segmentation", [record(), record("tespec", miou=90.0)], "scratch").rows
    assert row.cells[-1].text == "undecided"

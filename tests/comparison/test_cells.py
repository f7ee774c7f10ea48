"""Which cells of a grid are done."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tespec.comparison.cells import GridCell, is_done, of_other_code
from tespec.comparison.records import Record

CODE, OTHER = "aaaaaaaa", "bbbbbbbb"
CONFIG: dict[str, Any] = {"optimisation": {"steps": 150, "precision": "auto"}, "batch_size": 4}
CELL = GridCell("scratch", "ddd17", "recurrent", 0)


def made(record: Callable[..., Record], **changes: Any) -> Record:
    config = {"optimisation": {"steps": 150, "precision": "fp32"}, "batch_size": 4}
    return record(**({"config": config, "code": CODE} | changes))


def test_a_record_of_the_same_settings_code_and_data_is_the_cell(record: Callable[..., Record]) -> None:
    assert is_done(CELL, CONFIG, [made(record)], {CODE})
    assert is_done(CELL, CONFIG, [made(record)], {CODE}, "0123456789ab")


def test_a_record_of_other_code_is_not_unless_it_is_accepted(record: Callable[..., Record]) -> None:
    records = [made(record, code=OTHER)]
    assert not is_done(CELL, CONFIG, records, {CODE})
    assert is_done(CELL, CONFIG, records, {CODE, OTHER})
    legacy = made(record) | {"id": "0123456789ab", "code": "0.1.0+r3"}
    assert not is_done(CELL, CONFIG, [legacy], {CODE})
    assert is_done(CELL, CONFIG, [legacy], {CODE, "r3"})


@pytest.mark.parametrize(
    "changes",
    [
        {"data_fingerprint": "another"},
        {"seed": 1},
        {"task": "dsec"},
        {"kind": "probe"},
        {"config": {"optimisation": {"steps": 151, "precision": "fp32"}, "batch_size": 4}},
    ],
)
def test_another_record_is_not(record: Callable[..., Record], changes: dict[str, Any]) -> None:
    assert not is_done(CELL, CONFIG, [made(record, **changes)], {CODE}, "0123456789ab")


def test_what_does_not_count_is_said(record: Callable[..., Record]) -> None:
    records = [made(record), made(record, code=OTHER), made(record, code=OTHER, seed=1)]
    assert of_other_code(records, {CODE}) == (
        "records of other code do not count: 2 of bbbbbbbb; --accept-code HASH takes those of the same settings"
    )
    assert of_other_code(records, {CODE, OTHER}) == ""

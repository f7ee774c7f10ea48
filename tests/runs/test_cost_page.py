"""The page of costs is that of today's code."""

from __future__ import annotations

import pytest

from tespec.core.errors import UserError
from tespec.core.paths import REPOSITORY
from tespec.core.registry import register_methods
from tespec.runs.cost import SHARE, USUAL, find_gpu
from tespec.runs.cost_page import HEADER, page, row_of, rows_of_paper, table, trainings

PAGE = (REPOSITORY / "docs" / "cost.md").read_text(encoding="utf-8")
GPU = find_gpu(USUAL)


def test_the_page_has_every_training() -> None:
    register_methods()
    known = trainings()
    assert len(known) == 5 * 4 + 7
    for each in known:
        assert f"\n| {each.name} | " in PAGE


def test_a_row_is_todays() -> None:
    """One for all, which take minutes: see the test of the whole page."""
    register_methods()
    (training,) = (each for each in trainings() if each.name == "gen1, feedforward, Swin-T/7")
    assert table([row_of(training, GPU, SHARE)])[-1] in PAGE


@pytest.mark.slow
def test_the_whole_page_is_todays() -> None:
    register_methods()
    assert page(rows_of_paper(GPU, SHARE), GPU, SHARE) == PAGE


def test_each_line_has_every_column() -> None:
    for line in table([("x",) * len(HEADER)]):
        assert line.count("|") == len(HEADER) + 1


def test_an_unknown_training_is_named() -> None:
    register_methods()
    with pytest.raises(UserError, match="--only kitti: no task or method of the page; choose from 1mpx, cm3ae"):
        rows_of_paper(GPU, SHARE, ["kitti"])

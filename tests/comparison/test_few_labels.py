"""Scores by the share of labels, on made-up records."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from tespec.comparison.few_labels import label_curves, label_table
from tespec.comparison.records import Record
from tespec.comparison.render import render_markdown
from tespec.pictures.few_labels import draw_few_labels

Make = Callable[..., Record]


def runs(make: Make, name: str, share: float, miou: float, **changes: object) -> list[Record]:
    config = {"arch": "recurrent", "optimisation": {"steps": 150}, "label_share": share}
    return [make(name, seed=seed, miou=miou + seed, config=config, **changes) for seed in range(3)]


@pytest.fixture
def records(record: Make) -> list[Record]:
    """Two methods with 5 % and all of the labels, the floor, and what is on no curve."""
    few = [*runs(record, "scratch", 0.05, 20.0), *runs(record, "tespec", 0.05, 30.0)]
    every = [*runs(record, "scratch", 1.0, 40.0), *runs(record, "tespec", 1.0, 42.0), *runs(record, "mine", 1.0, 9.0)]
    floor = record("prior", "feedforward", kind="reference", miou=12.0)
    return [*few, *every, floor, *runs(record, "scratch", 0.05, 90.0, split="val")]


def test_a_curve_has_a_point_for_each_share(records: list[Record]) -> None:
    scratch, tespec = label_curves(records)
    assert (scratch.title, tespec.title) == ("No Pre-training", "TESPEC")
    assert sorted(scratch.points) == [0.05, 1.0]
    assert scratch.floor == 12.0
    means = [curve.score(share) for curve in (scratch, tespec) for share in (0.05, 1.0)]
    assert [each and each.value for each in means] == [21.0, 41.0, 31.0, 43.0]
    assert scratch.score(0.2) is None


@pytest.mark.parametrize(
    "other", [{"profile": "tiny"}, {"data_fingerprint": "another"}, {"code": "12345678"}, {"data": "ddd17"}]
)
def test_points_of_a_curve_differ_in_the_share_alone(record: Make, other: dict[str, str]) -> None:
    every = [*runs(record, "scratch", 1.0, 40.0), *runs(record, "tespec", 1.0, 42.0)]
    (curve,) = label_curves([*every, *runs(record, "scratch", 0.05, 20.0), *runs(record, "tespec", 0.05, 9.0, **other)])
    assert (curve.title, sorted(curve.points)) == ("No Pre-training", [0.05, 1.0])


def test_the_table_has_a_column_for_each_share(records: list[Record]) -> None:
    table = label_table(records)
    assert table is not None
    text = render_markdown(table)
    assert "| Method | Network | 5% | 100% |" in text
    assert "| TESPEC | recurrent | 31.000 ± 1.000 | 43.000 ± 1.000 |" in text
    assert "DDD17, mIoU ↑, floor 12.000" in text


def test_there_is_none_where_all_labels_were_used(record: Make) -> None:
    assert label_table(runs(record, "scratch", 1.0, 40.0)) is None


def test_the_figure_is_the_same_each_time(records: list[Record], tmp_path: Path) -> None:
    paths = tmp_path / "a.png", tmp_path / "b.png"
    for path in paths:
        draw_few_labels(label_curves(records), path)
    assert paths[0].read_bytes() == paths[1].read_bytes()
    with Image.open(paths[0]) as picture:
        assert picture.size[0] > 800

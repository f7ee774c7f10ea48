"""The long CSV, read back with pandas: numbers are numbers, and every line says what it is of."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pandas
import pytest
from test_footnotes import measured_everywhere

from tespec.comparison.ablations import measured_table, read_ablation
from tespec.comparison.published import TABLES, plain_tables, read_published
from tespec.comparison.records import Record
from tespec.comparison.render import render_long_csv
from tespec.comparison.side_by_side import published_table
from tespec.comparison.statistics import student_interval
from tespec.comparison.table import Table

NUMBERS = ("value", "deviation", "low_95", "high_95", "seeds")
NAMES = ("table", "method", "title", "arch", "backbone", "pretraining", "task", "source", "metric", "split")


def read(table: Table) -> pandas.DataFrame:
    frame = pandas.read_csv(
        io.StringIO(render_long_csv(table)), keep_default_na=False, na_values={name: [""] for name in NUMBERS}
    )
    if len(frame):
        assert {frame[name].dtype.kind for name in NUMBERS} <= {"f", "i"}
        assert frame["bold"].dtype.kind == "b"
    return frame


@pytest.mark.parametrize("name", TABLES)
def test_every_number_of_a_table_is_there_with_its_names(name: str, record: Callable[..., Record]) -> None:
    scheme = read_published(name)
    seeds = [{**each, "seed": seed, "metrics": {metric: value + seed for metric, value in each["metrics"].items()},
              "name": f"{each['name']}-{seed}"}
             for each in measured_everywhere(scheme, record) for seed in range(3)]  # fmt: skip
    table = published_table(name, seeds)  # type: ignore[arg-type]
    frame = read(table)
    cells = [(column, cell) for row in table.rows for column, cell in zip(table.columns, row.cells, strict=True)
             if column.facts and cell.value is not None]  # fmt: skip
    assert frame["value"].tolist() == pytest.approx([cell.value for _, cell in cells], abs=1e-6)
    assert frame["better"].tolist() == [column.better for column, _ in cells]
    assert frame["bold"].tolist() == [cell.bold for _, cell in cells]
    assert frame["footnote"].tolist() == [cell.mark for _, cell in cells]
    assert (frame[list(NAMES)] != "").all(axis=None)
    units = {metric.name: metric.unit for metric in scheme.metrics}
    assert (frame["unit"] == frame["metric"].map(units)).all()
    assert set(units.values()) == {"segmentation": {"%"}, "detection": {"%"}, "depth": {"m", ""}}[name]
    paper = frame[frame["source"] == "paper"]
    assert (paper[["data", "profile", "basis", "records"]] == "").all(axis=None)
    assert paper[list(NUMBERS[1:])].isna().all(axis=None)


def test_measured_lines_are_the_records(sample_records: list[Record]) -> None:
    for each in sample_records:
        each["config"]["width"] = "micro"
    frame = read(published_table("segmentation", sample_records))
    ours = frame[(frame["source"] == "measured")]
    assert {(line["data"], line["profile"], line["split"]) for _, line in ours.iterrows()} == {
        ("sample", "sample", "test")
    }
    by_name = {record["name"]: record for record in sample_records}
    assert len(ours) == 4 * 4
    for _, line in ours.iterrows():
        members = [by_name[name] for name in line["records"].split()]
        held: list[dict[str, float]] = [
            each["groups"][line["frames"]] if line["frames"] else each["metrics"] for each in members
        ]
        values = [each[line["metric"]] for each in held]
        assert {each["method_name"] for each in members} == {line["method"]}
        assert {each["arch"] for each in members} == {line["arch"]}
        assert line["backbone"] == "Swin/7, width 24"
        assert line["value"] == pytest.approx(sum(values) / len(values))
        assert line["seeds"] == len(values)
        interval = student_interval(values)
        if interval is None:
            assert pandas.isna(line[["deviation", "low_95", "high_95"]]).all()
        else:
            assert (line["low_95"], line["high_95"]) == pytest.approx((interval.low, interval.high), abs=1e-6)


def test_nothing_small_has_a_large_name(record: Callable[..., Record]) -> None:
    recipe = {"dataset": "1mpx", "data": "my own recordings"}
    made: dict[str, Any] = {"source": "backbone.safetensors", "sha256": "ab", "recipe": recipe}
    config = record(arch="feedforward")["config"] | {"width": "micro"}
    method = {"title": "TESPEC", "backbone": "Swin-T/7", "pretraining_data": "1Mpx"}
    frame = read(
        published_table("segmentation", [record("tespec", "feedforward", weights=made, config=config, method=method)])
    )
    ours = frame[frame["source"] == "measured"]
    assert set(ours["backbone"]) == {"Swin/7, width 24"}
    assert set(ours["pretraining"]) == {"my own recordings"}


def test_an_ablation_says_what_it_is_of(record: Callable[..., Record]) -> None:
    frame = read(measured_table(read_ablation("dataset"), None))
    assert (frame[list(NAMES)] != "").all(axis=None)
    assert frame["pretraining"].tolist() == ["gen1", "gen1", "1mpx", "1mpx"]


def test_tables_without_measured_numbers_can_be_read() -> None:
    for table in (*plain_tables().values(), measured_table(read_ablation("steps"), None)):
        frame = read(table)
        assert (frame[["table", "title", "source", "metric"]] != "").all(axis=None)

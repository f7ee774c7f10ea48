"""All records as a table of numbers, and tables of tasks that the paper does not have."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tespec
from tespec.cli.tables import main
from tespec.comparison.published import OWN, schemes
from tespec.comparison.records import Record, write_record
from tespec.comparison.render import render_long_csv
from tespec.comparison.side_by_side import published_table
from tespec.core.errors import UserError
from tespec.core.paths import REPOSITORY

Make = Callable[..., Record]
SCORES = {
    "error": {"title": "Error ↓", "better": "lower", "unit": "m"},
    "hits": {"title": "Hits", "better": "higher", "unit": ""},
}


@pytest.fixture
def flow(record: Make) -> list[Record]:
    """Two methods on a kind of task that the paper does not have."""
    fields: dict[str, Any] = {"task": "hall", "scores": SCORES, "config": {"kind": "flow", "title": "The hall"}}
    fields |= {"groups": {"moving": {"error": 3.0}}}
    return [
        record(name, metrics={"error": value, "hits": 5.0, "internal": 1.0}, **fields)
        for name, value in (("scratch", 2.5), ("mine", 1.5))
    ]


def test_a_row_for_each_record_and_metric(flow: list[Record], record: Make, tmp_path: Path) -> None:
    for each in [*flow, record("tespec", miou=41.25), record("tespec", kind="pretraining", metrics={"loss": 0.5})]:
        write_record(each, tmp_path / "runs")
    (tmp_path / "runs" / "torn.json").write_text("{")
    frame = tespec.results(tmp_path)
    assert len(frame) == 2 * 3 + 3 + 1
    assert frame["value"].dtype == "float64"
    assert frame["seed"].dtype == "int64"
    assert str(frame["written"].dtype).startswith("datetime64")
    assert len(frame.attrs["left_out"]) == 1
    main_scores = frame[frame["main"]].set_index(["method", "task"])["value"].to_dict()
    assert main_scores == {("scratch", "hall"): 2.5, ("mine", "hall"): 1.5, ("tespec", "ddd17"): 41.25}
    (error,) = frame.query("method == 'mine' and metric == 'error'").to_dict("records")
    assert (error["unit"], error["better"], error["title"], error["kind"]) == ("m", "lower", "My method", "evaluation")
    assert set(frame["split"]) == {"test"}
    # Records that do not say what their scores are have what the paper's tables know of them.
    assert set(frame.query("metric == 'miou'")["better"]) == {"higher"}
    assert set(frame.query("metric in ['internal', 'loss', 'pixel_acc']")["better"]) == {""}


def test_a_folder_without_records_gives_an_empty_table_and_none_is_a_mistake(tmp_path: Path) -> None:
    assert tespec.results(tmp_path).empty
    with pytest.raises(UserError, match="no such folder; name one that holds runs/"):
        tespec.results(tmp_path / "nowhere")


def test_importing_the_package_is_light() -> None:
    code = "import sys, tespec; tespec.results; assert not {'pandas', 'torch', 'numpy', 'pydantic'} & set(sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, timeout=60).returncode == 0


def test_a_task_of_ones_own_has_a_table_of_its_own(flow: list[Record], record: Make) -> None:
    records = [*flow, record("tespec")]
    assert list(schemes(records)) == ["detection", "segmentation", "depth", "task_hall"]
    table = published_table("task_hall", records)
    assert table.title == "The hall (flow)"
    heads = [column.headers for column in table.columns[4:]]
    where = "measured: sample world, profile sample"
    titles = ("Error (m) ↓", "Hits ↑", "moving Error (m) ↓", "seeds")
    assert heads == [("The hall", where, title) for title in titles]
    assert {row.cells[0].text: row.cells[4].text for row in table.rows} == {
        "My method": "1.500",
        "No Pre-training": "2.500",
    }
    # The paper's own tables hold nothing of it.
    assert "The hall" not in render_long_csv(published_table("segmentation", records))


def test_a_data_set_of_ones_own_of_a_known_kind_has_its_metrics(record: Make) -> None:
    table = published_table(
        "task_yard", [record("mine", task="yard", config={"kind": "segmentation", "title": "Yard"})]
    )
    assert [column.headers[-1] for column in table.columns[4:6]] == ["mIoU ↑", "mAcc ↑"]


def test_tables_prints_and_writes_it(flow: list[Record], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for each in flow:
        write_record(each, tmp_path / "runs")
    assert main(["--results", str(tmp_path), "--only", "task_hall", "--baseline", "scratch"]) == 0
    shown = capsys.readouterr().out
    assert "The hall (flow)" in shown
    assert "+1.000" in shown
    names = {path.name for path in (tmp_path / "tables").iterdir()}
    assert {"task_hall.csv", "against_scratch.md"} <= names
    with pytest.raises(UserError, match="no evaluation of such a task; choose from task_hall"):
        main(["--results", str(tmp_path), "--only", "task_yard"])


@pytest.mark.parametrize("task", ["../../x", "a/b", "", "sizes", "x" * 300, "..", "a b"])
def test_names_of_tasks_stay_file_names(record: Make, task: str) -> None:
    names = list(schemes([record("mine", task=task), record("mine", task=f"{task}!")]))[3:]
    assert len(set(names)) == 2
    assert all(name.startswith(OWN) and "/" not in name and len(name) < 120 for name in names)

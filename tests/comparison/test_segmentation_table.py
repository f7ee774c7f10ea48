from __future__ import annotations

import csv
import io
from collections.abc import Callable
from typing import Any

import pytest

from tespec.comparison.records import Record
from tespec.comparison.render import render_long_csv
from tespec.comparison.side_by_side import published_table
from tespec.comparison.table import Cell, Row, Table

Make = Callable[..., Record]


def row_of(table: Table, method: str, arch: str = "recurrent", mark: str = "", backbone: str = "Swin-T/7") -> Row:
    wanted = {"method": method, "arch": arch, "backbone": backbone}
    (row,) = (row for row in table.rows if marks_of(row) == mark and wanted.items() <= row.facts.items())
    return row


def marks_of(row: Row) -> str:
    return "".join({cell.mark for cell in row.cells})


def cells(table: Table, row: Row, **facts: str) -> list[Cell]:
    pairs = zip(table.columns, row.cells, strict=True)
    return [cell for column, cell in pairs if facts.items() <= column.facts.items()]


def measured(table: Table, row: Row, metric: str = "miou", frames: str = "") -> Cell:
    (cell,) = cells(table, row, source="measured", metric=metric, frames=frames)
    return cell


def test_measured_numbers_stand_in_the_published_row(sample_records: list[Record]) -> None:
    table = published_table("segmentation", sample_records)
    cell = measured(table, row_of(table, "scratch"))
    assert (cell.text, cell.value, cell.deviation, cell.runs) == ("41.000 ± 1.000", 41.0, 1.0, 3)
    assert measured(table, row_of(table, "scratch"), frames="standing").value == 36.0
    assert measured(table, row_of(table, "moby")).text == "-"


def test_best_measured_number_is_bold_beside_the_papers_own_bold(sample_records: list[Record]) -> None:
    table = published_table("segmentation", sample_records)
    bold = {row.facts["method"] for row in table.rows if measured(table, row).bold}
    assert bold == {"tespec"}
    (paper,) = cells(
        table, row_of(table, "ecddp", "feedforward", "†"), task="ddd17", metric="mean_class_acc", source="paper"
    )
    assert paper.bold


def test_a_single_measured_row_is_no_best(record: Make) -> None:
    table = published_table("segmentation", [record()])
    assert not measured(table, row_of(table, "scratch")).bold


def test_methods_without_published_rows_get_their_own(sample_records: list[Record], record: Make) -> None:
    grouped = record("mine", method={"title": "My method", "group": "Plug-ins", "backbone": "ResNet50"})
    table = published_table("segmentation", [*sample_records, grouped])
    own = {group.heading: [row.cells[0].text for row in group.rows] for group in table.groups[5:]}
    assert own == {"Plug-ins": ["My method"], "Methods added here": ["My method", "TESPEC"]}


def test_a_record_matches_by_memory_backbone_and_test_time_augmentation(record: Make) -> None:
    facts = {"title": "ECDDP", "backbone": "Swin-T/7"}
    # The published number was made with it, this one was not.
    plain = record("ecddp", "feedforward", method=facts | {"test_time_augmentation": True})
    table = published_table("segmentation", [plain])
    assert measured(table, row_of(table, "ecddp", "feedforward", "‡")).value == 40.0
    config = {"arch": "feedforward", "test_time_augmentation": "ecddp"}
    augmented = record("ecddp", "feedforward", method=facts, config=config)
    table = published_table("segmentation", [augmented])
    assert measured(table, row_of(table, "ecddp", "feedforward", "†")).value == 40.0
    other = record("ecddp", "recurrent", method=facts | {"backbone": "ResNet50"})
    table = published_table("segmentation", [other])
    assert measured(table, row_of(table, "ecddp", backbone="ResNet50")).value == 40.0
    assert measured(table, row_of(table, "ecddp")).value is None


def test_sample_numbers_have_no_difference_and_say_what_they_are(sample_records: list[Record]) -> None:
    table = published_table("segmentation", sample_records)
    assert not any(column.facts.get("source") == "difference" for column in table.columns)
    assert any("measured: sample world, profile sample" in column.headers for column in table.columns)
    assert any("no measurement of DDD17" in note for note in table.notes)
    assert any(note.endswith("seeds (95 % Student-t intervals: the long CSV).") for note in table.notes)


def test_real_numbers_have_their_difference_from_the_papers(record: Make) -> None:
    table = published_table("segmentation", [record(data="ddd17", profile="paper", miou=56.0, config={})])
    (cell,) = cells(table, row_of(table, "scratch"), source="difference", metric="miou")
    assert cell.text == "+0.189"
    assert not any("sample" in note for note in table.notes)


def test_each_basis_has_columns_of_its_own(record: Make) -> None:
    longer = dict(record()["config"]) | {"optimisation": {"steps": 300}}
    real = {"data": "ddd17", "profile": "paper"}
    table = published_table("segmentation", [record(), record(seed=1, config=longer), record(miou=55.0, **real)])
    headings = list(dict.fromkeys(column.headers[1] for column in table.columns if len(column.headers) == 3))
    assert headings == [
        "paper",
        "measured: DDD17, profile paper",
        "measured: sample world, profile sample (1)",
        "measured: sample world, profile sample (2)",
    ]
    found = cells(table, row_of(table, "scratch"), source="measured", metric="miou", frames="")
    assert [cell.runs for cell in found] == [1, 1, 1]
    assert any("optimisation.steps = 300" in note for note in table.notes)


def test_a_method_with_two_backbones_has_two_rows(record: Make) -> None:
    made = [
        record("mine", miou=miou, method={"title": "My method", "backbone": backbone})
        for backbone, miou in (("ResNet50", 40.0), ("Swin-T/7", 50.0))
    ]
    table = published_table("segmentation", made)
    found = {row.facts["backbone"]: measured(table, row).text for row in table.groups[-1].rows}
    assert found == {"ResNet50": "40.000", "Swin-T/7": "50.000"}


def test_a_method_that_names_no_backbone_has_its_row(record: Make) -> None:
    facts = {"title": "My method", "group": None, "backbone": None, "pretraining_data": None}
    table = published_table("segmentation", [record("mine", method=facts)])
    (row,) = table.groups[-1].rows
    assert [cell.text for cell in row.cells[:4]] == ["My method", "-", "Yes", "-"]
    assert measured(table, row).text == "40.000"


def test_seeds_from_different_weights_say_so(record: Make) -> None:
    def notes(*hashes: str) -> str:
        records = [record("tespec", seed=seed, weights={"sha256": sha256}) for seed, sha256 in enumerate(hashes)]
        return " ".join(published_table("segmentation", records).notes)

    assert "the seeds of TESPEC, recurrent start from different weights" in notes("aa", "bb")
    assert "different weights" not in notes("aa", "aa")


def test_one_note_names_all_rows_whose_seeds_start_from_different_weights(record: Make) -> None:
    records = [
        record("tespec", arch=arch, seed=seed, weights={"sha256": sha256})
        for arch in ("feedforward", "recurrent")
        for seed, sha256 in enumerate(("aa", "bb"))
    ]
    (note,) = (note for note in published_table("segmentation", records).notes if "different weights" in note)
    assert "TESPEC, feedforward; TESPEC, recurrent" in note


def test_a_record_left_out_for_a_newer_one_is_named(record: Make) -> None:
    old, new = (record(weights={"sha256": sha256}) for sha256 in ("aa", "bb"))
    old["written"] = "2000-01-01T00:00:00+00:00"
    assert any(old["name"] in note for note in published_table("segmentation", [old, new]).notes)


@pytest.mark.parametrize("change", [{"kind": "pretraining"}, {"task": "gen1"}])
def test_records_of_other_kinds_stay_out(record: Make, change: dict[str, Any]) -> None:
    assert published_table("segmentation", [record(**change)]) == published_table("segmentation", [])


def test_choice_of_columns(sample_records: list[Record]) -> None:
    assert published_table("segmentation", sample_records, "paper") == published_table("segmentation", [])
    table = published_table("segmentation", sample_records, "measured")
    assert [row.facts["method"] for row in table.rows] == ["scratch", "tespec", "mine", "tespec"]
    assert {column.facts.get("source", "measured") for column in table.columns} == {"measured"}


def test_measured_rows_say_what_was_made_here(record: Make) -> None:
    recipe = {"dataset": "1mpx", "data": "sample"}
    made = {"source": "backbone.safetensors", "sha256": "ab", "recipe": recipe}
    config = record()["config"] | {"width": "micro"}
    records = [record("tespec", config=config, weights=made), record("scratch", config=config)]

    def labels(columns: str) -> dict[str, list[str]]:
        rows = [row for group in published_table("segmentation", records, columns).groups for row in group.rows]
        return {
            row.facts["method"]: [cell.text for cell in row.cells[:4]]
            for row in rows
            if row.facts["arch"] == "recurrent"
        }

    assert labels("measured") == {
        "scratch": ["No Pre-training", "Swin-T/7 (micro)", "Yes", "-"],
        "tespec": ["TESPEC (Ours)", "Swin-T/7 (micro)", "Yes", "1mpx of the sample world"],
    }
    assert labels("both")["tespec"] == ["TESPEC (Ours)", "Swin-T/7", "Yes", "1Mpx"]
    tidy = csv.DictReader(io.StringIO(render_long_csv(published_table("segmentation", records))))
    said = {(line["source"], line["backbone"], line["pretraining"]) for line in tidy if line["method"] == "tespec"}
    assert said == {("paper", "Swin-T/7", "1Mpx"), ("measured", "Swin-T/7 (micro)", "1mpx of the sample world")}
    for columns in ("measured", "both"):
        assert any(
            "weights made here: TESPEC on 1mpx" in note
            for note in published_table("segmentation", records, columns).notes
        )

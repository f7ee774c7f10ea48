from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tespec.comparison import side_by_side as side_by_side_module
from tespec.comparison.deviations import deviations
from tespec.comparison.published import read_published
from tespec.comparison.records import Record
from tespec.comparison.rows import NETWORKS
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
    bold = {(row.facts["method"], row.facts["arch"]) for row in table.rows if measured(table, row).bold}
    assert bold == {("tespec", "recurrent")}
    assert any(note.startswith("Bold: ") for note in table.notes)
    assert not any("nothing can be told apart" in note for note in table.notes)
    (paper,) = cells(
        table, row_of(table, "ecddp", "feedforward", "†"), task="ddd17", metric="mean_class_acc", source="paper"
    )
    assert paper.bold


def test_where_nothing_can_be_told_apart_nothing_is_bold_and_the_table_says_so(record: Make) -> None:
    close = [record(name, seed=seed, miou=40.0 + seed * flip) for name, flip in (("scratch", 1), ("tespec", -1))
             for seed in range(3)]  # fmt: skip
    for records in (close, [record(), record("tespec", miou=60.0)]):
        table = published_table("segmentation", records)
        assert not any(measured(table, row).bold for row in table.rows)
        said = "profile sample: nothing can be told apart in mIoU, mAcc, moving mIoU, standing mIoU."
        assert any(note.endswith(said) for note in table.notes)
    alone = published_table("segmentation", [record()])
    assert not measured(alone, row_of(alone, "scratch")).bold
    assert not any("nothing can be told apart" in note for note in alone.notes)


def references(record: Make, **changes: Any) -> list[Record]:
    """A floor with one seed and a ceiling with two."""
    config = record(arch="feedforward")["config"]
    made = [("prior", "-", 20.0, 0), ("frame", "Swin-T/7", 70.0, 0), ("frame", "Swin-T/7", 71.0, 1)]
    return [
        record(name, "feedforward", kind="reference", seed=seed, miou=miou, config=config | {"input": name},
               method={"title": name, "group": "References", "backbone": backbone}) | changes
        for name, backbone, miou, seed in made
    ]  # fmt: skip


def test_floor_and_ceiling_have_grey_rows_below_the_methods(sample_records: list[Record], record: Make) -> None:
    table = published_table("segmentation", [*sample_records, *references(record)])
    floor, ceiling = table.groups[-1].rows
    assert floor.cells[0].text == "Floor: no input"
    assert ceiling.cells[0].text == "Ceiling: true frame"
    assert (measured(table, floor).text, measured(table, ceiling).text) == ("20.000", "70.500 ± 0.707")
    for row in (floor, ceiling):
        assert row.grey
        assert not any(cell.bold for cell in row.cells)
        assert all(cell.value is None for cell in cells(table, row, source="paper"))
    assert measured(table, row_of(table, "tespec")).bold
    assert [row.cells[0].text for row in published_table("segmentation", references(record)).rows] == [
        row.cells[0].text for row in published_table("segmentation", []).rows
    ]


@pytest.mark.parametrize(
    "changes", [{"data": "ddd17"}, {"data_fingerprint": "another"}, {"profile": "small"}, {"split": "val"}]
)
def test_references_of_another_basis_stand_in_no_column(record: Make, changes: dict[str, str]) -> None:
    assert published_table("segmentation", [record(), *references(record, **changes)]) == published_table(
        "segmentation", [record()]
    )


def test_a_method_of_a_references_name_is_a_method(record: Make) -> None:
    mine = record("frame", "feedforward", miou=50.0)
    table = published_table("segmentation", [mine, *references(record)])
    shown = {
        row.cells[0].text: (measured(table, row).value, row.grey) for group in table.groups[-2:] for row in group.rows
    }
    assert shown["frame"] == (50.0, False)
    assert shown["Ceiling: true frame"] == (70.5, True)


def test_splits_have_columns_of_their_own_and_only_the_test_split_a_distance_from_the_paper(record: Make) -> None:
    real = {"data": "ddd17", "profile": "paper", "config": {}}
    chosen = record(miou=58.0, **real) | {"split": "val", "name": "chosen"}
    table = published_table("segmentation", [record(miou=56.0, **real), chosen])  # type: ignore[list-item]
    headings = list(dict.fromkeys(column.headers[1] for column in table.columns if len(column.headers) == 3))
    assert headings == [
        "paper", "measured: DDD17, profile paper", "measured: DDD17, profile paper, validation split"
    ]  # fmt: skip
    row = row_of(table, "scratch")
    assert [cell.value for cell in cells(table, row, source="measured", metric="miou", split="test", frames="")] == [
        56.0
    ]
    assert [cell.value for cell in cells(table, row, source="measured", metric="miou", split="val", frames="")] == [
        58.0
    ]
    assert len(cells(table, row, source="difference", metric="miou")) == 1
    assert not cells(table, row, source="difference", split="val")


def test_a_number_of_modified_code_is_marked(record: Make) -> None:
    changed = record("tespec", environment={"modified": True})
    table = published_table("segmentation", [record(environment={"modified": None}), record(seed=1), changed])
    assert measured(table, row_of(table, "tespec", mark="§")).mark == "§"
    assert measured(table, row_of(table, "scratch")).mark == ""
    assert "§ made by code with uncommitted changes, which no revision holds" in table.all_notes()
    assert not any("§" in note for note in published_table("segmentation", [record()]).all_notes())


def test_methods_without_published_rows_get_their_own(sample_records: list[Record], record: Make) -> None:
    grouped = record("mine", method={"title": "My method", "group": "Plug-ins", "backbone": "ResNet50"})
    table = published_table("segmentation", [*sample_records, grouped])
    own = {group.heading: [row.cells[0].text for row in group.rows] for group in table.groups[6:]}
    assert own == {"Plug-ins": ["My method"], "Methods added here": ["My method", "TESPEC"]}


def test_rows_beyond_the_paper_stand_below_it_and_are_compared_with_nothing(record: Make) -> None:
    facts = {"title": "CM3AE", "group": "Beyond the paper", "backbone": "Swin-T/7"}
    records = [record("cm3ae", data="ddd17", profile="paper", config={}, method=facts), record("scratch")]
    table = published_table("segmentation", records)
    group = table.groups[-1]
    assert group.heading == "Beyond the paper"
    assert [row.cells[0].text for row in group.rows] == ["EventPretrain", "MEM", "CM3AE"]
    cited, measured_here = group.rows[1], group.rows[2]
    assert cited.grey
    assert not measured_here.grey
    assert [cell.text for cell in cells(table, cited, source="paper", task="dsec")] == ["-"] * 2
    assert {cell.mark for cell in cells(table, cited, source="paper", task="dsec")} == {"¶"}
    # It reports nothing on this one.
    assert [cell.text for cell in cells(table, cited, source="paper", task="ddd17")] == ["-"] * 2
    assert not any(cell.mark for cell in cells(table, cited, source="paper", task="ddd17"))
    assert [cell.text for cell in cells(table, measured_here, source="paper")] == ["-"] * 4
    assert not any(cell.value for cell in cells(table, measured_here, source="difference"))
    assert deviations(records) == []
    for row in read_published("segmentation").beyond:
        (note,) = (note for note in table.all_notes() if note.startswith(f"{row.title}, "))
        assert row.protocol in note
        assert row.source in note
    shown = published_table("segmentation", records, "measured")
    assert [row.cells[0].text for row in shown.groups[-1].rows] == ["CM3AE"]
    assert not any("MEM" in note for note in shown.all_notes())


def test_cited_numbers_are_shown_without_bold_or_difference(monkeypatch: pytest.MonkeyPatch, record: Make) -> None:
    scheme = read_published("segmentation")
    first = scheme.beyond[0]
    best = replace(first, scores={("dsec", "miou"): 99.0, ("dsec", "mean_class_acc"): None})
    monkeypatch.setattr(side_by_side_module, "read_scheme", lambda *_: replace(scheme, beyond=(best,)))
    table = published_table("segmentation", [record()])
    (shown,) = table.groups[-1].rows
    assert [cell.text for cell in cells(table, shown, source="paper")] == ["99.000", "-", "-", "-"]
    assert not any(cell.bold for cell in shown.cells)
    assert measured(table, row_of(table, "tespec")).value is None


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
        "scratch": ["No Pre-training", "Swin/7, width 24", "Yes", "-"],
        "tespec": ["TESPEC (Ours)", "Swin/7, width 24", "Yes", "1mpx, sample world"],
    }
    assert labels("both")["tespec"] == ["TESPEC (Ours)", "Swin-T/7", "Yes", "1Mpx"]
    assert any(
        note.endswith("smaller networks: Swin/7, width 24 for Swin-T/7.")
        for note in published_table("segmentation", records).notes
    )
    for columns in ("measured", "both"):
        assert any(
            "weights made here: TESPEC on 1mpx" in note
            for note in published_table("segmentation", records, columns).notes
        )


def test_networks_are_called_what_they_are() -> None:
    from tespec.models.event_maxvit import ARCHITECTURES as MAXVIT
    from tespec.models.event_resnet import ARCHITECTURES as RESNET
    from tespec.models.event_swin import ARCHITECTURES as SWIN
    from tespec.models.event_swin import WINDOW

    assert set(NETWORKS) == {"", *SWIN, *RESNET, *MAXVIT}
    assert NETWORKS["micro"] == f"Swin/{WINDOW}, width {SWIN['micro'].width}"
    # A convolution before the stages, two in each block, and the classifier are counted.
    depth = 2 + 2 * sum(RESNET["resnet-micro"].layers)
    assert NETWORKS["resnet-micro"] == f"ResNet{depth}, width {RESNET['resnet-micro'].width}"
    assert NETWORKS["maxvit-micro"] == f"MaxViT, width {MAXVIT['maxvit-micro'].width}"

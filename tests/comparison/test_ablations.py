from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tespec.comparison.ablations import ablations, changed, measured_rows, measured_table, read_ablation
from tespec.comparison.records import Record
from tespec.comparison.render import render_text
from tespec.core.config import as_facts, pretraining_settings
from tespec.core.errors import UserError

DATA = Path(__file__).parent / "data"
SOURCE = "".join((DATA / name).read_text() for name in ("tab-all-ablation.tex", "tab-supp-ablation.tex"))
SHOWN = {
    r"\cref{eq:prior-intensity-est}": "Eq. 6",
    r"\cref{eq:our-intensity-est}": "Eq. 7",
    r"CPC~\cite{CPC}": "CPC",
    r"ECDDP~\cite{ECDDP}": "ECDDP",
    r"MAE~\cite{MAE}": "MAE",
}


def lines_of(label):
    """Cells of the table's rows in the paper's source, and whether a row is in bold."""
    before = SOURCE.split(rf"\label{{{label}}}")[0]
    body = re.split(r"\\(?:mid|h)rule|\\hline", before[before.rindex(r"\begin{tabular}") :])
    rows = []
    for line in "".join(body).split(r"\\"):
        if "&" in line and re.search(r"\d\.\d{3}", line):
            cells = [re.sub(r"\\textbf\{(.*)\}$", r"\1", cell.strip()).replace(r"\%", "%") for cell in line.split("&")]
            rows.append((cells, line.strip().count(r"\textbf")))
    return rows


PAPERS = [name for name, ablation in ablations().items() if ablation.label]


@pytest.mark.parametrize("name", PAPERS)
def test_every_cell_is_the_papers(name):
    ablation = read_ablation(name)
    lines = lines_of(ablation.label)
    assert len(lines) == len(ablation.rows)
    for row, (cells, bold) in zip(ablation.rows, lines, strict=True):
        assert SHOWN.get(cells[0], cells[0]) == row.name
        assert [float(cell) for cell in cells[1:]] == list(row.paper)
        assert bool(bold) == row.default


def test_all_tables_of_the_source_are_there():
    assert {ablations()[name].label for name in PAPERS} == set(re.findall(r"\\label\{(.*?)\}", SOURCE)) - {
        "tab:all-ablation"
    }


@pytest.mark.parametrize("profile", ["paper", "sample"])
@pytest.mark.parametrize("name", ablations())
def test_every_row_is_a_pretraining_of_its_own(name, profile):
    default = as_facts(pretraining_settings("tespec", profile))
    resolved = []
    for row in read_ablation(name).rows:
        facts = as_facts(pretraining_settings("tespec", profile, row.changes(default)))
        assert (facts == default) == row.default
        resolved.append(facts)
    assert all(resolved.count(facts) == 1 for facts in resolved)


def flat(facts, prefix=""):
    """Settings by their dotted names."""
    found = {}
    for key, value in facts.items():
        found |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return found


@pytest.mark.parametrize("profile", ["paper", "sample"])
@pytest.mark.parametrize("name", ablations())
def test_a_row_differs_from_the_default_in_the_setting_it_names_and_in_no_other(name, profile):
    default = as_facts(pretraining_settings("tespec", profile))
    for row in read_ablation(name).rows:
        found, unchanged = flat(as_facts(pretraining_settings("tespec", profile, row.changes(default)))), flat(default)
        different = {key for key in found | unchanged if found.get(key) != unchanged.get(key)}
        named = {*row.set, *row.scale}
        if named == {"objective"}:
            # Another objective brings its own settings, and takes those of masked reconstruction away.
            assert {key.partition(".")[0] for key in different} == named
            assert found["objective.type"] == row.set["objective"]
        else:
            assert different == named
            assert {key: found[key] for key in row.set} == row.set
            assert {key: found[key] for key in row.scale} == {
                key: unchanged[key] * factor for key, factor in row.scale.items()
            }


def test_numbers_that_are_scaled_are_the_papers():
    default = as_facts(pretraining_settings("tespec", "paper"))
    for name, key, numbers in (
        ("steps", ("optimisation", "steps"), [200_000, 300_000, 400_000, 500_000]),
        ("norm_events", ("objective", "target", "norm_events"), [500, 5_000, 50_000, 200_000]),
    ):
        found = []
        for row in read_ablation(name).rows:
            value = as_facts(pretraining_settings("tespec", "paper", row.changes(default)))
            for part in key:
                value = value[part]
            found.append(value)
        assert found == numbers


def test_an_unknown_table_is_named():
    with pytest.raises(UserError, match="ablation mask: no such table; choose from masking, steps"):
        read_ablation("mask")


def test_an_ablation_of_this_project_has_no_published_numbers():
    own = [ablation for name, ablation in ablations().items() if name not in PAPERS]
    assert own
    for ablation in own:
        text = render_text(measured_table(ablation, None))
        assert not re.search(r"\d\.\d{3}", text)


Make = Callable[..., Record]
DEFAULT = as_facts(pretraining_settings("tespec", "sample"))


def fine_tuned(make: Make, recipe: dict[str, Any], miou: float, **changes: Any) -> Record:
    """A record whose weights were made by a recipe."""
    weights = {"source": "backbone.safetensors", "sha256": str(miou), "start_sha256": str(miou), "recipe": recipe}
    return make("tespec", miou=miou, **({"task": "dsec", "weights": weights} | changes))


def row_recipe(table: str, name: str, default: dict[str, Any] = DEFAULT) -> dict[str, Any]:
    (row,) = (row for row in read_ablation(table).rows if row.name == name)
    return changed(row, default)


@pytest.mark.parametrize("profile", ["paper", "sample"])
@pytest.mark.parametrize("name", ablations())
def test_a_rows_settings_are_those_that_are_run(name: str, profile: str) -> None:
    default = as_facts(pretraining_settings("tespec", profile))
    for row in read_ablation(name).rows:
        assert changed(row, default) == as_facts(pretraining_settings("tespec", profile, row.changes(default)))


def test_measured_numbers_stand_beside_the_papers_own_bold(record: Make) -> None:
    real = {"data": "dsec", "profile": "paper", "config": {"width": "tiny"}}
    records = [fine_tuned(record, DEFAULT, miou, seed=seed, **real) for seed, miou in enumerate((60.0, 62.0))]
    records.append(fine_tuned(record, row_recipe("patch_norm", "w/o norm"), 70.0, **real))
    ablation = read_ablation("patch_norm")
    (found,) = measured_rows(ablation, records)
    table = measured_table(ablation, found)
    without, default = table.rows
    assert [cell.text for cell in default.cells[1:4]] == ["62.774", "61.000 ± 1.414", "-1.774"]
    assert [cell.text for cell in without.cells[1:4]] == ["61.792", "70.000", "+8.208"]
    assert default.cells[2].runs == 2
    assert [[cell.bold for cell in row.cells[1:3]] for row in table.rows] == [[False, False], [True, False]]
    # Neither the sample world's numbers nor those of another split have a distance from the paper's.
    for change in ({"data": "sample"}, {"split": "val"}):
        (other,) = measured_rows(ablation, [each | change for each in records])
        assert [column.headers[-1] for column in measured_table(ablation, other).columns[1:]] == [
            "paper",
            "measured",
        ] * 2
    assert any("validation split" in note for note in measured_table(ablation, other).notes)


def test_records_find_their_rows_by_the_weights_they_started_from(record: Make) -> None:
    records = [
        fine_tuned(record, row_recipe("target", "Eq. 6"), 41.0),
        fine_tuned(record, DEFAULT, 43.0),
        fine_tuned(record, DEFAULT, 44.0, seed=1),
        record("tespec", miou=99.0, task="dsec"),
        record("scratch", miou=98.0, task="dsec"),
    ]
    (found,) = measured_rows(read_ablation("target"), records)
    assert {name: [each["metrics"]["miou"] for each in rows] for name, rows in found.rows.items()} == {
        "Eq. 6": [41.0],
        "Eq. 7": [43.0, 44.0],
    }
    shown = render_text(measured_table(read_ablation("target"), found))
    assert "43.500 ± 0.707 " in shown
    assert "Nothing can be told apart in mIoU, mAcc." in shown
    assert "Fewer seeds: Eq. 6." in shown


def labels(record: Make, table: str, default: dict[str, Any]) -> list[str]:
    ablation = read_ablation(table)
    records = [
        fine_tuned(record, changed(row, default), 40.0 + number, task=ablation.task)
        for number, row in enumerate(ablation.rows)
    ]
    (found,) = measured_rows(ablation, records)
    return [row.cells[0].text for row in measured_table(ablation, found).rows]


def test_a_row_says_the_value_that_was_used(record: Make) -> None:
    assert labels(record, "norm_events", DEFAULT) == [
        "500 (measured with 300)",
        "5,000 (default, measured with 3,000)",
        "50,000 (measured with 30,000)",
        "200,000 (measured with 120,000)",
    ]
    assert labels(record, "steps", DEFAULT)[:3] == [
        "200k (measured with 300)",
        "300k (measured with 450)",
        "400k (default, measured with 600)",
    ]
    assert labels(record, "masking", DEFAULT) == ["0%", "25%", "50% (default)", "75%"]
    assert labels(record, "objective", DEFAULT) == ["CPC", "ECDDP", "MAE (default)"]
    half = as_facts(pretraining_settings("tespec", "sample", ["objective.mask.ratio=0.4"]))
    assert labels(record, "masking", half)[2] == "50% (default, measured with 0.4)"


def test_with_the_papers_settings_a_row_is_named_as_in_the_paper(record: Make) -> None:
    papers = as_facts(pretraining_settings("tespec", "paper"))
    for name, ablation in ablations().items():
        assert labels(record, name, papers) == [
            row.name + (" (default)" if row.default else "") for row in ablation.rows
        ]


def test_another_length_of_training_is_another_default(record: Make) -> None:
    short = as_facts(pretraining_settings("tespec", "sample", ["optimisation.steps=70"]))
    records = [
        fine_tuned(record, row_recipe("target", "Eq. 6", short), 41.0),
        fine_tuned(record, short, 43.0),
        fine_tuned(record, row_recipe("target", "Histograms"), 99.0),
    ]
    (found,) = measured_rows(read_ablation("target"), records)
    assert {name: rows[0]["metrics"]["miou"] for name, rows in found.rows.items()} == {"Eq. 6": 41.0, "Eq. 7": 43.0}


def test_of_an_ablation_measured_on_two_data_the_newest_comes_first_and_notes_tell_them_apart(record: Make) -> None:
    records = [
        fine_tuned(record, recipe, miou, data_fingerprint=data) | {"written": f"2026-01-0{day}T00:00:00+00:00"}
        for data, day in (("first", 1), ("third", 3), ("second", 2))
        for recipe, miou in ((DEFAULT, 43.0), (row_recipe("target", "Eq. 6"), 41.0))
    ]
    found = measured_rows(read_ablation("target"), records)
    assert [each.basis.records[0]["data_fingerprint"] for each in found] == ["third", "second", "first"]
    notes = {measured_table(read_ablation("target"), each).notes for each in found}
    assert len(notes) == 3
    assert all(any("code " in note for note in each) for each in notes)


def test_one_row_alone_is_no_ablation(record: Make) -> None:
    assert measured_rows(read_ablation("target"), [fine_tuned(record, DEFAULT, 43.0)]) == []


def test_data_profiles_and_architectures_stay_apart(record: Make) -> None:
    eq6 = row_recipe("target", "Eq. 6")
    records = [
        fine_tuned(record, eq6, 41.0),
        fine_tuned(record, DEFAULT, 43.0, data_fingerprint="another"),
        fine_tuned(record, DEFAULT, 44.0, arch="feedforward", config={"arch": "feedforward"}),
    ]
    assert measured_rows(read_ablation("target"), records) == []

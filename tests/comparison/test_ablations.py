from __future__ import annotations

import re
from pathlib import Path

import pytest

from tespec.comparison import published as module
from tespec.comparison.published import read_ablations
from tespec.core.config import as_facts, flattened, pretraining_settings
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


def lines_of(label: str) -> list[tuple[list[str], int]]:
    """Cells of the table's rows in the paper's source, and whether a row is in bold."""
    before = SOURCE.split(rf"\label{{{label}}}")[0]
    body = re.split(r"\\(?:mid|h)rule|\\hline", before[before.rindex(r"\begin{tabular}") :])
    rows = []
    for line in "".join(body).split(r"\\"):
        if "&" in line and re.search(r"\d\.\d{3}", line):
            cells = [re.sub(r"\\textbf\{(.*)\}$", r"\1", cell.strip()).replace(r"\%", "%") for cell in line.split("&")]
            rows.append((cells, line.strip().count(r"\textbf")))
    return rows


PAPERS = [name for name, ablation in read_ablations().items() if ablation.label]


@pytest.mark.parametrize("name", PAPERS)
def test_every_cell_is_the_papers(name: str) -> None:
    ablation = read_ablations()[name]
    lines = lines_of(ablation.label)
    assert len(lines) == len(ablation.rows)
    for row, (cells, bold) in zip(ablation.rows, lines, strict=True):
        assert SHOWN.get(cells[0], cells[0]) == row.name
        assert [float(cell) for cell in cells[1:]] == list(row.paper)
        assert bool(bold) == row.default


def test_all_tables_of_the_source_are_there() -> None:
    assert {read_ablations()[name].label for name in PAPERS} == set(re.findall(r"\\label\{(.*?)\}", SOURCE)) - {
        "tab:all-ablation"
    }


@pytest.mark.parametrize("profile", ["paper", "sample"])
@pytest.mark.parametrize("name", read_ablations())
def test_a_row_differs_from_the_default_in_the_setting_it_names_and_in_no_other(name: str, profile: str) -> None:
    default = as_facts(pretraining_settings("tespec", profile))
    unchanged = flattened(default)
    variants = read_ablations()[name].variants
    assert len(set(variants)) == len(variants)
    for row in read_ablations()[name].rows:
        found = flattened(as_facts(pretraining_settings("tespec", profile, row.changes(default))))
        assert (found == unchanged) == row.default
        different = {key for key in found | unchanged if found.get(key) != unchanged.get(key)}
        named = {*row.set, *row.scale}
        if named == {"objective"}:
            # Another objective brings its own settings, and takes those of masked reconstruction away.
            assert {key.partition(".")[0] for key in different} <= named | {"deviations"}
            assert found["objective.type"] == row.set["objective"]
        else:
            assert different == named
            assert {key: found[key] for key in row.set} == row.set
            assert {key: found[key] for key in row.scale} == {
                key: unchanged[key] * factor for key, factor in row.scale.items()
            }


def test_numbers_that_are_scaled_are_the_papers() -> None:
    default = as_facts(pretraining_settings("tespec", "paper"))
    for name, key, numbers in (
        ("steps", "optimisation.steps", [200_000, 300_000, 400_000, 500_000]),
        ("norm_events", "objective.target.norm_events", [500, 5_000, 50_000, 200_000]),
    ):
        every = [pretraining_settings("tespec", "paper", row.changes(default)) for row in read_ablations()[name].rows]
        assert [flattened(as_facts(each))[key] for each in every] == numbers


def test_variants_are_named_by_table_and_row() -> None:
    assert read_ablations()["masking"].variants == ["masking: 0%", "masking: 25%", "", "masking: 75%"]
    assert read_ablations()["target_ddd17"].variants == ["target: Eq. 6", ""]


@pytest.mark.parametrize(
    "text",
    ["masking: 3", "masking: {title: a}", "m: {title: a, label: b, variable: c, task: d, rows: []}", "m: {rows: [{}]}"],
)
def test_an_edited_file_is_refused_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    (tmp_path / "ablations.yaml").write_text(text)
    monkeypatch.setattr(module, "PUBLISHED", tmp_path)
    with pytest.raises(UserError, match=r"ablations\.yaml: is no table of ablations") as refused:
        read_ablations.__wrapped__()
    assert len(str(refused.value)) < 300

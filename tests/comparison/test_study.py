"""The page of the sample world study and its committed tables hold the numbers of the committed records."""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd
import pytest

from tespec.comparison.export import write_tables
from tespec.comparison.frame import healthy, to_frame
from tespec.comparison.records import Record, read_records
from tespec.comparison.tables import gains_table, make_tables
from tespec.core.paths import REPOSITORY

STUDY, DOCS = REPOSITORY / "results" / "sample", REPOSITORY / "docs"
PAGE = (DOCS / "study.md").read_text()


def rows(heading: str) -> list[list[str]]:
    """Cells of the table below a heading of the page."""
    section = PAGE.split(f"## {heading}\n")[1].split("\n## ")[0]
    return [[cell.strip() for cell in row.split("|")[1:-1]] for row in re.findall(r"^\|.*", section, re.MULTILINE)[2:]]


@pytest.fixture(scope="module")
def records() -> list[Record]:
    found, problems = read_records(STUDY)
    assert problems == []
    return found


@pytest.fixture(scope="module")
def frame(records: list[Record]) -> pd.DataFrame:
    return to_frame(records)


def test_scores_of_the_page_are_those_of_the_records(frame: pd.DataFrame) -> None:
    main = frame[frame.main & frame.kind.isin(["evaluation", "reference"]) & (frame.variant == "")]
    title = main.title.where(main.kind == "evaluation", "Label prior")
    cells = {key: of_cell.value for key, of_cell in main.assign(title=title).groupby(["title", "arch"])}
    shown = rows("Scores")
    assert len(shown) == len(cells)
    for name, arch, text in shown:
        values = cells[name, arch.replace("-", "")]
        spread = f" ± {values.std():.2f}" if len(values) > 1 else ""
        assert text == f"{values.mean():.2f}{spread} ({len(values)})", (name, arch)


def test_gains_of_the_page_are_those_of_the_records(frame: pd.DataFrame) -> None:
    cells = gains_table(frame, "scratch", {"variant": ""}).cells.reset_index()
    arch = cells["Recurrent"].map({"yes": "recurrent", "no": "feed-forward"})
    columns = [cells[name] for name in ("Method", "gain", "95 % interval", "p (Holm)")]
    wanted = [[method, each, *more] for each, method, *more in zip(arch, *columns, strict=True)]
    assert sorted(rows("Gains")) == sorted(wanted)


def test_pre_trainings_of_the_page_are_those_of_the_records(records: list[Record]) -> None:
    made = [each for each in records if each.kind == "pretraining" and not each.overrides and each.variant == ""]
    found = [
        [
            each.facts["title"],
            str(each.seed),
            f"{next(iter(each.metrics.values())):.3f}",
            " ".join(f"{point['rank']:.1f}" for point in each.curves["last_stage"]),
            "healthy" if healthy(each)[0] else "low rank",
        ]
        for each in made
        if each.method != "mem-tokenizer"
    ]
    assert sorted(rows("Pre-trainings")) == sorted(found)


def test_committed_tables_are_made_of_the_records(frame: pd.DataFrame, tmp_path: Path) -> None:
    write_tables([*make_tables(frame, measured=True), gains_table(frame, "scratch")], tmp_path)
    committed = {path.name: path.read_text() for path in (STUDY / "tables").iterdir()}
    assert committed == {name: (tmp_path / name).read_text() for name in committed}
    assert len(committed) == len(list(tmp_path.glob("*_long.csv"))) * 2
    figure = (DOCS / "pictures" / "study.svg").read_text()
    assert all(title in figure for title in {*frame[frame.kind == "evaluation"].title, "label prior"})

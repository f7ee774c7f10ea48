"""The page of the sample world study and its committed tables hold the numbers of the committed records."""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd
import pytest

from tespec.comparison.export import write_tables
from tespec.comparison.frame import to_frame
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
    main = frame[frame.main & frame.kind.isin(["evaluation", "reference"])]
    title = main.title.where(main.kind == "evaluation", "Label prior")
    cells = {key: of_cell.value for key, of_cell in main.assign(title=title).groupby(["title", "arch"])}
    shown = rows("Scores")
    assert len(shown) == len(cells)
    for name, arch, text in shown:
        values = cells[name, arch.replace("-", "")]
        spread = f" ± {values.std():.2f}" if len(values) > 1 else ""
        assert text == f"{values.mean():.2f}{spread} ({len(values)})", (name, arch)
    prior = cells["Label prior", "feedforward"].item()
    assert all(values.mean() > 1.8 * prior for (name, _), values in cells.items() if name != "Label prior")


def test_gains_of_the_page_are_those_of_the_records(frame: pd.DataFrame) -> None:
    cells = gains_table(frame, "scratch").cells.reset_index()
    arch = cells["Recurrent"].map({"yes": "recurrent", "no": "feed-forward"})
    columns = [cells[name] for name in ("Method", "gain", "95 % interval", "p (Holm)")]
    wanted = [[method, each, *more] for each, method, *more in zip(arch, *columns, strict=True)]
    assert sorted(rows("Gains")) == sorted(wanted)
    assert (cells["p (Holm)"].astype(float) > 0.05).all()
    for each, said in (("no", "Feed-forward"), ("yes", "Recurrent")):
        gains = cells["gain"][cells["Recurrent"] == each].astype(float)
        assert re.search(rf"{said}, [^.]* between {gains.min():+.2f} and {gains.max():+.2f}", " ".join(PAGE.split()))


def test_pre_trainings_of_the_page_are_those_of_the_records(records: list[Record]) -> None:
    found = [
        [each.facts["title"], str(each.seed), f"{next(iter(each.metrics.values())):.3f}",
         f"{each.metrics['last_stage_rank']:.1f}"]
        for each in records if each.kind == "pretraining" and each.method != "mem-tokenizer"
    ]  # fmt: skip
    assert sorted(rows("Pre-trainings")) == sorted(found)


def test_committed_tables_are_made_of_the_records(frame: pd.DataFrame, tmp_path: Path) -> None:
    write_tables([*make_tables(frame, measured=True), gains_table(frame, "scratch")], tmp_path)
    committed = {path.name: path.read_text() for path in (STUDY / "tables").iterdir()}
    assert committed == {path.name: path.read_text() for path in tmp_path.glob("*.csv")}
    figure = (DOCS / "pictures" / "study.svg").read_text()
    assert all(title in figure for title in {*frame[frame.kind == "evaluation"].title, "label prior"})

"""The page of the sample world study and its committed tables hold the numbers of the committed records."""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd
import pytest

from tespec.comparison.export import write_tables
from tespec.comparison.frame import results
from tespec.comparison.tables import gains_table, make_tables
from tespec.core.paths import REPOSITORY

STUDY = REPOSITORY / "results" / "sample"
PAGE = (REPOSITORY / "docs" / "study.md").read_text()
METHODS = {"Label prior": "prior", "No pre-training": "scratch", "RGB supervised": "imagenet"}


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    return results(STUDY)


def test_the_scores_of_the_page_are_those_of_the_records(frame: pd.DataFrame) -> None:
    main = frame[frame.main & (frame.variant == "") & (frame.label_fraction == 1)]
    rows = [[cell.strip() for cell in row.split("|")[1:-1]] for row in re.findall(r"^\|.*", PAGE, re.MULTILINE)[2:]]
    for title, arch, *cells in rows:
        method = METHODS.get(title, title.lower())
        of_row = main[(main.method == method) & main.arch.isin([arch.replace("-", "")] if arch != "-" else main.arch)]
        for task, digits, cell in zip(("ddd17", "gen1", "mvsec"), (2, 2, 3), cells, strict=True):
            values = of_row[of_row.task == task].value
            spread = f" ± {values.std():.{digits}f}" if len(values) > 1 else ""
            assert cell == (f"{values.mean():.{digits}f}{spread}" if len(values) else "-"), (title, arch, task)
    assert len(rows) == 16


def test_the_gains_of_the_page_are_those_of_the_records(frame: pd.DataFrame) -> None:
    cells = gains_table(frame, "scratch").cells
    tested = cells[cells["p"] != "-"]
    significant = tested[tested["p (Holm)"].astype(float) < 0.05]
    assert f"Of {len(tested)} gains" in PAGE
    assert len(significant) == 2
    for gain, interval, p in significant[["gain", "95 % interval", "p (Holm)"]].to_numpy():
        assert f"{gain} mAP {interval}, p = {p}" in " ".join(PAGE.split())


def test_committed_tables_are_made_of_the_records(frame: pd.DataFrame, tmp_path: Path) -> None:
    write_tables([*make_tables(frame, measured=True), gains_table(frame, "scratch")], tmp_path)
    committed = {path.name: path.read_text() for path in (STUDY / "tables").iterdir()}
    assert committed == {name: (tmp_path / name).read_text() for name in committed}
    assert len(committed) == 10

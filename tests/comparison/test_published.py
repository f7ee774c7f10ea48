"""The published numbers are those of the paper's source, and the settings of its profile those of its tables."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tespec.comparison import published as module
from tespec.comparison.published import TABLES, published_frame, read_published, titles_of
from tespec.core.config import as_facts, finetuning_settings, pretraining_settings
from tespec.core.errors import UserError
from tespec.core.paths import PUBLISHED

DATA = Path(__file__).parent / "data"
EXCERPTS = {"segmentation": "tab-sem-seg.tex", "detection": "tab-obj-det.tex", "depth": "tab-depth-est.tex"}
MARKS = {"†": r"$^\dagger$", "‡": r"$^\ddagger$", "": ""}
# (task, metric) of the paper's number columns, from left to right.
COLUMNS = {
    "segmentation": [(task, metric) for task in ("dsec", "ddd17") for metric in ("miou", "mean_class_acc")],
    "detection": [("gen1", "map"), ("1mpx", "map")],
    "depth": [("mvsec", metric) for metric in ("delta_1", "delta_2", "delta_3", "abs", "rms", "rms_log")],
}
ROWS = {"segmentation": 13, "detection": 12, "depth": 13}
EXCERPT = {name: (DATA / file).read_text(encoding="utf-8") for name, file in EXCERPTS.items()}
every_table = pytest.mark.parametrize("name", TABLES)


def published_lines(name: str, decimals: int) -> list[list[list[str]]]:
    """Cells of the paper's rows, a list for each group of lines between two rules; numbers with equal decimals."""
    body = EXCERPT[name].split(r"\midrule")[1].split(r"\bottomrule")[0].replace(r"\color{gray} ", r"\color{gray}")
    body = re.sub(r"\b\d+\.\d+\b", lambda number: f"{float(number[0]):.{decimals}f}", body)
    groups = [[row.strip() for row in block.split(r"\\") if "&" in row] for block in body.split(r"\hline")]
    return [[[cell.strip() for cell in row.split("&")] for row in group] for group in groups]


def source_of(row: dict[str, Any], name: str, decimals: int) -> list[str]:
    """The line of the paper's source that a row has to come from, by cells."""
    cite = rf"~\cite{{{row['citation']}}}" if "citation" in row else ""
    title = row["title"].replace("TESPEC (Ours)", r"\algoNameFull (\textbf{Ours})")
    cells = [
        title + MARKS[row.get("mark", "")] + cite,
        row["backbone"],
        "Yes" if row["recurrent"] else "No",
        row["pretraining"],
    ]
    metrics = list(titles_of(name)[1])
    for task, metric in COLUMNS[name]:
        value = row["scores"][task][metrics.index(metric)]
        text = "-" if value is None else f"{value:.{decimals}f}"
        cells.append(rf"\textbf{{{text}}}" if metric in row.get("bold", {}).get(task, ()) else text)
    return [cell if row.get("ranked", True) else rf"\color{{gray}}{cell}" for cell in cells]


@every_table
def test_every_cell_and_heading_is_the_papers(name: str) -> None:
    table = read_published(name)
    papers = published_lines(name, table["decimals"])
    assert [[source_of(row, name, table["decimals"]) for row in group["rows"]] for group in table["groups"]] == papers
    assert sum(map(len, papers)) == ROWS[name]
    headings = [group["heading"] for group in table["groups"] if group["heading"]]
    assert headings == re.findall(r"\\textit\{(.*?)\.?\}", EXCERPT[name])[:1]


@every_table
def test_metrics_point_where_the_papers_arrows_do(name: str) -> None:
    arrows = [{"up": "↑", "down": "↓"}[arrow] for arrow in re.findall(r"\\(up|down)arrow", EXCERPT[name])]
    metrics = read_published(name)["metrics"]
    better = [{"higher": "↑", "lower": "↓"}[metric["better"]] for metric in metrics]
    assert arrows == better * (len(arrows) // len(better))
    assert [metric["title"][-1] for metric in metrics] == better


@every_table
def test_marks_are_explained_and_the_dagger_tells_test_time_augmentation(name: str) -> None:
    rows = [row for group in read_published(name)["groups"] for row in group["rows"]]
    assert {row["mark"] for row in rows if "mark" in row} == set(read_published(name)["marks"])
    dagger = [row.get("mark") == "†" and name == "segmentation" for row in rows]
    assert [row.get("test_time_augmentation", False) for row in rows] == dagger


def test_bold_numbers_are_the_best_of_the_ranked_rows() -> None:
    for _, column in published_frame().groupby(["table", "task", "metric"]):
        ranked = column[column["ranked"]]["value"]
        best = ranked.max() if column["better"].iloc[0] == "higher" else ranked.min()
        assert (column["bold"] == (column["ranked"] & (column["value"] == best))).all()


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("depth.yaml", "[0.634, ", "["),
        ("depth.yaml", "backbone:", "back:"),
        ("beyond.yaml", "{dsec: [null, null], ddd17", "{dsec: [null], ddd17"),
        ("beyond.yaml", "miou:", "mIoU:"),
        ("depth.yaml", "mvsec: [", "mvsce: ["),
        ("depth.yaml", "[0.634, ", "[a, "),
        ("beyond.yaml", "marks:", "marks: ["),
    ],
)
def test_an_incomplete_row_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, old: str, new: str
) -> None:
    for path in PUBLISHED.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    text = (tmp_path / file).read_text(encoding="utf-8")
    (tmp_path / file).write_text(text.replace(old, new, 1), encoding="utf-8")
    monkeypatch.setattr(module, "PUBLISHED", tmp_path)
    monkeypatch.setattr(module, "read_published", read_published.__wrapped__)
    with pytest.raises(UserError, match=file) as refused:
        published_frame()
    assert "\n" not in str(refused.value)


# The appendix's tables of settings: batch size, peak learning rate, schedule, steps, warm-up steps, sequence length, T
# in ms (None: not compared, since windows end at labels of another rate).
SETTINGS: dict[tuple[str, str], tuple[Any, ...]] = {
    ("gen1", "recurrent"): (8, 2e-4, "linear", 400_000, 2000, 21, 50),
    ("1mpx", "recurrent"): (24, 3.46e-4, "linear", 400_000, 2000, 5, 50),
    ("mvsec", "recurrent"): (8, 1e-4, "cosine", 20_000, 100, 10, 50),
    ("dsec", "recurrent"): (8, 1e-4, "cosine", 50_000, 250, 10, None),
    ("ddd17", "recurrent"): (16, 1e-4, "cosine", 50_000, 250, 15, None),
    ("gen1", "feedforward"): (64, 2e-4, "linear", 400_000, 2000, 1, 50),
    ("1mpx", "feedforward"): (32, 3.46e-4, "linear", 400_000, 2000, 1, 50),
    ("mvsec", "feedforward"): (16, 1e-4, "cosine", 20_000, 100, 1, 100),
    ("dsec", "feedforward"): (16, 1e-4, "cosine", 50_000, 250, 1, 100),
    ("ddd17", "feedforward"): (16, 1e-4, "cosine", 50_000, 250, 1, 100),
    ("tespec", "pretraining"): (8, 2e-4, "linear", 400_000, 2000, 15, 50),
}


@pytest.mark.parametrize(("name", "arch"), SETTINGS)
def test_the_paper_profile_has_the_papers_settings(name: str, arch: str) -> None:
    pretrains = arch == "pretraining"
    facts = as_facts(pretraining_settings(name, "paper") if pretrains else finetuning_settings(name, arch, "paper"))
    window = SETTINGS[name, arch][-1]
    optimisation = facts["optimisation"]
    names = ("peak_lr", "schedule", "steps", "warmup_steps")
    found = (facts["batch_size"], *(optimisation[key] for key in names), facts["segments"])
    assert found == SETTINGS[name, arch][:-1]
    assert [optimisation[key] for key in ("optimizer", "start_divisor", "end_divisor")] == ["Adam", 25, 1000]
    if window is not None:
        assert facts["window_ms"] in (None, window)
    if pretrains:
        assert facts["window_ms"] == window
        assert (facts["objective"]["mask"]["ratio"], facts["objective"]["target"]["norm_events"]) == (0.5, 5000)

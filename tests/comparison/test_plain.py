from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from tespec.comparison.published import PAPER, plain_tables
from tespec.core.config import as_facts, finetuning_settings, pretraining_settings

SOURCE = (Path(__file__).parent / "data" / "tab-supp-facts.tex").read_text(encoding="utf-8")
FACTS = yaml.safe_load((PAPER / "plain.yaml").read_text(encoding="utf-8"))
SHOWN = {
    r"\algoNameFull": "TESPEC",
    r"$\intervalLength$": "T",
    r"$\denormEvents$": "N",
    r"$c_1$, $c_2$": "c1, c2",
    r"$d_{\text{max}}, \alpha$": "d_max, α",
    r"$\times$": "× ",
    r"$4\times$": "4×",
    r"$2\times$": "2×",
    r"$1\times$": "1×",
    r"$50\%$": "50%",
}


def papers_rows(label: str) -> list[list[str]]:
    """Cells of a table of the paper's source, those over several columns repeated."""
    before = SOURCE.split(rf"\label{{{label}}}")[0]
    body = before[before.rindex(r"\begin{tabular}") :].split(r"\end{tabular}")[0]
    body = re.sub(r"\\begin\{tabular\}\{.*\}\n", "", body)
    body = re.sub(r"\\(top|mid|bottom)rule|\\hline|\\rowcolor\{.*?\}|\\cmidrule(\(.*?\))?\{.*?\}", "", body)
    rows = []
    for line in body.split(r"\\"):
        cells = []
        for cell in line.split("&"):
            spanned = re.fullmatch(r"\\multicolumn\{(\d)\}\{\w+\}\{(.*)\}", cell.strip(), re.DOTALL)
            count, text = (int(spanned[1]), spanned[2]) if spanned else (1, cell.strip())
            text = re.sub(r"\\multirow\{\d\}\{\*\}\{(.*)\}", r"\1", re.sub(r"\\text\{(.*?)\}$", r"\1", text))
            for sign, shown in SHOWN.items():
                text = text.replace(sign, shown)
            cells += [re.sub(r"\s+", " ", text).strip()] * count
        if any(cells):
            rows.append(cells)
    return rows


@pytest.mark.parametrize("name", FACTS)
def test_every_cell_is_the_papers(name: str) -> None:
    facts = FACTS[name]
    papers = papers_rows(facts["label"])
    ours = [row for group in facts["groups"] for row in group["rows"]]
    assert [row for row in papers if row in ours] == ours
    # What is left over are headers and headings.
    rest = [cell for row in papers if row not in ours for cell in row if cell]
    assert not any(re.search(r"\d\.\d|\b\d{3}", cell) for cell in rest)


def test_all_tables_of_the_source_are_there() -> None:
    labels = set(re.findall(r"\\label\{(.*?)\}", SOURCE)) - {"tab:all-config", "tab:all-augmentation"}
    assert {facts["label"] for facts in FACTS.values()} == labels


def test_numbers_have_values_and_texts_have_none() -> None:
    tables = plain_tables()
    (steps,) = (row for row in tables["settings_pretraining"].rows if row.cells[0].text == "Training Steps")
    assert steps.cells[1].value == 400_000
    (divisors,) = (row for row in tables["settings_depth"].rows if row.cells[0].text == "c1, c2")
    assert divisors.cells[1].value is None
    assert tables["runtime"].columns[1].number
    assert not tables["settings_depth"].columns[1].number


COLUMNS = [
    ("settings_detection", "gen1"),
    ("settings_detection", "1mpx"),
    ("settings_depth", "mvsec"),
    ("settings_segmentation", "dsec"),
    ("settings_segmentation", "ddd17"),
]


@pytest.mark.parametrize("arch", ["recurrent", "feedforward"])
@pytest.mark.parametrize(("name", "task"), COLUMNS)
def test_the_paper_profile_has_the_papers_settings(name: str, task: str, arch: str) -> None:
    table = plain_tables()[name]
    titles = {"recurrent": "Recurrent", "feedforward": "Feedforward"}
    headers = [column.headers for column in table.columns]
    index = next(
        at for at, each in enumerate(headers) if each[0] == titles[arch] and each[-1].lower() == task
    )  # fmt: skip
    paper = {row.cells[0].text: row.cells[index].text for row in table.rows}
    facts = as_facts(finetuning_settings(task, arch, "paper"))
    check_settings(paper, facts)
    if arch == "feedforward" or task not in ("ddd17", "dsec"):
        assert facts["window_ms"] in (None, float(paper["T"].removesuffix("ms")))


def test_the_paper_profile_has_the_papers_pretraining() -> None:
    paper = {row.cells[0].text: row.cells[1].text for row in plain_tables()["settings_pretraining"].rows}
    facts = as_facts(pretraining_settings("tespec", "paper"))
    check_settings(paper, facts)
    assert facts["window_ms"] == float(paper["T"].removesuffix("ms"))
    assert facts["objective"]["mask"]["ratio"] == float(paper["Masking Ratio"].removesuffix("%")) / 100
    assert facts["objective"]["target"]["norm_events"] == float(paper["N"].replace(",", ""))


def check_settings(paper: dict[str, str], facts: dict) -> None:
    optimisation = facts["optimisation"]
    divisors = [float(each.replace(",", "")) for each in paper["c1, c2"].split(", ")]
    assert facts["batch_size"] == int(paper["Effective Batch Size"])
    assert optimisation["peak_lr"] == float(paper["Peak Learning Rate"])
    assert [optimisation["start_divisor"], optimisation["end_divisor"]] == divisors
    assert optimisation["optimizer"] == paper["Optimizer"]
    assert optimisation["schedule"] == paper["Scheduler"].lower()
    assert optimisation["steps"] == int(paper["Training Steps"].replace(",", ""))
    assert optimisation["warmup_steps"] == int(paper["Warm Up Steps"].replace(",", ""))
    assert facts["segments"] == int(paper["Sequence Length"])

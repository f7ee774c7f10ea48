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
from tespec.plan.jobs import expand, missing_jobs, read_plan, up_to_date

STUDY, DOCS = REPOSITORY / "results" / "sample", REPOSITORY / "docs"
PAGE, README = (DOCS / "study.md").read_text(), (REPOSITORY / "README.md").read_text()


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


def test_scores_and_gains_of_the_page_are_those_of_the_records(frame: pd.DataFrame) -> None:
    main = frame[frame.main & frame.kind.isin(["evaluation", "reference"])]
    network = main.width.map({"micro": "Swin", "resnet-micro": "ResNet"}).where(main.kind == "evaluation", "-")
    title = main.title.where(main.kind == "evaluation", "Label prior")
    scores = main.assign(title=title, network=network).groupby(["title", "network", "arch"]).value
    gains = gains_table(frame, "scratch").cells.reset_index()
    arch = gains["Recurrent"].map({"yes": "recurrent", "no": "feedforward"})
    columns = [gains[name] for name in ("gain", "95 % interval", "p (Holm)")]
    of_method = {(name, each): more for name, each, *more in zip(gains["Method"], arch, *columns, strict=True)}
    prior, wanted = main[main.kind == "reference"].value.item(), []
    for (name, of_network, each), values in scores:
        spread = f" ± {values.std():.2f}" if len(values) > 1 else ""
        text = f"{values.mean():.2f}{spread} ({len(values)})"
        shown = each.replace("feedforward", "feed-forward")
        wanted.append([name, of_network, shown, text, *of_method.get((name, each), ["-"] * 3)])
        assert name == "Label prior" or values.mean() > 1.8 * prior
    assert sorted(rows("Scores and gains")) == sorted(wanted)
    assert (gains["p (Holm)"].astype(float) > 0.05).all()
    text = " ".join(PAGE.split())
    for each, said in (("feedforward", "Feed-forward"), ("recurrent", "Recurrent")):
        of_arch = gains["gain"][arch == each].astype(float)
        span = re.escape(f"{of_arch.min():+.2f} and {of_arch.max():+.2f} mIoU")
        assert re.search(rf"{said}, [^.]* between {span}", text)


def test_pre_trainings_of_the_page_are_those_of_the_records(records: list[Record]) -> None:
    made = [each for each in records if each.kind == "pretraining" and each.method != "mem-tokenizer"]
    found: dict[str, list[Record]] = {}
    for each in sorted(made, key=lambda record: record.seed):
        found.setdefault(each.facts["title"], []).append(each)
    wanted = [
        [title, *(", ".join(texts) for texts in zip(*((f"{next(iter(each.metrics.values())):.3f}",
                  f"{each.metrics['last_stage_rank']:.1f}") for each in both), strict=True))]
        for title, both in found.items()
    ]  # fmt: skip
    assert sorted(rows("Pre-trainings")) == sorted(wanted)
    for each in found["TESPEC"]:
        assert [f"{each.metrics[name]:.3f}" for name in ("loss_masked_zeroed", "loss_zero")] == ["0.921", "0.921"]


def test_committed_tables_are_made_of_the_records(frame: pd.DataFrame, tmp_path: Path) -> None:
    write_tables([*make_tables(frame, measured=True), gains_table(frame, "scratch")], tmp_path)
    committed = {path.name: path.read_text() for path in (STUDY / "tables").iterdir()}
    assert committed == {path.name: path.read_text() for path in tmp_path.glob("*.csv")}
    figure = (DOCS / "pictures" / "study.svg").read_text()
    assert all(title in figure for title in {*frame[frame.kind == "evaluation"].title, "label prior"})


def test_of_the_plan_only_the_ablations_are_missing(records: list[Record]) -> None:
    jobs = expand(read_plan("sample"))
    missing = missing_jobs(jobs, up_to_date(records), Path("no runs"))
    assert {job.variant for job in jobs} - {job.variant for job in missing} == {""}
    assert "" not in {job.variant for job in missing}


def test_the_readme_has_the_scores_of_the_page() -> None:
    scores = {
        (name, network, arch): text.rpartition(" (")[0] for name, network, arch, text, *_ in rows("Scores and gains")
    }
    shown = re.findall(r"^\| ([^|]+?)( \(ResNet\))? \| ([\d.± -]+) \| ([\d.± -]+) \|$", README, re.MULTILINE)
    for name, resnet, *texts in shown:
        network = "-" if name == "Label prior" else "ResNet" if resnet else "Swin"
        assert texts == [scores.pop((name, network, arch), "-") for arch in ("feed-forward", "recurrent")]
    assert scores == {}

"""The page of the sample world study and its tables hold the numbers of the committed records."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterable
from functools import partial
from pathlib import Path

import pandas as pd
import pytest
from scipy.special import stdtrit

from tespec.comparison.check import LARGEST, check_records
from tespec.comparison.export import write_tables
from tespec.comparison.frame import to_frame
from tespec.comparison.gains import compare_evaluations, gains_table
from tespec.comparison.records import ARCHIVE, Record, read_records, write_archive
from tespec.comparison.statistics import ALPHA
from tespec.comparison.tables import make_tables
from tespec.core.files import read_yaml
from tespec.core.paths import REPOSITORY
from tespec.runs.history import ALL, LENGTHS

STUDY, DOCS = REPOSITORY / "results" / "sample", REPOSITORY / "docs"
MANIFEST = read_yaml(STUDY / "manifest.yaml")
PAGE, README = (DOCS / "study.md").read_text(), (REPOSITORY / "README.md").read_text()
TEXT = " ".join(PAGE.split())
ARCH = {"feedforward": "feed-forward", "recurrent": "recurrent"}
HEADINGS = {"frozen": "Frozen backbones", "full": "Full fine-tuning"}
# Changes of TESPEC's pre-training, compared with the unchanged one.
ABLATIONS = {"method": "tespec", "arch": "recurrent", "frozen": "True"}
ABLATIONS["pretraining_overrides"] = "*"
ABLATION_TITLES = {
    "": "Unchanged",
    "objective.target.kind=histograms": "Target: event histograms",
    "objective.target.kind=high_pass": "Target: Eq. 6 instead of Eq. 7",
    "objective.patch_norm=False": "Without patch normalisation",
    "recurrent=False": "Without memory (ConvLSTMs stay random)",
}


def rows(heading: str) -> list[list[str]]:
    """Cells of the table below a heading of the page."""
    section = PAGE.split(f"## {heading}\n")[1].split("\n## ")[0]
    return [
        [cell.strip() for cell in row.split("|")[1:-1]]
        for row in re.findall(r"^\|.*", section, re.MULTILINE)[2:]
    ]


def scores_of(records: Iterable[Record]) -> str:
    """Names and main numbers of records as CSV."""
    lines = ["name,metric,value"]
    for record in sorted(records, key=lambda record: record.name):
        metric, value = next(iter(record.metrics.items()))
        lines.append(f"{record.name},{metric},{'' if value is None else repr(value)}")
    return "\n".join([*lines, ""])


def write_csv_tables(frame: pd.DataFrame, folder: Path) -> None:
    tables = make_tables(frame, measured=True, by="evaluation")
    gains = gains_table(frame, "scratch", {"frozen": "*"})
    write_tables([*tables, gains, gains_table(frame, "tespec", ABLATIONS)], folder)
    for path in folder.iterdir():
        if path.suffix != ".csv":
            path.unlink()


def commit_study(records: list[Record], folder: Path) -> None:
    """Replace a committed study by records."""
    write_archive(records, folder / ARCHIVE)
    (folder / "scores.csv").write_text(scores_of(records))
    shutil.rmtree(folder / "tables", ignore_errors=True)
    write_csv_tables(to_frame(records), folder / "tables")


@pytest.fixture(scope="module")
def records() -> list[Record]:
    if results := os.environ.get("STUDY"):  # `make study` replaces the committed files
        records, problems = read_records(Path(results))
        assert (problems, bool(records)) == ([], True)
        commit_study(records, STUDY)
    records, problems = read_records(STUDY)
    assert problems == []
    return records


@pytest.fixture(scope="module")
def frame(records: list[Record]) -> pd.DataFrame:
    return to_frame(records)


@pytest.fixture(scope="module")
def scores(frame: pd.DataFrame) -> pd.DataFrame:
    """Main numbers that the default tables show."""
    is_shown = frame.main & frame.kind.isin(["evaluation", "control"])
    return frame[is_shown & (frame.overrides == "") & (frame.pretraining_overrides == "")]


@pytest.fixture(scope="module")
def gains(frame: pd.DataFrame) -> pd.DataFrame:
    gains = gains_table(frame, "scratch", {"frozen": "*"}).data
    return gains.set_index(["evaluation", "label", "arch"])


@pytest.mark.parametrize(("evaluation", "heading"), HEADINGS.items())
def test_the_tables_of_the_page_are_made_of_the_records(
    scores: pd.DataFrame, gains: pd.DataFrame, evaluation: str, heading: str
) -> None:
    expected = []
    of_evaluation = scores[scores.evaluation == evaluation]
    for (title, network), of_row in of_evaluation.groupby(["title", "network"]):
        row = [title + {"swin_micro": "", "resnet_micro": " (ResNet)"}[network]]
        for arch in ARCH:
            values = of_row.value[of_row.arch == arch]
            deviation = f" ± {values.std():.2f}" if len(values) > 1 else ""
            row.append(f"{values.mean():.2f}{deviation}" if len(values) else "-")
            if len(values) and (evaluation, title, arch) in gains.index:
                gain = gains.loc[evaluation, title, arch]
                text = "{:+.2f} [{:+.2f}, {:+.2f}]".format(*gain[["mean", "low", "high"]])
                row.append(f"**{text}**" if gain.p_holm < 0.05 else text)
            else:
                row.append("-")
        expected.append(row)
    assert sorted(rows(heading)) == sorted(expected)


def test_the_text_says_what_the_records_say(
    records: list[Record], frame: pd.DataFrame, scores: pd.DataFrame, gains: pd.DataFrame
) -> None:
    for evaluation in HEADINGS:
        p_holm = gains.p_holm[evaluation]
        count = f"{(p_holm < 0.05).sum()} of {len(p_holm)} gains over no pre-training"
        assert count in PAGE.split(f"## {HEADINGS[evaluation]}\n")[1].split("\n## ")[0]
    main = scores[scores.kind == "evaluation"]
    runs = main[main.method == "tespec"].groupby("pretraining_seed").seed.unique()
    seeds = [", ".join(map(str, sorted(of_start))) for of_start in runs]
    assert f"fine-tuning seeds {seeds[0]} from the first and {seeds[1]} from the second" in TEXT
    tespec = gains.loc["frozen", "TESPEC", "recurrent"]
    assert f"{tespec['mean']:+.2f} recurrent (p {tespec.p_holm:.2g})" in TEXT
    full = gains.loc["full"]
    swin = full[(full.network == "swin_micro")].xs("feedforward", level="arch")
    low, high = swin["mean"].min(), swin["mean"].max()
    half = (swin.high - swin.low).max() / 2
    assert f"between {low:+.2f} and {high:+.2f} mIoU, with half-widths of {half:.1f}" in TEXT
    recurrent = full.loc["TESPEC", "recurrent"]
    half = (recurrent.high - recurrent.low) / 2
    assert f"gain, {recurrent['mean']:+.2f}, has a half-width of {half:.1f}" in TEXT
    of_full = main[(main.evaluation == "full") & (main.arch == "recurrent")]
    noise = of_full.groupby("method").value.std()
    spread = f"{noise['scratch']:.1f} and {noise['tespec']:.1f}"
    assert f"a standard deviation of {spread}: TESPEC" in TEXT
    for label, text in (("CM3AE", "p {:.3f}"), ("ScaleEvent", "{:.3f}"), ("MoBY", "{:.3f}")):
        p_holm = gains.loc["frozen", label, "recurrent"].p_holm
        assert f"{label} ({text.format(p_holm)})" in TEXT
    prior = frame.value[frame.main & (frame.kind == "reference")].item()
    assert f"label prior scores {prior:.2f}" in TEXT
    hours = sum(record.time["total"] for record in records) / 3600
    assert f"{hours:.0f} processor hours" in TEXT


def test_the_page_says_which_gains_these_runs_can_show(
    records: list[Record], gains: pd.DataFrame
) -> None:
    frozen = gains.loc["frozen"]
    swin = frozen[frozen.network == "swin_micro"]
    half = (swin.high - swin.low) / 2
    tests_left = len(frozen) - (frozen.p_holm < ALPHA).sum()
    ratio = stdtrit(swin.dof, 1 - ALPHA / 2 / tests_left) / stdtrit(swin.dof, 1 - ALPHA / 2)
    alone, after_holm = (
        limit.groupby("arch").max().map("{:.2f}".format) for limit in (half, half * ratio)
    )
    text = "{feedforward} mIoU (feed-forward) or {recurrent} (recurrent)".format_map(alone)
    assert f"significant above {text}" in TEXT
    text = "correction above {feedforward} or {recurrent}".format_map(after_holm)
    assert text in TEXT
    starts = [record for record in records if record.cell.kind == "pretraining"]
    losses = next(
        record.metrics
        for record in starts
        if (record.cell.method, record.cell.arch) == ("tespec", "recurrent")
        and (record.seed, record.cell.overrides) == (0, {})
    )
    text = (
        "{loss_masked_carried:.3f} with carried state, {loss_masked_zeroed:.3f} with the state "
        "reset and {loss_zero:.3f} for predicting zero"
    )
    assert text.format_map(losses) in TEXT


def test_standing_frames_and_controls(frame: pd.DataFrame, scores: pd.DataFrame) -> None:
    is_standing = (frame.frames == "standing") & (frame.pretraining_overrides == "")
    standing = frame[(frame.metric == "miou") & is_standing & frame.frozen]
    standing = standing[(standing.arch == "recurrent") & (standing.kind == "evaluation")]
    means = standing.groupby("method").value.mean()
    assert means.idxmax() == "tespec"
    assert f"{means.max():.1f} mIoU, the best recurrent row" in TEXT
    assert f"against {means['scratch']:.1f} without pre-training" in TEXT
    frozen = scores[scores.frozen]
    controls = frozen[frozen.kind == "control"].groupby("arch").value.mean()
    rivals = frozen[frozen.kind == "evaluation"]
    rivals = rivals.groupby(["arch", "network", "method"]).value.mean()
    assert (controls > rivals.groupby("arch").max()).all()
    table = (STUDY / "tables" / "segmentation_measured_by_evaluation.csv").read_text()
    assert table.count("\nReferences,Fine-tuned backbone (saw these labels)") == len(controls)


def test_the_ablations_of_the_page_are_made_of_the_records(
    records: list[Record], frame: pd.DataFrame
) -> None:
    is_frozen = frame.main & (frame.kind == "evaluation") & frame.frozen
    frozen = frame[is_frozen & (frame.arch == "recurrent")]
    changes = gains_table(frame, "tespec", ABLATIONS).data.set_index("pretraining_overrides")
    expected = []
    of_tespec = frozen[frozen.method == "tespec"]
    for overrides, values in of_tespec.groupby("pretraining_overrides").value:
        row = [ABLATION_TITLES[overrides], f"{values.mean():.2f} ± {values.std():.2f}", "-", "-"]
        if overrides:
            change = changes.loc[overrides]
            text = "{:+.2f} [{:+.2f}, {:+.2f}]".format(*change[["mean", "low", "high"]])
            row[2:] = [f"**{text}**" if change.p_holm < ALPHA else text, f"{change.p_holm:.2g}"]
        expected.append(row)
    assert sorted(rows("Ablations")) == sorted(expected)
    means = frozen.groupby(["method", "pretraining_overrides"]).value.mean()
    gain = means["tespec", ""] - means["scratch", ""]
    for overrides in ("recurrent=False", "objective.target.kind=histograms"):
        assert means["tespec", overrides] - means["scratch", ""] < gain / 5  # "nearly all"
    every = {name: pattern for name, pattern in ABLATIONS.items() if name != "method"}
    of_all = gains_table(frame, "tespec", every).data.set_index("pretraining_overrides")
    losses, p_holm = [], []
    for name, value in (("recurrent", False), ("objective.target.kind", "histograms")):
        metrics = next(
            record.metrics for record in records if record.cell.overrides == {name: value}
        )
        assert metrics["loss_masked_carried"] == pytest.approx(metrics["loss_zero"], rel=1e-3)
        losses.append(f"{metrics['loss_masked_carried']:.3f}")
        p_holm.append(f"{of_all.p_holm[f'{name}={value}']:.2g}")
    assert f"masked losses of {' and '.join(losses)} are those of predicting zero" in TEXT
    assert len(of_all) == 11
    assert f"over all eleven comparisons with TESPEC it is {' and '.join(p_holm)}" in TEXT


def test_the_page_says_how_far_frozen_predicts_full(frame: pd.DataFrame) -> None:
    lines = compare_evaluations(frame, ("full", "frozen"))
    (line,) = [line for line in lines if line.startswith("ddd17, swin_micro, feedforward")]
    found = re.search(r"tau-b (\S+) \[(\S+), (\S+)\], p \S+, ceiling (\S+), .* (\d+) meth", line)
    assert found
    tau, low, high, ceiling = map(float, found.groups()[:4])
    assert f"tau-b is {tau:.2f} [{low:.2f}, {high:.2f}]" in TEXT
    assert f"ceiling {ceiling:.2f}" in TEXT
    assert found[5] == "7"
    assert "the same pre-trainings" in line


def test_the_numbers_on_memory_are_those_of_the_records(records: list[Record]) -> None:
    expected = []
    gains = {}
    for record in records:
        if record.cell.kind != "history":
            continue
        for frames in ("all", "standing"):
            lengths = (*LENGTHS, ALL)
            points = [record.groups[f"{n} windows, rate 1, {frames}"]["miou"] for n in lengths]
            title = f"{record.facts['title']}, {frames}"
            expected.append([title, *(f"{point:.1f}" for point in points)])
            gains[record.cell.method, frames] = points[-1] - points[0]
    assert sorted(rows("Memory")) == sorted(expected)
    whole, standing = gains["tespec", "all"], gains["tespec", "standing"]
    adds = f"TESPEC adds {whole:.1f} mIoU, {standing:.1f} where the car stands"
    assert f"{adds}; without pre-training it costs {-gains['scratch', 'all']:.1f}" in README
    assert f"+{whole:.1f} mIoU, and +{standing:.1f} on standing frames" in TEXT


def test_a_stem_that_was_repeated_is_marked(records: list[Record]) -> None:
    for record in records:
        is_repeated = "swin.patch_embed.proj.weight" in record.weights.model_dump().get(
            "adapted", ()
        )
        assert (record.weights.stem == "repeated") == is_repeated


def test_the_readme_has_the_gains_of_the_records(frame: pd.DataFrame, gains: pd.DataFrame) -> None:
    changes = gains_table(frame, "tespec", ABLATIONS).data.set_index("pretraining_overrides")
    loss = -changes["mean"]["recurrent=False"]
    assert f"Pre-trained without memory, TESPEC scores {loss:.2f} less" in README
    head = re.search(r"^\| mIoU over no pre-training \| (.*) \|$", README, re.MULTILINE)
    assert head
    for evaluation in HEADINGS:
        for arch, name in ARCH.items():
            cells = []
            for method in head[1].replace("RGB", "RGB Supervised").split(" | "):
                text = "-"
                if (evaluation, method, arch) in gains.index:
                    gain = gains.loc[evaluation, method, arch]
                    text = f"{gain['mean']:+.2f}"
                    text = f"**{text}**" if gain.p_holm < 0.05 else text
                cells.append(text)
            assert f"\n| {evaluation}, {name} | {' | '.join(cells)} |\n" in README


def test_no_record_disappears_and_no_score_moves_unless_a_commit_changes_the_list(
    records: list[Record],
) -> None:
    assert scores_of(records) == (STUDY / "scores.csv").read_text(), "see `make study`"
    assert check_records(STUDY) == (len(records), [])


def test_no_committed_result_is_large() -> None:
    command = ["git", "-C", str(REPOSITORY), "ls-files", "-z", "results", "docs/pictures"]
    listed = subprocess.run(command, capture_output=True, text=True).stdout.split("\0")
    for path in filter(Path.is_file, map(REPOSITORY.joinpath, filter(None, listed))):
        assert path.stat().st_size <= LARGEST, path


def test_committed_tables_are_made_of_the_records(frame: pd.DataFrame, tmp_path: Path) -> None:
    write_csv_tables(frame, tmp_path)

    def texts(paths: Iterable[Path]) -> dict[str, str]:
        # The last of 17 digits of an interval depends on scipy's version.
        shortened = partial(
            re.compile(r"\d+\.\d{9,}").sub, lambda number: f"{float(number[0]):.12g}"
        )
        return {path.name: shortened(path.read_text()) for path in paths}

    assert texts((STUDY / "tables").iterdir()) == texts(tmp_path.glob("*.csv"))


def test_the_figure_of_the_page_shows_all_rows(scores: pd.DataFrame) -> None:
    figure = (DOCS / "pictures" / "study.svg").read_text()
    assert all(title in figure for title in scores[scores.kind == "evaluation"].title)


def test_page_and_manifest_name_the_version_of_the_records(records: list[Record]) -> None:
    version = MANIFEST["results_version"]
    assert {record.cell.results_version for record in records} == {version}
    assert len(records) == MANIFEST["records"]
    assert f"results version {version}" in TEXT
    assert f"results version {version}" in README

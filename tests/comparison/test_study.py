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

from tespec.comparison.cell import RESULTS_VERSION
from tespec.comparison.check import LARGEST, check_records
from tespec.comparison.export import write_tables
from tespec.comparison.frame import to_frame
from tespec.comparison.gains import gains_table
from tespec.comparison.ranking import compare_rankings
from tespec.comparison.records import ARCHIVE, Record, read_records, write_archive
from tespec.comparison.tables import make_tables
from tespec.core.files import read_yaml
from tespec.core.paths import REPOSITORY
from tespec.runs.history import ALL, LENGTHS

STUDY, DOCS = REPOSITORY / "results" / "sample", REPOSITORY / "docs"
FROZEN = REPOSITORY / "results" / "frozen"
FROZEN_MANIFEST = read_yaml(FROZEN / "manifest.yaml")
PAGE, README = (DOCS / "study.md").read_text(), (REPOSITORY / "README.md").read_text()
TEXT = " ".join(PAGE.split())
SIGNIFICANT = "**5 of 15 gains over no pre-training are significant**"
ARCH = {"feedforward": "feed-forward", "recurrent": "recurrent"}


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
    where = {"frozen": "True"} if frame.frozen.any() else {}
    tables = [*make_tables(frame, where=where, measured=True), gains_table(frame, "scratch", where)]
    write_tables(tables, folder)
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


def test_the_table_of_the_page_is_made_of_the_records(
    records: list[Record], frame: pd.DataFrame
) -> None:
    gains = gains_table(frame, "scratch").data.set_index(["label", "arch"])[["mean", "low", "high"]]
    made: dict[str, list[Record]] = {}
    for record in sorted(records, key=lambda record: record.seed):
        if record.cell.kind == "pretraining" and not record.cell.overrides:
            made.setdefault(record.facts["title"], []).append(record)
    expected = []
    main = frame[frame.main & (frame.kind == "evaluation") & (frame.pretraining_overrides == "")]
    for (title, network), scores in main.groupby(["title", "network"]):
        row = [title + {"swin_micro": "", "resnet_micro": " (ResNet)"}[network]]
        for arch in ("feedforward", "recurrent"):
            values, has_gain = scores.value[scores.arch == arch], (title, arch) in gains.index
            row.append(
                f"{values.mean():.2f} ± {values.std():.2f} ({len(values)})" if len(values) else "-"
            )
            row.append(
                "{:+.2f} [{:+.2f}, {:+.2f}]".format(*gains.loc[title, arch]) if has_gain else "-"
            )
        both = made.get(title, [])
        row.append(
            ", ".join(f"{next(iter(record.metrics.values())):.3f}" for record in both) or "-"
        )
        row.append(", ".join(f"{record.metrics['last_stage_rank']:.1f}" for record in both) or "-")
        expected.append(row)
    assert sorted(rows("Full fine-tuning, results version 2")) == sorted(expected)


def test_the_text_of_the_page_says_what_the_records_say(
    records: list[Record], frame: pd.DataFrame
) -> None:
    gains = gains_table(frame, "scratch").data
    lowest = gains.sort_values("p_holm")[:2]
    texts = [
        f"{p:.2g} for {label}, {ARCH[arch]}"
        for p, label, arch in zip(lowest.p_holm, lowest.label, lowest.arch, strict=True)
    ]
    assert f"{', '.join(texts)}, and 1 for all others" in TEXT
    assert [f"{p:.2g}" for p in sorted(gains.p_holm)][2:] == ["1"] * (len(gains) - 2)
    for arch, name in ARCH.items():
        of_arch = gains[gains.arch == arch]
        halves = (of_arch.high - of_arch.low) / 2
        span = re.escape(f"{of_arch['mean'].min():+.2f} and {of_arch['mean'].max():+.2f} mIoU")
        limits = " to ".join(sorted({f"{half:.1f}" for half in halves}))
        assert re.search(
            rf"{name.capitalize()}, [^.]* between {span}[^.]*half-widths[^.]* {limits}", TEXT
        )
        assert re.search(rf"above {limits} (mIoU )?{name}", TEXT)
    prior = frame.value[frame.main & (frame.kind == "reference")].item()
    scores = frame[frame.main & (frame.kind == "evaluation") & (frame.pretraining_overrides == "")]
    assert f"scores {prior:.2f}, about half of each other score" in TEXT
    assert scores.groupby(["title", "network", "arch"]).value.mean().min() > 1.8 * prior
    assert f"{sum(record.time['total'] for record in records) / 3600:.0f} hours in all" in TEXT
    again = read_yaml(STUDY / "manifest.yaml")["repeated"]
    of_scratch = scores[
        (scores.method == "scratch")
        & (scores.network == "swin_micro")
        & (scores.arch == "feedforward")
    ]
    (first,) = of_scratch.value[of_scratch.seed == 0]
    assert again["same processor"] == round(first, 2)
    assert all(f"{value:.2f}" in TEXT for value in again.values())


@pytest.fixture(scope="module")
def frozen() -> pd.DataFrame:
    frame = to_frame(read_records(FROZEN)[0])
    return frame[frame.frozen]


@pytest.fixture(scope="module")
def frozen_gains(frozen: pd.DataFrame) -> pd.DataFrame:
    gains = gains_table(frozen, "scratch", {"frozen": "True"}).data
    return gains.set_index(["label", "arch"])


def test_the_table_of_frozen_backbones_is_made_of_the_records(
    frozen: pd.DataFrame, frozen_gains: pd.DataFrame
) -> None:
    main = frozen[frozen.main & frozen.kind.isin(["evaluation", "control"])]
    expected = []
    for (title, network), scores in main.groupby(["title", "network"]):
        row = [title + {"swin_micro": "", "resnet_micro": " (ResNet)"}[network]]
        for arch in ARCH:
            values = scores.value[scores.arch == arch]
            deviation = f" ± {values.std():.2f}" if len(values) > 1 else ""
            row.append(f"{values.mean():.2f}{deviation}" if len(values) else "-")
            if (title, arch) in frozen_gains.index:
                gain = frozen_gains.loc[title, arch]
                text = "{:+.2f} [{:+.2f}, {:+.2f}]".format(*gain[["mean", "low", "high"]])
                row.append(f"**{text}**" if gain.p_holm < 0.05 else text)
            else:
                row.append("-")
        expected.append(row)
    assert sorted(rows("Frozen backbones, results version 3")) == sorted(expected)


def test_the_text_on_frozen_backbones_says_what_the_records_say(
    frozen: pd.DataFrame, frozen_gains: pd.DataFrame
) -> None:
    main = frozen[frozen.main & (frozen.kind == "evaluation")]
    runs = main[main.method == "tespec"].groupby("pretraining_seed").seed.unique()
    seeds = [", ".join(map(str, sorted(of_start))) for of_start in runs]
    assert f"fine-tuning seeds {seeds[0]} from the first and {seeds[1]} from the second" in TEXT
    assert SIGNIFICANT in TEXT
    assert f"{(frozen_gains.p_holm < 0.05).sum()} of {len(frozen_gains)}" in SIGNIFICANT
    tespec = frozen_gains.loc["TESPEC", "recurrent"]
    assert f"{tespec['mean']:+.2f} recurrent (p {tespec.p_holm:.2g})" in TEXT
    standing = frozen[(frozen.metric == "miou") & (frozen.frames == "standing")]
    standing = standing[(standing.arch == "recurrent") & (standing.kind == "evaluation")]
    means = standing.groupby("method").value.mean()
    assert means.idxmax() == "tespec"
    assert f"{means.max():.1f} mIoU, the best recurrent row" in TEXT
    assert f"against {means['scratch']:.1f} without pre-training" in TEXT
    controls = frozen[frozen.main & (frozen.kind == "control")].groupby("arch").value.mean()
    best = main.groupby(["arch", "network", "method"]).value.mean().groupby("arch").max()
    assert (controls > best).all()
    table = (FROZEN / "tables" / "segmentation_measured_frozen-True.csv").read_text()
    assert table.count("\nReferences,Fine-tuned backbone (saw these labels)") == len(controls)
    assert FROZEN_MANIFEST["records"] == len(read_records(FROZEN)[0])


def test_the_page_says_how_far_frozen_predicts_full(
    frame: pd.DataFrame, frozen: pd.DataFrame
) -> None:
    runs = []
    for of_evaluation in (frozen, frame):
        main = of_evaluation[of_evaluation.main & (of_evaluation.kind == "evaluation")]
        main = main[(main.network == "swin_micro") & (main.pretraining_overrides == "")]
        main = main[main.arch == "feedforward"]
        # those of one version are not those of another
        start = main.results_version.astype(str) + ", seed " + main.pretraining_seed.astype(str)
        runs.append(main.assign(pretraining=start))
    tau = compare_rankings(runs[0], runs[1], "scratch")
    assert f"tau-b is {tau.tau:.2f} [{tau.low:.2f}, {tau.high:.2f}]" in TEXT
    assert f"ceiling {tau.ceiling:.2f}" in TEXT


def test_the_numbers_on_memory_are_those_of_the_records() -> None:
    histories = [record for record in read_records(FROZEN)[0] if record.cell.kind == "history"]
    expected = []
    gains = {}
    for record in histories:
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


@pytest.mark.parametrize("folder", [STUDY, FROZEN], ids=lambda folder: folder.name)
def test_a_stem_that_was_repeated_is_marked(folder: Path) -> None:
    for record in read_records(folder)[0]:
        is_repeated = "swin.patch_embed.proj.weight" in record.weights.model_dump().get(
            "adapted", ()
        )
        assert (record.weights.stem == "repeated") == is_repeated


@pytest.mark.parametrize(
    ("folder", "where", "title"), [(FROZEN, {"frozen": "True"}, "frozen"), (STUDY, {}, "full")]
)
def test_the_readme_has_the_gains_of_the_records(
    folder: Path, where: dict[str, str], title: str
) -> None:
    gains = gains_table(to_frame(read_records(folder)[0]), "scratch", where).data
    head = re.search(r"^\| mIoU over no pre-training \| (.*) \|$", README, re.MULTILINE)
    assert head
    for arch, name in ARCH.items():
        of_arch = gains[gains.arch == arch].set_index("label")
        cells = []
        for method in head[1].replace("RGB", "RGB Supervised").split(" | "):
            gain = of_arch.loc[method]
            text = f"{gain['mean']:+.2f}"
            cells.append(f"**{text}**" if gain.p_holm < 0.05 else text)
        assert f"\n| {title}, {name} | {' | '.join(cells)} |\n" in README


@pytest.mark.parametrize("folder", [STUDY, FROZEN])
def test_no_record_disappears_and_no_score_moves_unless_a_commit_changes_the_list(
    folder: Path,
) -> None:
    records, _ = read_records(folder)
    assert scores_of(records) == (folder / "scores.csv").read_text(), "see `make study`"
    assert check_records(folder) == (len(records), [])


def test_no_committed_result_is_large() -> None:
    command = ["git", "-C", str(REPOSITORY), "ls-files", "-z", "results", "docs/pictures"]
    listed = subprocess.run(command, capture_output=True, text=True).stdout.split("\0")
    for path in filter(Path.is_file, map(REPOSITORY.joinpath, filter(None, listed))):
        assert path.stat().st_size <= LARGEST, path


@pytest.mark.parametrize("folder", [STUDY, FROZEN])
def test_committed_tables_are_made_of_the_records(folder: Path, tmp_path: Path) -> None:
    frame = to_frame(read_records(folder)[0])
    write_csv_tables(frame, tmp_path)

    def texts(paths: Iterable[Path]) -> dict[str, str]:
        # The last of 17 digits of an interval depends on scipy's version.
        shortened = partial(
            re.compile(r"\d+\.\d{9,}").sub, lambda number: f"{float(number[0]):.12g}"
        )
        return {path.name: shortened(path.read_text()) for path in paths}

    assert texts((folder / "tables").iterdir()) == texts(tmp_path.glob("*.csv"))


def test_the_figure_of_the_page_shows_all_rows(frame: pd.DataFrame) -> None:
    figure = (DOCS / "pictures" / "study.svg").read_text()
    assert all(
        title in figure for title in {*frame[frame.kind == "evaluation"].title, "label prior"}
    )


def test_no_ablation_differs_significantly(frame: pd.DataFrame) -> None:
    ablated = {"pretraining_overrides": "*", "method": "tespec", "arch": "recurrent"}
    differences = gains_table(frame, "tespec", ablated).data
    assert "Nor does any of nine" in TEXT
    assert (len(differences), differences.p_holm.min() > 0.05) == (9, True)


def test_the_page_and_the_tables_name_the_version_of_the_records(records: list[Record]) -> None:
    manifest = read_yaml(STUDY / "manifest.yaml")
    version = manifest["results_version"]
    assert {record.cell.results_version for record in records} == {version}
    assert len(records) == manifest["records"]
    named = "" if version == RESULTS_VERSION else f", results version {version}"
    table = (STUDY / "tables" / "segmentation_measured.csv").read_text()
    assert f"measured (sample, study, full{named})" in table
    assert f"\n## Full fine-tuning, results version {version}\n" in PAGE
    assert f"results version {version}" in README


def test_the_readme_says_what_the_gains_say(frame: pd.DataFrame) -> None:
    assert "no gain over no pre-training is significant there" in " ".join(README.split())
    assert gains_table(frame, "scratch").data.p_holm.min() > 0.05

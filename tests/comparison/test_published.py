"""Published numbers and the `paper` profile match the tables of the paper's LaTeX source."""

import re
from copy import deepcopy
from pathlib import Path

import pytest

from tespec.comparison import published
from tespec.comparison.published import (
    BEYOND,
    TABLES,
    published_frame,
    read_ablations,
    read_published,
)
from tespec.core.config import as_facts, finetuning_settings, flattened, pretraining_settings
from tespec.core.errors import UserError

DATA = Path(__file__).parent / "data"
FILES = {
    "segmentation": "tab-sem-seg.tex",
    "detection": "tab-obj-det.tex",
    "depth": "tab-depth-est.tex",
}
EXCERPT = {name: (DATA / file).read_text(encoding="utf-8") for name, file in FILES.items()}
every_table = pytest.mark.parametrize("name", TABLES)


@every_table
def test_headings_and_citations_are_the_papers(name):
    """tests/comparison/test_export.py compares rows, numbers and marks, as LaTeX shows them."""
    groups = read_published(name)["groups"]
    headings = [group["heading"] for group in groups if group["heading"]]
    assert headings == re.findall(r"\\textit\{(.*?)\.?\}", EXCERPT[name])[:1]
    rows = [row for group in groups for row in group["rows"]]
    body = EXCERPT[name].split(r"\midrule")[1]
    citations = [row["citation"] for row in rows if "citation" in row]
    assert citations == re.findall(r"~\\cite\{(.*?)\}", body)


@every_table
def test_metrics_point_where_the_papers_arrows_do(name):
    arrows = [
        {"up": "↑", "down": "↓"}[arrow] for arrow in re.findall(r"\\(up|down)arrow", EXCERPT[name])
    ]
    metrics = read_published(name)["metrics"]
    better = [{"higher": "↑", "lower": "↓"}[metric["better"]] for metric in metrics]
    assert arrows == better * (len(arrows) // len(better))
    assert [metric["title"][-1] for metric in metrics] == better


@every_table
def test_marks_are_explained_and_the_dagger_tells_test_time_augmentation(name):
    rows = [row for group in read_published(name)["groups"] for row in group["rows"]]
    assert {row["mark"] for row in rows if "mark" in row} == set(read_published(name)["marks"])
    dagger = [row.get("mark") == "†" and name == "segmentation" for row in rows]
    assert [row.get("test_time_augmentation", False) for row in rows] == dagger


def test_bold_numbers_are_the_best_of_the_ranked_rows():
    for _, column in published_frame().groupby(["table", "task", "metric"]):
        ranked = column[column["ranked"]]["value"]
        best = ranked.max() if column["better"].iloc[0] == "higher" else ranked.min()
        assert (column["bold"] == (column["ranked"] & (column["value"] == best))).all()


# Settings tables of the appendix: batch size, peak learning rate, schedule, steps, warm-up steps,
# sequence length, T in ms (None: not compared, since windows end at labels of a different rate).
SETTINGS = {
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
def test_the_paper_profile_has_the_papers_settings(name, arch):
    pretrains = arch == "pretraining"
    facts = as_facts(
        pretraining_settings(name, "paper")
        if pretrains
        else finetuning_settings(name, arch, "paper")
    )
    optimisation = facts["optimisation"]
    *wanted, window = SETTINGS[name, arch]
    schedule = [optimisation[key] for key in ("peak_lr", "schedule", "steps", "warmup_steps")]
    assert [facts["batch_size"], *schedule, facts["segments"]] == wanted
    assert [optimisation[key] for key in ("optimizer", "start_divisor", "end_divisor")] == [
        "Adam",
        25,
        1000,
    ]
    if window is not None:
        assert facts["window_ms"] in (None, window)
    if pretrains:
        assert facts["window_ms"] == window
        assert (
            facts["objective"]["mask"]["ratio"],
            facts["objective"]["target"]["norm_events"],
        ) == (0.5, 5000)


# Ablations.

ABLATIONS = "".join(
    (DATA / name).read_text() for name in ("tab-all-ablation.tex", "tab-supp-ablation.tex")
)
CITED = {
    r"\cref{eq:prior-intensity-est}": "Eq. 6",
    r"\cref{eq:our-intensity-est}": "Eq. 7",
    r"CPC~\cite{CPC}": "CPC",
    r"ECDDP~\cite{ECDDP}": "ECDDP",
    r"MAE~\cite{MAE}": "MAE",
}


def lines_of(label):
    """Cells of each row of the table in the paper's source, and its number of bold cells."""
    before = ABLATIONS.split(rf"\label{{{label}}}")[0]
    body = re.split(r"\\(?:mid|h)rule|\\hline", before[before.rindex(r"\begin{tabular}") :])
    rows = []
    for line in "".join(body).split(r"\\"):
        if "&" in line and re.search(r"\d\.\d{3}", line):
            cells = [
                re.sub(r"\\textbf\{(.*)\}$", r"\1", cell.strip()).replace(r"\%", "%")
                for cell in line.split("&")
            ]
            rows.append((cells, line.strip().count(r"\textbf")))
    return rows


PUBLISHED = [name for name, ablation in read_ablations().items() if ablation.label]


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_cell_of_an_ablation_is_the_papers(name):
    ablation = read_ablations()[name]
    lines = lines_of(ablation.label)
    assert len(lines) == len(ablation.rows)
    for row, (cells, bold) in zip(ablation.rows, lines, strict=True):
        assert CITED.get(cells[0], cells[0]) == row.name
        assert [float(cell) for cell in cells[1:]] == list(row.paper)
        assert bool(bold) == row.default


def test_all_ablations_of_the_source_are_there():
    labels = set(re.findall(r"\\label\{(.*?)\}", ABLATIONS)) - {"tab:all-ablation"}
    assert {read_ablations()[name].label for name in PUBLISHED} == labels


def test_own_rows_go_behind_those_of_a_table_of_the_paper(tmp_path, monkeypatch):
    monkeypatch.setattr(published, "CONFIGS", tmp_path)
    (tmp_path / "ablations.yaml").write_text(
        'masking: {rows: [{name: "90%", set: {objective.mask.ratio: 0.9}}]}'
    )
    made, paper = published.read_ablations.__wrapped__()["masking"], read_ablations()["masking"]
    assert (made.title, [row.name for row in made.rows]) == (
        paper.title,
        [*(row.name for row in paper.rows), "90%"],
    )
    (tmp_path / "ablations.yaml").write_text("masking: 3")
    with pytest.raises(UserError, match="is not an ablation table"):
        published.read_ablations.__wrapped__()


@pytest.mark.parametrize("profile", ["paper", "sample"])
@pytest.mark.parametrize("name", read_ablations())
def test_a_row_differs_from_the_default_in_the_setting_it_names_and_in_no_other(name, profile):
    def resolved(changes=()):
        facts = as_facts(pretraining_settings("tespec", profile, changes))
        # follow from the others
        return {key: value for key, value in facts.items() if key != "deviations"}

    default = resolved()
    unchanged = flattened(default)
    for row in read_ablations()[name].rows:
        found = flattened(resolved(row.changes(default)))
        assert (found == unchanged) == row.default
        different = {key for key in found | unchanged if found.get(key) != unchanged.get(key)}
        named = {*row.set, *row.scale}
        if named == {"objective"}:
            # Another objective replaces the settings of masked reconstruction by its own.
            assert {key.partition(".")[0] for key in different} <= named
            assert found["objective.type"] == row.set["objective"]
        else:
            scaled = {key: unchanged[key] * factor for key, factor in row.scale.items()}
            assert {key: found[key] for key in different} == row.set | scaled


def test_numbers_that_are_scaled_are_the_papers():
    default = as_facts(pretraining_settings("tespec", "paper"))
    for name, key, numbers in (
        ("steps", "optimisation.steps", [200_000, 300_000, 400_000, 500_000]),
        ("norm_events", "objective.target.norm_events", [500, 5_000, 50_000, 200_000]),
    ):
        every = [
            pretraining_settings("tespec", "paper", row.changes(default))
            for row in read_ablations()[name].rows
        ]
        assert [flattened(as_facts(each))[key] for each in every] == numbers


def test_a_broken_table_of_ablations_is_named(tmp_path, monkeypatch):
    (tmp_path / "ablations.yaml").write_text("memory: {rows: 3}\n")
    monkeypatch.setattr("tespec.comparison.published.CONFIGS", tmp_path)
    with pytest.raises(UserError, match=r"ablations.yaml: is not an ablation table \(.*memory"):
        read_ablations.__wrapped__()


def test_scores_of_a_task_that_the_table_has_not_are_refused(monkeypatch):
    tables = {name: deepcopy(read_published(name)) for name in (*TABLES, BEYOND)}
    tables["depth"]["groups"][0]["rows"][0]["scores"]["gen1"] = [50.0] * len(
        tables["depth"]["metrics"]
    )
    monkeypatch.setattr("tespec.comparison.published.read_published", tables.get)
    with pytest.raises(ValueError, match="scores of tasks that the table lacks: gen1"):
        published_frame.__wrapped__()

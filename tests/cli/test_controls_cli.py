"""`tables.py --controls` and `--curves`: two pages on the validation split."""

from __future__ import annotations

import pytest

from tespec.cli.main import main
from tespec.comparison.records import Record, new_record, write_record


def made(seed: int, split: str = "val", **changes: object) -> Record:
    steps = 100 * (1 + seed % 2)
    config = {"arch": "recurrent", "optimisation": {"steps": steps, "peak_lr": 1e-3}, "batch_size": 4, "segments": 2}
    fields: dict[str, object] = {
        "kind": "evaluation",
        "method_name": "scratch",
        "method": {"title": "No Pre-training"},
        "task": "ddd17",
        "arch": "recurrent",
        "profile": "small",
        "data": "sample",
        "data_fingerprint": "0123456789ab",
        "seed": seed,
        "config": config | {"window_ms": None, "labels_per_chunk": None, "protocol": {}},
        "protocol": {},
        "metrics": {"miou": 30.0 + seed, "mean_class_acc": 40.0},
        "weights": {"sha256": ""},
        "command": "",
        "environment": {},
        "time": {"total": 1.0},
        "curve": [],
        "split": split,
    }
    empty: dict[str, object] = {name: {} for name in ("groups", "recordings", "classes")}
    return new_record(**(fields | empty | changes))  # type: ignore[arg-type]


@pytest.fixture
def folder(tmp_path):
    """Results with four evaluations of the validation split."""
    for seed in range(4):
        write_record(made(seed), tmp_path / "runs")
    return tmp_path


@pytest.mark.parametrize(("page", "title"), [("controls", "Controls of the comparison"), ("curves", "Learning curves")])
def test_a_page_is_printed_and_written_in_all_forms(folder, capsys, page, title):
    assert main(["tables", f"--{page}", "--results", str(folder)]) == 0
    assert title in capsys.readouterr().out
    ends = (".csv", "_long.csv", ".tex", ".md", ".html")
    written = {path.name for path in (folder / "tables").iterdir()}
    assert written == {f"{page}{end}" for end in ends} | ({"learning_curves.png"} if page == "curves" else set())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--controls", "--curves"], "--controls and --curves are two pages: ask for one"),
        (["--contrasts"], "--split test: no such evaluation in"),
        (["--controls", "--split", "test"], "--split test: no such evaluation in"),
        (["--curves", "--profile", "paper"], "--profile paper: no such evaluation in"),
    ],
)
def test_mistakes_are_answered_in_one_line(folder, capsys, options, message):
    try:
        code = main(["tables", *options, "--results", str(folder)])
    except SystemExit as ended:
        code = ended.code
    said = capsys.readouterr().err
    assert (code, said.count("\n")) == (2, 1)
    assert message in said
    assert not (folder / "tables").exists()


def test_curves_are_of_networks_without_pretraining(folder, capsys):
    for path in (folder / "runs").iterdir():
        path.unlink()
    write_record(made(0, method_name="tespec"), folder / "runs")
    assert main(["tables", "--curves", "--results", str(folder)]) == 2
    assert "holds no evaluation without pre-training; run.py --method scratch makes them" in capsys.readouterr().err

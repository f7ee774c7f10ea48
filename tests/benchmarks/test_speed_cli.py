"""The speed command at sizes that take no time: what it checks, prints, writes and refuses; never how fast it was."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import pytest

import benchmarks.speed as speed
from benchmarks.measure import catalogue, detection
from benchmarks.measure.catalogue import LONG, PARTS, STAGES
from benchmarks.measure.conditions import NO_GPU
from benchmarks.measure.rows import Row
from tespec.cli.command import run

KEYS = {"schema", "part", "quick", "threads", "load_before", "environment", "limits", "rows"}
COMPARED = {
    ("histogram", "window"),
    ("store", "slice and histogram"),
    ("store", "slice, halve and histogram"),
    ("prepare", "from .dat"),
    ("intensity", "step"),
    ("recurrent", "sample profile"),
    ("optimizer", "Adam"),
    ("processor", "2 x 2 frames"),
    ("input", "batch"),
    ("input", "augmented batch"),
    ("input", "batch for the device"),
    ("detection", "one test set"),
}


def call(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr(sys, "argv", ["speed.py", *map(str, arguments)])
    try:
        return run(speed.main)
    except SystemExit as ended:  # of argparse
        return int(ended.code or 0)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The ledger and the table of all stages."""
    path = tmp_path_factory.mktemp("speed") / "ledger.json"
    with pytest.MonkeyPatch.context() as patch, pytest.MonkeyPatch.context() as output:
        lines: list[str] = []
        output.setattr("builtins.print", keep_into(lines))
        assert call(patch, "--quick", "--runs", 1, "--device", "cpu", "--json", path) == 0
    return path, "\n".join(lines)


def keep_into(lines: list[str]) -> Callable[..., None]:
    """A `print` that keeps what would be shown; numba prints into files of its own when it compiles."""
    real = print

    def keep(text: object = "", *more: object, file: IO[str] | None = None, **options: Any) -> None:
        if file is None:
            lines.append(str(text))
        else:
            real(text, *more, file=file, **options)

    return keep


def rows_of(path: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(path.read_text())["rows"]
    return rows


def test_every_stage_agrees_with_its_plain_way_and_stands_in_the_ledger(measured: tuple[Path, str]) -> None:
    path, _ = measured
    ledger = json.loads(path.read_text())
    assert set(ledger) == KEYS
    assert {row["stage"] for row in ledger["rows"]} == set(STAGES) - set(LONG)
    assert not any(row["failed"] for row in ledger["rows"])
    compared = {(row["stage"], row["case"]) for row in ledger["rows"] if row["ratio"]}
    assert compared == COMPARED
    for row in ledger["rows"]:
        if row["ratio"]:
            assert row["ratio"] == row["peer_seconds"] / row["seconds"]
            assert row["rate"] == row["work"] / row["seconds"]


def test_what_needs_a_gpu_says_that_there_is_none(measured: tuple[Path, str]) -> None:
    rows = [row for row in rows_of(measured[0]) if row["device"] == "cuda"]
    assert {row["stage"] for row in rows} >= {"intensity", "recurrent", "input", "optimizer"}
    assert all((row["note"], row["seconds"], row["targets"]) == (NO_GPU, None, []) for row in rows)


def test_bytes_go_to_the_device_and_memory_of_packing_is_bounded(measured: tuple[Path, str]) -> None:
    figures = {row["case"]: row["figures"] for row in rows_of(measured[0]) if row["device"] == "cpu"}
    assert figures["augmented batch"]["bytes_per_frame"] == 20 * 64 * 64
    assert figures["from .dat"]["resident_bytes"] < 1e9


def test_the_table_has_a_line_for_each_row_and_no_verdict_on_tiny_sizes(measured: tuple[Path, str]) -> None:
    path, shown = measured
    page = path.with_suffix(".md").read_text(encoding="utf-8")
    assert len({line.count(" |") for line in page.splitlines() if line.startswith("| ")}) == 1
    for row in rows_of(path):
        assert f"{row['stage']}, {row['case']}, {row['device']}" in shown
        assert f"\n| {row['stage']}, {row['case']}, {row['device']} |" in page
    assert not re.search(r"\bmet\b", shown)
    assert str(path) in shown


def test_ratios_stand_beside_those_of_a_ledger(
    measured: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger = json.loads(measured[0].read_text())
    for row in ledger["rows"]:
        row["ratio"] = 1000.0 if row["stage"] == "histogram" and row["ratio"] else row["ratio"]
    old = tmp_path / "old.json"
    old.write_text(json.dumps(ledger))
    assert call(monkeypatch, "--quick", "--only", "histogram", "--device", "cpu", "--compare", old) == 0
    (line,) = (line for line in capsys.readouterr().out.splitlines() if "1000.00" in line)
    assert line.startswith("histogram, window, cpu")
    assert line.endswith("%")


@pytest.mark.parametrize(
    "part", [pytest.param(part, marks=[pytest.mark.slow] if part == "scaling" else []) for part in LONG]
)
def test_the_long_parts(part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "ledger.json"
    assert call(monkeypatch, "--quick", "--only", part, "--device", "cpu", "--json", path) == 0
    rows = [row for row in rows_of(path) if row["device"] == "cpu"]
    if part == "inference":
        timed = [row for row in rows if row["seconds"]]
        assert {row["case"].split(", ")[2] for row in timed} == {"backbone", "with head"}
        assert all(row["figures"]["p95_seconds"] > 0 for row in timed)
    elif part == "switches":
        assert {row["case"] for row in rows} == {"recompute", "fused attention", "compiled"}
        kept = next(row["figures"] for row in rows if row["case"] == "recompute")
        assert 0 < kept["kept_bytes"] < kept["kept_bytes_off"]
    elif part == "scaling":
        (row,) = rows
        assert row["figures"]["exchanged_bytes"] > 0
    else:
        series = {row["case"].partition(":")[0] for row in rows}
        assert series >= {"resolution", "sequence length", "batch", "event rate", "recordings, a step"}


def test_the_profile_names_parts_that_make_up_the_whole(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, "--quick", "--only", "profile", "--device", "cpu") == 0
    training, inference = capfd.readouterr().out.split("inference step", 1)
    for part in ("attention", "MLP", "ConvLSTM", "decoder", "optimizer"):
        assert part in training
    assert "head" in inference
    assert "optimizer" not in inference


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--only", "histogran"], "error: --only histogran: no such stage; choose from histogram, store"),
        (["--compare", "missing.json"], "error: missing.json: no such file; give a ledger"),
        (["--device", "tpu"], "error: --device tpu: unknown device"),
        (["--runs", "0"], "error: --runs: give 1 or more"),
    ],
)
def test_mistakes_are_one_line(
    arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, "--quick", *arguments) == 2
    assert capsys.readouterr().err.startswith(message)


def test_what_is_no_ledger_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, content in enumerate(('{"schema": 1, "ro', '{"schema": 1}', '{"schema": 99, "rows": []}')):
        path = tmp_path / f"{number}.json"
        path.write_text(content)
        assert call(monkeypatch, "--quick", "--compare", path) == 2
        assert capsys.readouterr().err.count("\n") == 1


def test_a_stage_whose_ways_differ_ends_with_1(monkeypatch: pytest.MonkeyPatch) -> None:
    def differing(conditions: Any) -> Any:
        row = Row("histogram", "window", "cpu")
        yield conditions.compare(row, lambda: 1, lambda: 2, lambda ours, peers: ours == peers)

    monkeypatch.setitem(catalogue.STAGES, "histogram", differing)
    assert call(monkeypatch, "--quick", "--only", "histogram", "--device", "cpu") == 1


def test_without_pycocotools_the_row_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(detection, "find_spec", lambda name: None)
    assert call(monkeypatch, "--quick", "--only", "detection", "--device", "cpu") == 0
    assert detection.MISSING in capsys.readouterr().out


def test_only_whole_parts_at_full_size_go_to_the_results_unasked() -> None:
    paths = [speed._default(part, quick, "box") for quick in (False, True) for part in (*PARTS, "")]
    assert [path and path.name for path in paths] == [
        "box.json", "box-inference.json", "box-growth.json", "box-switches.json", "box-scaling.json", *[None] * 7,
    ]  # fmt: skip

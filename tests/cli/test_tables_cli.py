from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tespec.cli.main import main
from tespec.core.paths import REPOSITORY

SAMPLE = REPOSITORY / "results" / "sample"
ENDS = (".csv", "_long.csv", ".tex", ".md", ".html")


def call(*arguments: object) -> int:
    return main(["tables", *map(str, arguments)])


def test_prints_and_writes_the_tables_of_the_committed_results_without_torch(tmp_path: Path) -> None:
    code = (
        "import sys; from tespec.cli.main import main; "
        f"main(['tables', '--results', {str(SAMPLE)!r}, '--out', 'out']); "
        "assert not {'torch', 'mmengine', 'timm', 'scipy.stats'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, encoding="utf-8", timeout=60,
                          env={"PYTHONPATH": str(REPOSITORY), "PYTHONIOENCODING": "utf-8"})  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert "39.55 ± 0.25 (5)" in done.stdout
    assert "ESS" not in done.stdout  # a row that was not measured
    assert "Not shown: 24 results with label_fraction 0.05, 0.2" in done.stdout
    assert done.stdout.splitlines()[-1] == "Written: 60 files in out"
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert {
        f"{name}{end}" for name in ("segmentation", "depth", "detection", "ablation_memory") for end in ENDS
    } < names


def test_measured_tables_have_no_published_number(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("--results", SAMPLE, "--out", tmp_path, "--measured", "--where", "method=tespec") == 0
    assert "published" not in capsys.readouterr().out
    assert (tmp_path / "detection.csv").read_text().splitlines()[1:] == [
        ",TESPEC (Ours),Swin-T/7,yes,1Mpx,4.62 ± 1.87 (5)",
        ",TESPEC,Swin-T/7,no,1Mpx,3.35 ± 0.20 (5)",
    ]
    assert not (tmp_path / "ablation_steps.csv").exists()


def test_filters_and_levels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--results", SAMPLE, "--out", tmp_path, "--only", "segmentation", "--measured")
    few = [word for each in ("label_fraction=0.05", "data=sample", "split=test") for word in ("--where", each)]
    assert call(*options, *few) == 0
    assert "5 % of labels" in capsys.readouterr().out
    assert call(*options, "--by", "frames", "--where", "frames=*ing", "--where", "seed=0") == 0
    out = capsys.readouterr().out
    assert "moving" in out
    assert "(1)" in out
    assert "(5)" not in out


def test_gains_are_one_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("--results", SAMPLE, "--out", tmp_path, "--gains", "scratch") == 0
    assert "no scratch with ResNet50" in capsys.readouterr().out
    assert {path.name for path in tmp_path.iterdir()} == {f"gains_scratch{end}" for end in ENDS}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--only", "sgmentation"], "did you mean segmentation"),
        (["--only", "depth", "segmentatoin"], "did you mean segmentation"),
        (["--where", "metod=tespec"], "did you mean method"),
        (["--where", "metric=moiu"], "did you mean miou?"),
        (["--where", "method"], "write KEY=VALUE"),
        (["--where", "frozen=False", "--frozen"], "given twice"),
        (["--by", "label_frction"], "did you mean label_fraction?"),
        (["--gains", "scrach"], "did you mean scratch?"),
        (["--gains", "scratch", "--measured"], "--gains is a table of its own"),
        (["--where", "data=dsec"], "choose from sample"),
        (["--contrasts"], "Unknown option: --contrasts"),
        (["--results", str(REPOSITORY / "docs")], "is not a results folder"),
        (["--results", "nowhere"], "--results nowhere: no such folder; name a folder that holds runs/"),
    ],
)
def test_mistakes_are_one_line_and_write_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    where = [] if "--results" in arguments else ["--results", SAMPLE]
    code = call(*where, "--out", tmp_path / "out", *arguments)
    said = capsys.readouterr()
    assert (code, said.out) == (2, "")
    assert message in said.err
    assert said.err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_damaged_record_is_named_and_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = tmp_path / "runs"
    runs.mkdir()
    (runs / "torn.json").write_text("{")
    assert call("--results", tmp_path) == 2
    said = capsys.readouterr()
    assert said.err.splitlines()[0].startswith(f"left out: {runs / 'torn.json'}: not a record")
    assert "holds no readable record" in said.err
    (tmp_path / "records.jsonl.gz").write_bytes((SAMPLE / "records.jsonl.gz").read_bytes())
    assert call("--results", tmp_path) == 0
    said = capsys.readouterr()
    assert said.err.count("left out") == 1
    assert "39.55 ± 0.25 (5)" in said.out


def test_without_records_the_published_numbers_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("--results", tmp_path) == 0
    out = capsys.readouterr().out
    assert out.startswith("Object detection")
    assert "62.774" in out
    assert "Nothing measured: ablation_masking" in out
    assert "62.774" in (tmp_path / "tables" / "segmentation.md").read_text()
    assert call("--results", tmp_path, "--only", "runtime") == 0
    assert "155.2" in capsys.readouterr().out

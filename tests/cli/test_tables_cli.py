from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tespec.cli.command import Parser, run
from tespec.cli.tables import main
from tespec.comparison.ablations import ablations
from tespec.comparison.published import plain_tables, read_published
from tespec.comparison.records import new_record, write_record
from tespec.core.errors import UserError
from tespec.core.paths import REPOSITORY

NAMES = ("detection", "segmentation", "depth")
ENDS = (".csv", "_long.csv", ".tex", ".md", ".html")
PUBLISHED = (f"ablation_{name}" for name, ablation in ablations().items() if ablation.has_published)
TABLES = (*NAMES, *PUBLISHED, *plain_tables())
FILES = {f"{name}{end}" for name in TABLES for end in ENDS}


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """A results folder with one evaluation on the sample world."""
    fields: dict[str, Any] = {
        "kind": "evaluation",
        "method_name": "scratch",
        "method": {"title": "No Pre-training", "backbone": "Swin-T/7"},
        "task": "ddd17",
        "arch": "recurrent",
        "profile": "sample",
        "data": "sample",
        "data_fingerprint": "0123456789ab",
        "seed": 0,
        "metrics": {"miou": 41.5, "mean_class_acc": 50.0},
        "command": "",
    }
    mappings = ("config", "protocol", "groups", "recordings", "classes", "weights", "environment", "time")
    write_record(new_record(**(fields | {name: {} for name in mappings}), curve=[]), tmp_path / "results" / "runs")
    return tmp_path / "results"


def command_line(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    script = str(REPOSITORY / "benchmarks" / "tables.py")
    environment = os.environ | {"PYTHONIOENCODING": "utf-8"}
    return subprocess.run(
        [sys.executable, script, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=60,
    )


def test_prints_and_writes_the_table_from_any_folder(results: Path, tmp_path: Path) -> None:
    done = command_line(tmp_path, "--results", "results")
    assert (done.returncode, done.stderr) == (0, "")
    assert "41.500" in done.stdout
    assert "measured: sample world, profile sample" in done.stdout
    assert {path.name for path in (results / "tables").iterdir()} == FILES
    assert all(str(Path("results") / "tables" / name) in done.stdout for name in FILES)


def test_never_imports_torch(results: Path) -> None:
    code = (
        "import sys; from tespec.cli.tables import main; "
        f"main(['--results', {str(results)!r}]); "
        "assert not {'torch', 'mmengine', 'timm'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_without_records_the_published_numbers_stand_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["--results", str(tmp_path), "--out", str(tmp_path / "out")])
    shown = capsys.readouterr()
    assert "62.774*" in shown.out
    assert "measured:" not in shown.out
    assert "no evaluation in" in shown.err
    assert {path.name for path in (tmp_path / "out").iterdir()} == FILES
    assert not (tmp_path / "runs").exists()


def test_broken_records_are_named_and_left_out(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (results / "runs" / "torn.json").write_text('{"schema": 1, "metr')
    (good,) = (path for path in (results / "runs").iterdir() if path.name != "torn.json")
    newer = json.loads(good.read_text()) | {"schema": 99}
    (results / "runs" / "newer.json").write_text(json.dumps(newer))
    assert main(["--results", str(results)]) == 1
    shown = capsys.readouterr()
    assert "41.500" in shown.out
    assert "2 files left out" in shown.out
    assert "2 files left out" in (results / "tables" / "segmentation.md").read_text(encoding="utf-8")
    for name in ("torn.json", "newer.json"):
        assert f"left out: {results / 'runs' / name}: " in shown.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--only", "segmentatoin"], "did you mean 'segmentation'?"),
        (["--colums", "paper"], "did you mean '--columns'?"),
        (["detection"], "did you mean '--only detection'?"),
        (["--columns", "x"], "choose from both, paper, measured"),
        (["--data", "ddd17"], "--data ddd17: no such evaluation in"),
        (["--profile", "paper"], "choose from sample"),
        (["--columns", "measured", "--results", "."], "holds no record of an evaluation"),
        (["--only", "ablation_memory"], "--only ablation_memory: nothing was measured of it; run the plan"),
        (["--check"], "holds nothing to check: no evaluation on real data"),
        (["--contrasts", "--split", "val"], "--split val: no such evaluation in"),
        (["--baseline", "moby"], "--baseline moby: has no record; choose from scratch"),
        (["--rates", "--contrasts"], "--contrasts and --rates are two pages: ask for one"),
        (["--audit", "--check"], "--audit and --check are two pages: ask for one"),
        (["--controls", "--only", "depth"], "--only goes with the tables, and --controls is a page of its own"),
        (["--contrasts", "--baseline", "x"], "--baseline goes with the tables, and --contrasts is a page of its own"),
        (["--rates", "--profile", "x"], "--profile x: no such pretraining in"),
    ],
)
def test_mistakes_are_one_line_and_write_nothing(results: Path, arguments: list[str], message: str) -> None:
    done = command_line(results.parent, "--results", str(results), *arguments)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert message in done.stderr
    assert done.stdout == ""
    assert not (results / "tables").exists()


def test_a_choice_of_data_and_profile_keeps_the_others_out(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (path,) = (results / "runs").iterdir()
    other = json.loads(path.read_text()) | {"profile": "paper", "name": "other", "metrics": {"miou": 77.0}}
    (results / "runs" / "other.json").write_text(json.dumps(other))
    main(["--results", str(results), "--data", "sample", "--profile", "sample"])
    shown = capsys.readouterr().out
    assert "41.500" in shown
    assert "77.000" not in shown


def real(results: Path, **changes: Any) -> None:
    """Turn the record into one on real data under the paper's profile."""
    (path,) = (results / "runs").iterdir()
    changed = json.loads(path.read_text()) | {"data": "ddd17", "profile": "paper"} | changes
    path.write_text(json.dumps(changed))


def test_check_is_1_where_a_number_leaves_its_tolerance(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    real(results)
    assert main(["--results", str(results), "--check"]) == 1
    shown = capsys.readouterr().out
    assert "No Pre-training (recurrent) on ddd17, miou: measured 41.500 (n = 1), paper 55.811" in shown
    assert "0 of 2 numbers within their tolerance" in shown
    assert not (results / "tables").exists()


def test_check_is_0_where_numbers_are_the_papers(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    published = read_published("segmentation")
    (row,) = (row for row in published.rows if (row.method, row.recurrent) == ("scratch", True))
    real(results, metrics={name: row.scores["ddd17", name] for name in ("miou", "mean_class_acc")})
    assert main(["--results", str(results), "--check"]) == 0
    assert "2 of 2 numbers within" in capsys.readouterr().out


def test_an_edited_number_is_said_under_every_table(
    results: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tespec.cli.tables.edited", lambda: ["depth.yaml"])
    assert main(["--results", str(results), "--only", "depth"]) == 1
    shown = capsys.readouterr()
    assert "depth.yaml is not the file that was shipped" in shown.err
    assert "depth.yaml is not the file that was shipped" in shown.out


def test_a_baseline_gives_a_table_of_gains(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (path,) = (results / "runs").iterdir()
    ours = json.loads(path.read_text()) | {"method_name": "tespec", "name": "ours", "metrics": {"miou": 45.0}}
    (results / "runs" / "ours.json").write_text(json.dumps(ours))
    assert main(["--results", str(results), "--baseline", "scratch"]) == 0
    assert "+3.500" in capsys.readouterr().out
    page = (results / "tables" / "against_scratch.tex").read_text(encoding="utf-8")
    assert r"\label{tab:against_scratch}" in page


def test_of_the_measured_alone_no_table_has_the_papers_numbers(results: Path) -> None:
    assert main(["--results", str(results), "--columns", "measured"]) == 0
    written = {path.name for path in (results / "tables").glob("*_long.csv")}
    assert written == {"segmentation_long.csv"}
    assert not any(",paper," in (results / "tables" / name).read_text(encoding="utf-8") for name in written)


def test_contrasts_are_decided_and_written(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (path,) = (results / "runs").iterdir()
    feedforward = json.loads(path.read_text()) | {"arch": "feedforward", "name": "other", "metrics": {"miou": 45.0}}
    (results / "runs" / "other.json").write_text(json.dumps(feedforward))
    assert main(["--results", str(results), "--contrasts"]) == 0
    shown = capsys.readouterr().out
    assert "one seed, and two are needed: scratch/recurrent, scratch/feedforward" in shown
    assert "-3.500" in shown
    written = {path.name for path in (results / "tables").iterdir()}
    assert written == {f"contrasts{end}" for end in (".csv", "_long.csv", ".tex", ".md", ".html")}


def test_a_baseline_that_stands_alone_has_no_table(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--results", str(results), "--only", "segmentation", "--baseline", "scratch"]) == 0
    assert "nothing to compare with scratch" in capsys.readouterr().err
    assert not (results / "tables" / "against_scratch.md").exists()


def test_a_mistake_is_one_line_with_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    def mistaken() -> None:
        raise UserError("a.yaml", "two\n  lines", "write\none")

    assert run(mistaken) == 2
    assert capsys.readouterr().err == "error: a.yaml: two lines; write one\n"


@pytest.mark.parametrize(("said", "shown"), [((), ""), (("stopped at step 3",), "stopped at step 3\n")])
def test_an_interruption_has_exit_code_130(
    said: tuple[str, ...], shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt(*said)

    assert run(interrupted) == 130
    assert capsys.readouterr().err == shown


def test_success_is_0_and_defects_pass_through() -> None:
    def defective() -> None:
        raise RuntimeError("a defect")

    assert run(lambda: None) == 0
    with pytest.raises(RuntimeError, match="a defect"):
        run(defective)


def test_parser_takes_no_abbreviations(capsys: pytest.CaptureFixture[str]) -> None:
    parser = Parser()
    parser.add_argument("--results")
    with pytest.raises(SystemExit) as left:
        parser.parse_args(["--result", "x"])
    assert left.value.code == 2
    assert capsys.readouterr().err == "error: unknown argument '--result'; did you mean '--results'?; see --help\n"


def test_a_folder_of_results_that_is_not_there_is_refused_and_not_made(tmp_path: Path) -> None:
    nowhere = tmp_path / "nowhere"
    for script in ("tables.py", "report.py"):
        called = [sys.executable, str(REPOSITORY / "benchmarks" / script), "--results", str(nowhere)]
        done = subprocess.run(called, capture_output=True, text=True, timeout=60)
        assert done.returncode == 2
        assert done.stderr == f"error: --results {nowhere}: no such folder; name one that holds runs/\n"
    assert not nowhere.exists()


def test_a_full_disk_leaves_the_tables_as_they_were(
    results: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    real, written = Path.write_text, []

    def full(self: Path, text: str, encoding: str | None = None) -> int:
        written.append(self)
        if len(written) == 7:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(self, text, encoding=encoding)

    monkeypatch.setattr(Path, "write_text", full)
    assert run(lambda: main(["--results", str(results)])) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "No space left on device" in said.err
    assert list((results / "tables").iterdir()) == []

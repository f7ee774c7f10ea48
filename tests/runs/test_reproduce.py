"""`tespec run --reproduce` computes a record again by its command, and says what differs."""

import json
import shutil
import sys
from types import SimpleNamespace

import pytest
from made_records import record

import tespec
from tespec.cli import reproduce
from tespec.cli.main import main
from tespec.cli.reproduce import command_of, compare
from tespec.comparison.records import ARCHIVE, REPORTED, read_records, write_archive, write_record

PRIOR = ["run", "--reference", "prior", "--task", "ddd17", "--split=val", "--profile", "smoke"]
PLACES = ["--results", "results", "--runs", "runs"]


@pytest.fixture
def prior(tiny_world, tmp_path, monkeypatch):
    """A record of the label prior, computed in a folder with data; its results are there."""
    monkeypatch.chdir(tmp_path)
    in_process = SimpleNamespace(run=lambda words: SimpleNamespace(returncode=main(words[3:])))
    monkeypatch.setattr(reproduce, "subprocess", in_process)
    assert main([*PRIOR, "--data", str(tiny_world / "ddd17"), *PLACES]) == 0
    (made,), _ = read_records(tmp_path / "results")
    return made


def test_an_own_record_is_computed_again_and_both_stay(prior, tmp_path, capsys):
    assert main(["run", "--reproduce", prior.name, *PLACES]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[-1] for line in lines if line.startswith("miou ")] == ["+0.00"]
    assert "numbers of groups, recordings and classes that differ: 0" in lines
    assert not [line for line in lines if line.startswith("other ")]
    (new,), _ = read_records(tmp_path / "results")
    (first,), _ = read_records(tmp_path / "results" / REPORTED)
    assert (first, new.metrics, new.written >= first.written) == (prior, prior.metrics, True)
    frame = tespec.results("results")
    assert set(frame.status) == {"reproduced"}
    assert (frame.value == frame.reported_value).all()


def test_a_record_of_others_differs_and_the_causes_are_said(prior, tmp_path, tiny_world, capsys):
    """Its data lies elsewhere, so that --data replaces the folder of its command."""
    environment = prior.environment.model_copy(update={"cpu": "Z80", "packages": {"torch": "1"}})
    changed = {name: value + 1 for name, value in prior.metrics.items()}
    command = prior.command.replace(str(tiny_world / "ddd17"), "/theirs/ddd17")
    update = {"metrics": changed, "environment": environment, "command": command}
    sent = prior.model_copy(update=update)
    path = write_record(sent, tmp_path / "sent")
    shutil.rmtree("results")
    code = main(["run", "--reproduce", str(path), *PLACES])
    assert (code, "/theirs/ddd17: no such file" in capsys.readouterr().err) == (2, True)
    data = ["--data", str(tiny_world / "ddd17")]
    assert main(["run", "--reproduce", str(path), *data, *PLACES]) == 1
    out = capsys.readouterr().out
    assert "-1.00" in next(line for line in out.splitlines() if line.startswith("miou "))
    assert "other environment.cpu (Z80 there, " in out
    assert "other environment.packages.torch (1 there, " in out
    frame = tespec.results("results")
    main_score = frame[frame.main].iloc[0]
    assert main_score.status == "reproduced"
    assert main_score.reported_value == pytest.approx(main_score.value + 1)
    assert "Z80" in main_score.reported_on


def test_a_record_in_an_archive_is_found_by_its_name(prior, tmp_path, capsys):
    write_archive([prior], tmp_path / "study" / ARCHIVE)
    assert main(["run", "--reproduce", f"study/{prior.name}", *PLACES]) == 0
    assert main(["run", "--reproduce", "study/evaluation-x", *PLACES]) == 2
    assert "no such record; give its file, or RESULTS_FOLDER/NAME" in capsys.readouterr().err


def test_a_run_that_was_computed_here_before_is_not_replaced(prior, tmp_path):
    path = tmp_path / "results" / "runs" / f"{prior.name}.json"
    before = path.read_bytes()
    sent = write_record(
        prior.model_copy(update={"command": prior.command + " "}), tmp_path / "sent"
    )
    assert main(["run", "--reproduce", str(sent), *PLACES]) == 0
    assert path.read_bytes() == before


@pytest.mark.parametrize("option", ["--import {}", "--import={}"])
def test_a_file_is_imported_only_if_the_user_names_it(prior, option, tmp_path, capsys):
    plugin = tmp_path / "theirs.py"
    plugin.write_text("import pathlib; pathlib.Path('trace').touch()")
    sent = prior.model_copy(update={"command": f"{prior.command} {option.format(plugin)}"})
    path = write_record(sent, tmp_path / "sent")
    assert main(["run", "--reproduce", str(path), *PLACES]) == 2
    message = f"its command imports {plugin}; read it, and repeat with --import {plugin}"
    assert capsys.readouterr().err.splitlines()[-1] == f"error: {prior.name}: {message}"
    assert not (tmp_path / "trace").exists()
    assert main(["run", "--reproduce", str(path), *PLACES, "--import", str(plugin)]) == 0
    assert (tmp_path / "trace").exists()


def test_a_command_writes_to_no_folder_of_its_own(prior, tmp_path):
    more = "--results there --runs=there/runs --track files"
    sent = prior.model_copy(update={"command": f"{prior.command} {more}"})
    path = write_record(sent, tmp_path / "sent")
    assert main(["run", "--reproduce", str(path), *PLACES]) == 0
    assert not (tmp_path / "there").exists()


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("rm -rf /", "its command is not `tespec run` or `tespec pretrain`: 'rm -rf /'"),
        ("tespec data prepare dsec /data", "its command is not `tespec run`"),
        ("tespec run --data 'x", "its command is not `tespec run`"),
        ("python evil.py", "its command is not `tespec run`"),
        ("", "its command is not `tespec run`"),
    ],
)
def test_other_commands_are_refused(command, message, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(reproduce, "subprocess", None)  # nothing is run
    path = write_record(record(command=command), tmp_path)
    assert main(["run", "--reproduce", str(path), "--results", str(tmp_path)]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("more", [["--method", "tespec"], ["--set", "bins=5"], ["--seed=3"]])
def test_options_that_change_the_result_are_refused(more, tmp_path, capsys):
    assert main(["run", "--reproduce", "x", *more, "--results", str(tmp_path)]) == 2
    assert f"--reproduce cannot be combined with {more[0].split('=')[0]}" in capsys.readouterr().err


def test_as_many_processes_are_started(monkeypatch):
    command = "torchrun --nproc-per-node 4 -m tespec.cli run --method moby --launcher pytorch"
    made = record(command=command, environment={"processes": 4})
    start = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "4", "-m"]
    options = ["tespec.cli", "run", "--method", "moby", "--launcher", "pytorch"]
    assert command_of(made) == start + options


def test_a_number_that_is_not_finite_differs_from_one_that_is():
    equal, lines = compare(record(miou=None), record(miou=40.0))
    assert not equal
    assert lines[1].split() == ["miou", "nan", "40.00"]
    assert compare(record(miou=None), record(miou=None))[0]
    assert compare(record(miou=40.0), record(miou=40.001))[0]


@pytest.mark.slow
def test_a_training_repeats_to_the_last_digit_in_a_process_of_its_own(
    tiny_world, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    few = ["--set", "optimisation.steps=2", "--set", "optimisation.warmup_steps=0"]
    words = ["run", "--method", "scratch", "--task", "ddd17", "--data", str(tiny_world / "ddd17")]
    assert main([*words, "--profile", "smoke", *few, *PLACES]) == 0
    (made,), _ = read_records(tmp_path / "results")
    assert main(["run", "--reproduce", f"results/runs/{made.name}.json", *PLACES]) == 0
    (new,), _ = read_records(tmp_path / "results")
    assert (new.metrics, new.recordings) == (made.metrics, made.recordings)
    assert json.loads((tmp_path / "results" / REPORTED / "runs" / f"{made.name}.json").read_text())

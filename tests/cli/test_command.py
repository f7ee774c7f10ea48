"""What every command line does: help, one-line errors, exit codes, recorded commands, files of one's own."""

from __future__ import annotations

import subprocess
import sys

import tespec.core.compat  # noqa: F401  # before mmengine

import pytest
import torch

from tespec.cli.command import VERBS, as_started, run
from tespec.cli.options import prepared
from tespec.core import config
from tespec.core.config import names
from tespec.core.errors import Preempted, UserError
from tespec.core.paths import CONFIGS, REPOSITORY
from tespec.runs.setup import Setup
from tespec.training.hooks import TRACKERS
from tespec.training.launch import LAUNCHERS

SCRIPTS = sorted(path for path in (REPOSITORY / "benchmarks").glob("*.py") if "__main__" in path.read_text())
COMMANDS = [[verb] for verb in VERBS if verb not in ("data", "weights")]
COMMANDS += [["data", each] for each in ("check", "prepare", "preview", "download-guide")]
COMMANDS += [["weights", "inspect"], ["weights", "convert"]]


def ended_with(error):
    def main():
        raise error

    return run(main)


ENDS = [
    (UserError("a.yaml", "two\n  lines", "write\none"), 2, "error: a.yaml: two lines; write one\n"),
    (KeyboardInterrupt(), 130, ""),
    (KeyboardInterrupt("stopped at step 3"), 130, "stopped at step 3\n"),
    (Preempted("stopped at step 3"), 75, "stopped at step 3\n"),
    (OSError(28, "No space left on device", "a.json"), 2, "error: a.json: No space left on device; name another place"),
    (
        ModuleNotFoundError("No module", name="timm.layers"),
        2,
        f"error: {sys.executable}: the package timm.layers",
    ),
]


@pytest.mark.parametrize(("error", "code", "said"), ENDS)
def test_an_end_has_an_exit_code_and_one_line(error, code, said, capsys):
    assert ended_with(error) == code
    err = capsys.readouterr().err
    assert err.startswith(said)
    assert err.count("\n") == bool(said)


@pytest.mark.parametrize("defect", [RuntimeError("a defect"), ModuleNotFoundError("no", name="tespec.nothing")])
def test_defects_pass_through(defect):
    with pytest.raises(type(defect)):
        ended_with(defect)


def test_help_fits_a_screen_says_how_settings_are_found_and_imports_no_torch(call):
    for command in ([], *COMMANDS):
        code, out, _ = call(*command, "--help")
        assert code == 0
        assert len(out.splitlines()) <= 45, command
        assert ("--import" in out) == (command not in ([], ["tables"], ["report"])), command
        if command in (["run"], ["pretrain"]):
            assert "then --profile, then --set; the later one wins" in out
            assert out.index("--method") < out.index("Advanced:") < out.index("--launcher")
            assert all(name in out for name in (*names("profiles"), *LAUNCHERS, *TRACKERS))
    code = (
        "import sys\nfrom tespec.cli.main import main\n"
        f"assert not any(main([*command, '--help']) for command in {COMMANDS})\n"
        "assert main(['run', '--method', 'tespek', '--task', 'ddd17']) == 2\n"
        "assert main(['run', '--method', 'scratch', '--task', 'ddd17', '--set', 'peak_lr=1']) == 2\n"
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["tabels"], "error: tabels: unknown verb; did you mean 'tables'?\n"),
        (["x"], f"error: x: unknown verb; choose from {', '.join(VERBS)}\n"),
        (["data", "chek", "dsec", "."], 'error: Unknown command "chek". Did you mean "check"?'),
        (["run", "--result", "x"], "error: Unknown option: --result. Did you mean --results?\n"),  # no abbreviations
        (["run", "--threads", "1.5"], "error: Invalid value for --threads"),
        (["run", "--method", "scratch", "--list", "ddd17"], "error: Unused Tokens: ['ddd17']"),
    ],
)
def test_a_typo_is_answered_with_the_nearest(given, message, call):
    code, out, err = call(*given)
    assert (code, out) == (2, "")
    assert err.startswith(message)
    assert err.count("\n") == 1


def test_a_script_and_the_command_are_the_same():
    script, command = (
        subprocess.run([sys.executable, *called], cwd=REPOSITORY, capture_output=True, text=True, timeout=100)
        for called in (
            ["benchmarks/data.py", "download-guide", "ddd17"],
            ["-m", "tespec.cli", "data", "download-guide", "ddd17"],
        )
    )
    assert (script.returncode, script.stdout) == (command.returncode, command.stdout) == (0, script.stdout)
    assert "DDD17" in script.stdout


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_a_python_without_the_harness_is_told_in_one_line(script):
    # -S: without installed packages; -E: without those of the environment's variables.
    done = subprocess.run([sys.executable, "-S", "-E", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "run `make setup`" in done.stderr


def test_texts_name_the_command_that_was_started(monkeypatch):
    text = "python benchmarks/run.py --list\nrun benchmarks/tables.py, or benchmarks/speed.py"
    assert as_started(text) == text
    monkeypatch.setattr(sys, "argv", ["/usr/bin/tespec", "run"])
    assert as_started(text) == "tespec run --list\nrun tespec tables, or benchmarks/speed.py"


PATHS = "--results /some/where --runs=/else --workers 2 --seed 1 --set a.b=8 --overwrite --no-picture --track files"
RECORDED = [
    (PATHS, {}, None, "--seed 1 --set a.b=8 --threads 3"),
    ("", {"threads": 2}, None, ""),
    ("", {}, "small", ""),  # which says how many threads
    ("", {}, "sample", "--threads 3"),
    ("--data /my_data", {}, "small", "--data /my_data"),
    ("--checkpoint=RUNS/a/model.safetensors", {}, "small", "--checkpoint=runs/a/model.safetensors"),
    ("--checkpoint RUNS/a/model.safetensors", {}, "small", "--checkpoint runs/a/model.safetensors"),
]


@pytest.mark.parametrize(("given", "options", "profile", "kept"), RECORDED)
def test_a_record_holds_the_command_that_repeats_it_anywhere(tmp_path, monkeypatch, given, options, profile, kept):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    monkeypatch.setattr(torch, "set_num_threads", lambda threads: None)
    runs = tmp_path / "runs"
    words = given.replace("RUNS", str(runs)).split()
    setup = prepared(Setup(device="cpu", runs=runs, results=tmp_path, **options), "run", words, profile)
    assert setup.command == f"python benchmarks/run.py {kept}".strip()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder laid out like configs/, with a task and a plan; what is read from it is forgotten afterwards."""
    monkeypatch.setattr(config, "_added", {})
    for kind, name, text in (
        ("tasks", "mine", (CONFIGS / "tasks" / "ddd17.yaml").read_text().replace("name: ddd17", "name: mine")),
        ("plans", "mine_too", "data: sample\nprofile: tiny\ncells: [{methods: [scratch], tasks: [ddd17]}]\n"),
    ):
        (tmp_path / kind).mkdir()
        (tmp_path / kind / f"{name}.yaml").write_text(text)
    return tmp_path


def test_configs_of_ones_own_are_found_by_name_or_file(folder, call):
    assert call("run", "--configs", folder, "--describe", "mine")[1].startswith("mine, recurrent")
    assert call("data", "download-guide", "mine", "--configs", folder)[1].startswith("DDD17 with EV-SegNet's labels")
    places = ["--results", folder / "results", "--runs", folder / "runs"]
    code, shown, _ = call("plan", "mine_too", "--configs", folder, "--dry-run", *places)
    assert code == 0
    assert "mine_too: 0 of 2 runs done" in shown
    assert f"--configs {folder}" in shown
    config._added.clear()
    file = folder / "tasks" / "mine.yaml"
    refused = call("run", "--method", "scratch", "--task", file, "--data", "/nowhere", "--profile", "tiny")
    assert refused == (2, "", "error: /nowhere: no such file or folder; check the path given to --data\n")
    assert "no folder of configs" in call("run", "--list", "--configs", folder / "none")[2]

"""Behaviour of all commands: help, errors, exit codes, recorded commands, users' config files."""

import inspect
import os
import re
import shutil
import signal
import subprocess
import sys
from unittest.mock import Mock

import pytest
import torch

from tespec.cli.main import VERBS, run
from tespec.cli.options import resolve_setup
from tespec.core import config
from tespec.core.config import names
from tespec.core.errors import Preempted, UserError
from tespec.core.paths import REPOSITORY
from tespec.runs.setup import Setup
from tespec.runs.train import TRACKERS
from tespec.training.device import LAUNCHERS

SCRIPTS = sorted(
    path for path in (REPOSITORY / "benchmarks").glob("*.py") if "__main__" in path.read_text()
)
COMMANDS = [[verb] for verb in VERBS if verb not in ("data", "weights")]
COMMANDS += [["data", name] for name in ("check", "prepare", "preview", "cache", "download-guide")]
COMMANDS += [["weights", "inspect"], ["weights", "convert"]]
ENDS = [
    (UserError("a.yaml", "two\n  lines", "write\none"), 2, "error: a.yaml: two lines; write one\n"),
    (KeyboardInterrupt("stopped at step 3"), 130, "stopped at step 3\n"),
    (Preempted("stopped at step 3"), 75, "stopped at step 3\n"),
    (
        OSError(28, "No space left on device", "a.json"),
        2,
        "error: a.json: No space left on device; choose another",
    ),
    (
        ModuleNotFoundError("No", name="timm.layers"),
        2,
        f"error: {sys.executable}: the package timm.layers",
    ),
]


@pytest.mark.parametrize(("error", "code", "said"), ENDS)
def test_an_end_has_an_exit_code_and_one_line(error, code, said, capsys):
    assert run(Mock(side_effect=error)) == code
    err = capsys.readouterr().err
    assert err.startswith(said)
    assert err.count("\n") == bool(said)


@pytest.mark.parametrize(
    "defect", [RuntimeError("a defect"), ModuleNotFoundError("no", name="tespec.nothing")]
)
def test_defects_pass_through(defect):
    with pytest.raises(type(defect)):
        run(Mock(side_effect=defect))


def test_an_error_in_code_of_the_user_is_shown_from_his_line_on(tmp_path, call, capsys):
    path = tmp_path / "mine.py"
    path.write_text("def loss():\n    return len(5)\n")
    names = {}
    exec(compile(path.read_text(), str(path), "exec"), names)
    call("--version")  # a command sets the hook
    for function, first in (
        (names["loss"], f'"{path}", line 2, in loss'),
        (Mock(side_effect=TypeError("of the harness")), f'"{inspect.getfile(run)}", line '),
    ):
        with pytest.raises(TypeError) as caught:
            run(function)
        capsys.readouterr()
        sys.excepthook(caught.type, caught.value, caught.tb.tb_next)  # without this test
        header, frame, *_, last = capsys.readouterr().err.splitlines()
        assert header == "Traceback (most recent call last):"
        assert frame.startswith(f"  File {first}")
        assert last == f"TypeError: {caught.value}"


def test_help_has_usage_and_examples_on_one_screen_and_imports_no_torch(call):
    for command in ([], *COMMANDS):
        code, out, _ = call(*command, "--help")
        assert code == 0
        assert len(out.splitlines()) <= 60, command
        usage, *lines = out.rstrip().splitlines()
        assert usage.startswith(" ".join(["Usage: tespec", *command])), command
        examples = lines[lines.index("Examples:") + 1 :]
        assert len(examples) >= 2
        for example in examples:
            assert example.startswith(" ".join(["  tespec", *command])), command
        no_plugins = ([], ["tables"], ["report"], ["data", "cache"])
        assert ("--import" in out) == (command not in no_plugins), command
        if command in (["run"], ["pretrain"]):
            assert "then --profile, then --set; the later one wins" in " ".join(out.split())
            assert out.index("--method") < out.index("Advanced:") < out.index("--launcher")
            assert all(name in out for name in (*names("profiles"), *TRACKERS))
            assert f"[choices: none, {', '.join(LAUNCHERS)}] [default: none]" in out
    code = (
        "import sys\nfrom tespec.cli.main import main\n"
        f"assert not any(main([*command, '--help']) for command in {COMMANDS})\n"
        "assert main(['run', '--method', 'tespek', '--task', 'ddd17']) == 2\n"
        "cell = ['run', '--method', 'scratch', '--task', 'ddd17']\n"
        "assert main([*cell, '--set', 'peak_lr=1']) == 2\n"
        "assert main(['plan', 'smal']) == 2\n"
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_a_python_without_the_harness_is_told_in_one_line(script):
    # -S hides installed packages, -E ignores PYTHONPATH.
    done = subprocess.run(
        [sys.executable, "-S", "-E", script], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "run `make setup`" in done.stderr


@pytest.mark.parametrize(
    ("launcher", "profile", "threads", "program"),
    [
        ("none", "study", 1, "tespec"),
        ("pytorch", "sample", None, "torchrun --nproc-per-node 2 -m tespec.cli"),
    ],
)
def test_a_record_holds_the_command_that_repeats_it(
    tmp_path, monkeypatch, launcher, profile, threads, program
):
    monkeypatch.setattr(torch, "set_num_threads", lambda threads: None)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    monkeypatch.chdir(tmp_path)
    words = ["run", "--data", "my data", "--seeds", "1", "2", "--results", "r", "--runs=s"]
    words += ["--overwrite", "--checkpoint", "a/b.pt", "--import=c.py", "--task", "d.yaml"]
    words += ["--set", "objective.teacher_weights=e", "--set=steps=1", "--workers", "2"]
    setup = resolve_setup(
        Setup(device="cpu", launcher=launcher, runs=tmp_path, results=tmp_path),
        words,
        profile,
        "/my data",
    )
    here = tmp_path.as_posix()
    used = "" if threads else " --threads 3"
    assert setup.command == (
        f"{program} run --checkpoint {here}/a/b.pt --import={here}/c.py --task {here}/d.yaml "
        f"--set objective.teacher_weights={here}/e --set=steps=1 --data '/my data'{used}"
    )
    assert setup.threads == threads


def test_a_task_and_a_profile_of_ones_own_are_files(tmp_path, monkeypatch, call):
    monkeypatch.setattr(config, "_added", {})
    task, profile = tmp_path / "mine.yaml", tmp_path / "fast.yaml"
    task.write_text("base: ddd17\ntitle: Mine\n")
    profile.write_text("base: fast\n")
    command = ("run", "--method", "scratch", "--task", task, "--profile", profile, "--data")
    refused = (2, "", "error: /nowhere: no such file or folder; check the path\n")
    circular = (2, "", "error: base: fast: is based on itself; choose another base\n")
    assert call(*command, tmp_path) == circular
    profile.write_text("base: smoke\nfinetuning: {optimisation: {steps: 33}}\n")
    assert call(*command, "/nowhere") == refused
    out = call("run", "--describe", task, "--profile", profile)[1]
    assert out.startswith("mine, recurrent, profile fast\n")
    assert re.search(r"^  optimisation.steps: 33 +# profile fast$", out, re.MULTILINE)
    assert call("data", "download-guide", "mine")[1].startswith("DDD17 with EV-SegNet's labels")
    planned = call(
        "plan", "demo", "--profile", profile, "--dry-run", "--results", tmp_path / "none"
    )[1]
    assert f" --profile {profile} " in planned
    plugin = tmp_path / "plugin.py"
    plugin.write_text(
        "from tespec.core import config\n"
        f"config.add_file('profiles', config.Path({str(profile)!r}))\n"
    )
    config._added.clear()
    command = ("run", "--method", "scratch", "--task", "ddd17", "--profile", "fast")
    # the profile is known
    code, _, error = call(*command, "--import", plugin, "--data", tmp_path)
    assert (code, "recording of the test split is missing" in error) == (2, True)


def test_a_script_runs_the_code_of_its_clone_whichever_is_installed(tmp_path):
    shutil.copytree(REPOSITORY / "benchmarks", tmp_path / "benchmarks")
    (tmp_path / "tespec" / "cli").mkdir(parents=True)
    for package in ("tespec", "tespec/cli"):
        (tmp_path / package / "__init__.py").write_text("")
    (tmp_path / "tespec" / "cli" / "main.py").write_text(
        "import subprocess, sys\n"
        "def main(words):\n"
        "    print(__file__, *words, flush=True)\n"
        "    code = 'import tespec; print(tespec.__file__)'\n"
        "    return subprocess.run([sys.executable, '-c', code], cwd='/').returncode\n"
    )
    done = subprocess.run(
        [sys.executable, tmp_path / "benchmarks" / "run.py", "--list"],
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.splitlines() == [
        f"{tmp_path / 'tespec' / 'cli' / 'main.py'} run --list",
        str(tmp_path / "tespec" / "__init__.py"),
    ]


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("run --help | true", 141),
        ("run --metod x 2>&1 | true", 141),
        ("run --help >&-", 0),
        ("run --metod x 2>&-", 2),
        ("data --help | true", 141),
        ("data cache <&- >&- 2>&-", 0),
    ],
)
def test_a_closed_output_ends_a_command_silently(command, code):
    words = f"set -o pipefail; {sys.executable} -m tespec.cli {command}"
    done = subprocess.run(
        ["bash", "-c", words], cwd=REPOSITORY, capture_output=True, text=True, timeout=100
    )
    assert (done.returncode, done.stderr) == (code, "")


def test_a_broken_pipe_of_something_else_is_a_defect(capfd):
    with pytest.raises(BrokenPipeError):
        run(Mock(side_effect=BrokenPipeError(32, "Broken pipe")))


@pytest.mark.parametrize("start", ["-m tespec", "-m tespec.cli", "benchmarks/tables.py"])
def test_ctrl_c_during_the_imports_ends_a_command_silently(tmp_path, start):
    (tmp_path / "cyclopts.py").write_text(
        "import time\nprint('imported', flush=True)\ntime.sleep(60)"
    )
    path = os.pathsep.join([str(tmp_path), str(REPOSITORY)])
    with subprocess.Popen(
        [sys.executable, *start.split()], cwd=REPOSITORY, text=True,
        # A shell starts background jobs with SIGINT ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        env=os.environ | {"PYTHONPATH": path}, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdout.readline() == "imported\n"
        process.send_signal(signal.SIGINT)
        assert (process.wait(60), process.stderr.read()) == (-signal.SIGINT, "")

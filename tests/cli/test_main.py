"""The command `tespec`, and how command lines speak of themselves."""

import subprocess
import sys

import pytest

from tespec.cli import command
from tespec.cli.command import VERBS, as_started
from tespec.cli.main import main
from tespec.core.paths import REPOSITORY


def test_help_names_every_verb_and_imports_nothing_heavy():
    code = (
        "import sys; from tespec.cli.main import main; main(['--help']); "
        "assert not {'torch', 'mmengine', 'numpy', 'pandas'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert all(f"\n  {verb:9} " in done.stdout for verb in VERBS)


@pytest.mark.parametrize("verb", VERBS)
def test_help_of_a_verb_imports_no_torch(verb):
    code = (
        "import sys\nfrom tespec.cli.main import main\n"
        f"try: main([{verb!r}, '--help'])\nexcept SystemExit: assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"usage: {verb}.py" in done.stdout


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["tabels"], "error: unknown verb 'tabels'; did you mean 'tables'?\n"),
        (["x"], "error: unknown verb 'x'; choose from run, pretrain, plan, tables, report, data, weights\n"),
    ],
)
def test_an_unknown_verb_is_answered_with_the_nearest(given, message, capsys):
    assert main(given) == 2
    assert capsys.readouterr().err == message


def test_a_door_and_the_command_are_the_same_function():
    for called in (["benchmarks/tables.py"], ["-m", "tespec.cli", "tables"]):
        done = subprocess.run(
            [sys.executable, *called, "--audit"], cwd=REPOSITORY, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        assert "Sec. 4.2, Object detection: gain over no pre-training" in done.stdout


def test_texts_name_the_command_that_was_started(monkeypatch):
    text = "first\n\npython benchmarks/run.py --list\nrun benchmarks/tables.py, or benchmarks/speed.py"
    assert as_started(text) == text
    monkeypatch.setattr(sys, "argv", ["/usr/bin/tespec", "run"])
    assert as_started(text) == "first\n\ntespec run --list\nrun tespec tables, or benchmarks/speed.py"
    with pytest.raises(SystemExit):
        command.Parser(verb="run", description=text).parse_args(["--nothing"])

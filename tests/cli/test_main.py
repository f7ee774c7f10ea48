"""The command `tespec`, and how command lines speak of themselves."""

import subprocess
import sys

import pytest

from tespec.cli import command
from tespec.cli.command import VERBS, as_started
from tespec.cli.main import main
from tespec.core.paths import REPOSITORY


def test_help_of_every_verb_imports_nothing_heavy():
    code = (
        "import sys\nfrom tespec.cli.main import main\nmain(['--help'])\n"
        "assert not {'torch', 'mmengine', 'numpy', 'pandas'} & set(sys.modules)\n"
        f"for verb in {list(VERBS)}:\n"
        "    try: main([verb, '--help'])\n"
        "    except SystemExit: assert 'torch' not in sys.modules, verb"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    for verb in VERBS:
        assert f"\n  {verb:9} " in done.stdout
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


def test_a_script_and_the_command_are_the_same_function():
    script, command = (
        subprocess.run(
            [sys.executable, *called, "download-guide", "ddd17"],
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            timeout=60,
        )
        for called in (["benchmarks/data.py"], ["-m", "tespec.cli", "data"])
    )
    assert (script.returncode, script.stdout) == (command.returncode, command.stdout) == (0, script.stdout)
    assert "DDD17" in script.stdout


def test_texts_name_the_command_that_was_started(monkeypatch):
    text = "first\n\npython benchmarks/run.py --list\nrun benchmarks/tables.py, or benchmarks/speed.py"
    assert as_started(text) == text
    monkeypatch.setattr(sys, "argv", ["/usr/bin/tespec", "run"])
    assert as_started(text) == "first\n\ntespec run --list\nrun tespec tables, or benchmarks/speed.py"
    with pytest.raises(SystemExit):
        command.Parser(verb="run", description=text).parse_args(["--nothing"])

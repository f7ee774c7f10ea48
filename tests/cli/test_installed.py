"""Every script says what to do where the harness is not installed."""

import subprocess
import sys

import pytest

from tespec.cli.command import run
from tespec.cli.options import add_run_options
from tespec.core.config import names
from tespec.core.paths import REPOSITORY

SCRIPTS = sorted(path for path in (REPOSITORY / "benchmarks").glob("*.py") if "__main__" in path.read_text())


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_a_python_without_the_harness_is_told_in_one_line(script):
    # -S: without installed packages; -E: without those of the environment's variables.
    done = subprocess.run([sys.executable, "-S", "-E", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "run `make setup`" in done.stderr


def test_a_package_that_is_missing_is_named_in_one_line(capsys):
    def main():
        raise ModuleNotFoundError("No module named 'timm'", name="timm.layers")

    assert run(main) == 2
    assert "the package timm.layers is not installed; run `make setup`" in capsys.readouterr().err


def test_a_defect_of_the_harness_is_no_missing_package():
    def main():
        raise ModuleNotFoundError("No module named 'tespec.nothing'", name="tespec.nothing")

    with pytest.raises(ModuleNotFoundError):
        run(main)


def test_help_names_every_profile():
    import argparse

    parser = argparse.ArgumentParser()
    add_run_options(parser)
    for name in names("profiles"):
        assert name in parser.format_help()

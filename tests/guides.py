"""Run the commands of the guides unchanged in this process, and undo their imports afterwards."""

import io
import re
import shlex
import sys
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from tespec.cli.main import main
from tespec.core import config
from tespec.core.paths import REPOSITORY
from tespec.registry import BACKBONES, DATASETS, METHODS, MODELS, PLUGIN, TASKS


def section(title):
    """Text of a section of docs/extending.md, and the commands in it."""
    text = (
        (REPOSITORY / "docs" / "extending.md")
        .read_text()
        .split(f"## {title}\n")[1]
        .split("\n## ")[0]
    )
    return text, [
        line
        for block in re.findall(r"```sh\n(.*?)\n```", text, re.DOTALL)
        for line in block.splitlines()
    ]


@contextmanager
def forgotten_afterwards():
    """Undo plug-in imports, registrations and added configs at the end of the context."""
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                config, "_added", {kind: dict(paths) for kind, paths in config._added.items()}
            )
            yield
    finally:
        for registry in (BACKBONES, DATASETS, METHODS, MODELS, TASKS):
            for name in [
                name
                for name, kind in registry.module_dict.items()
                if kind.__module__.startswith(PLUGIN)
            ]:
                del registry.module_dict[name]
        for name in [name for name in sys.modules if name.startswith(PLUGIN)]:
            del sys.modules[name]


def follow(command, folder, *more):
    """Run `python benchmarks/VERB.py ...` in a folder; returns its stdout and stderr."""
    python, script, *arguments = shlex.split(command)
    assert (python, Path(script).parent.name) == ("python", "benchmarks")
    with (
        forgotten_afterwards(),
        pytest.MonkeyPatch.context() as patch,
        redirect_stdout(io.StringIO()) as printed,
        redirect_stderr(io.StringIO()) as said,
    ):
        patch.chdir(folder)
        code = main([Path(script).stem, *arguments, *map(str, more)])
    assert code == 0, f"{command}\n{said.getvalue()}"
    return printed.getvalue(), said.getvalue()

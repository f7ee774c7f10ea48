"""A tiny plan and what its tests share."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tespec.core.paths import REPOSITORY

PLAN = [sys.executable, str(REPOSITORY / "benchmarks" / "plan.py")]


@pytest.fixture(scope="session")
def cache(tiny_world, tmp_path_factory):
    """A cache that holds the tiny world."""
    folder = tmp_path_factory.mktemp("cache")
    (folder / tiny_world.name).symlink_to(tiny_world)
    return folder


@pytest.fixture
def start(tmp_path, cache):
    """Start the command line on a plan; gives the process's arguments and environment for `subprocess`."""

    def start(*arguments, folder="."):
        where = tmp_path / folder
        where.mkdir(exist_ok=True)
        places = ["--results", str(where / "results"), "--runs", str(where / "runs")]
        return {
            "args": [*PLAN, *map(str, arguments), *places],
            "cwd": where,
            "env": {**os.environ, "TESPEC_CACHE": str(cache)},
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
            "text": True,
        }

    return start


@pytest.fixture
def plan(start):
    """Run the command line on a plan to its end."""

    def plan(*arguments, folder="."):
        return subprocess.run(**start(*arguments, folder=folder), timeout=500)

    return plan


@pytest.fixture
def found(tmp_path):
    """What the records of a folder found, by their names."""

    def found(folder="."):
        paths = (tmp_path / folder / "results" / "runs").glob("*.json")
        records = [json.loads(Path(path).read_text()) for path in paths]
        return {record["name"]: (record["metrics"], record["recordings"], record["curve"]) for record in records}

    return found

"""Contents of the wheel, and its use in another folder without the checkout on the path."""

import os
import shutil
import subprocess
import sys

import pytest

from tespec.comparison.records import read_records
from tespec.core.paths import REPOSITORY

SOURCES = (
    "tespec",
    "baselines",
    "configs",
    "results/paper",
    "pyproject.toml",
    "setup.py",
    "MANIFEST.in",
    "README.md",
)


@pytest.mark.slow
def test_a_wheel_does_in_another_folder_what_a_checkout_does(tiny_world, tmp_path):
    source, target, elsewhere = (tmp_path / name for name in ("source", "target", "elsewhere"))
    elsewhere.mkdir()
    for name in SOURCES:  # a copy, since setuptools leaves files in the folder it builds
        there, here = source / name, REPOSITORY / name
        there.parent.mkdir(parents=True, exist_ok=True)
        if here.is_dir():
            shutil.copytree(here, there, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(here, there)
    install = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--no-build-isolation",
        "--no-deps",
        "--quiet",
        "--target",
    ]
    subprocess.run([*install, target, source], cwd=tmp_path, check=True, timeout=600)
    assert {path.name for path in target.iterdir() if path.suffix != ".dist-info"} == {
        "baselines",
        "bin",
        "tespec",
    }
    files = ("tespec/configs/tasks/ddd17.yaml", "tespec/published/depth.yaml", "baselines/moby.py")
    assert all((target / name).is_file() for name in files)
    environment = os.environ | {"PYTHONPATH": str(target), "PYTHONSAFEPATH": "1"}

    def tespec(*arguments):
        called = [sys.executable, str(target / "bin" / "tespec"), *map(str, arguments)]
        done = subprocess.run(
            called, cwd=elsewhere, env=environment, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "Usage: tespec VERB" in tespec("--help")
    assert "then --profile, then --set" in " ".join(tespec("run", "--help").split())
    what = [
        "--task",
        "ddd17",
        "--arch",
        "feedforward",
        "--data",
        tiny_world / "ddd17",
        "--device",
        "cpu",
    ]
    assert tespec("run", "--method", "scratch", "--profile", "smoke", *what).startswith(
        "scratch on ddd17"
    )
    (record,), _ = read_records(elsewhere / "results")
    assert record.command.startswith("tespec run --method scratch --profile smoke")
    assert "62.774" in tespec(
        "tables", "--only", "segmentation", "--results", elsewhere / "results"
    )

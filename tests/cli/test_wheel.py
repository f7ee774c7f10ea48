"""Contents of the wheel, and its use in another folder without the checkout on the path."""

import os
import shutil
import subprocess
import sys
import zipfile

import pytest

from tespec.comparison.records import read_records
from tespec.core.paths import REPOSITORY

SOURCES = ("tespec", "baselines", "configs", "results/paper", "pyproject.toml", "setup.py", "MANIFEST.in", "README.md")


def built(folder):
    """Build the wheel from a copy of the checkout, since setuptools leaves files in the folder it builds."""
    source = folder / "source"
    for name in SOURCES:
        there, here = source / name, REPOSITORY / name
        there.parent.mkdir(parents=True, exist_ok=True)
        if here.is_dir():
            shutil.copytree(here, there, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(here, there)
    called = [sys.executable, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "--quiet", "-w", str(folder)]
    subprocess.run([*called, str(source)], cwd=folder, check=True, timeout=300)
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.mark.slow
def test_a_wheel_does_in_another_folder_what_a_checkout_does(tiny_world, tmp_path):
    wheel, target, elsewhere = built(tmp_path), tmp_path / "target", tmp_path / "elsewhere"
    elsewhere.mkdir()
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.partition("/")[0] for name in names if ".dist-info/" not in name} == {"tespec"}
    assert {"tespec/configs/tasks/ddd17.yaml", "tespec/published/depth.yaml", "tespec/baselines/moby.py"} < set(names)
    install = [sys.executable, "-m", "pip", "install", "--no-deps", "--quiet", "--target", str(target), str(wheel)]
    subprocess.run(install, check=True, capture_output=True, timeout=300)
    environment = os.environ | {"PYTHONPATH": str(target), "PYTHONSAFEPATH": "1"}

    def tespec(*arguments):
        called = [sys.executable, str(target / "bin" / "tespec"), *map(str, arguments)]
        done = subprocess.run(called, cwd=elsewhere, env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "Usage: tespec VERB" in tespec("--help")
    assert "then --profile, then --set" in " ".join(tespec("run", "--help").split())
    what = ["--task", "ddd17", "--arch", "feedforward", "--data", tiny_world / "ddd17", "--device", "cpu"]
    assert tespec("run", "--method", "scratch", "--profile", "tiny", *what).startswith("scratch on ddd17")
    (record,), _ = read_records(elsewhere / "results")
    assert record.command.startswith("tespec run --method scratch --profile tiny")
    assert "62.774" in tespec("tables", "--only", "segmentation", "--results", elsewhere / "results")

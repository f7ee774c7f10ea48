"""A method from outside of the package: the one of the guide."""

import hashlib
import os
import subprocess
import sys

import pytest

from tespec.comparison.records import read_records
from tespec.core.paths import REPOSITORY

PROGRAM = (REPOSITORY / "examples" / "my_method.py").read_text()
FEW = ["optimisation.steps=4", "optimisation.warmup_steps=1", "batch_size=4"]


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("outside") / "byol.py"
    path.write_text(PROGRAM)
    return path


def called(world, folder, *more, before=(), path=""):
    command = [sys.executable, *before, REPOSITORY / "benchmarks" / "pretrain.py", "--method", "byol", *more]
    command += ["--data", world / "1mpx", "--profile", "tiny", "--set", "batch_size=4", "--device", "cpu"]
    command += ["--results", folder / "results", "--runs", folder / "runs"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": f"{path}{os.pathsep}{REPOSITORY}"}
    done = subprocess.run([*map(str, command)], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def record_of(folder):
    (record,), _ = read_records(folder / "results")
    return record


@pytest.mark.slow
def test_two_processes_compute_what_one_computes(file, tiny_world, tmp_path):
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    called(tiny_world, tmp_path / "one", "--import", file, "--workers", "0")
    called(tiny_world, tmp_path / "two", "--import", file, "--workers", "0", "--launcher", "pytorch", before=launcher)
    one, two = (record_of(tmp_path / folder) for folder in ("one", "two"))
    assert (two.environment["processes"], two.id) == (2, one.id)
    assert two.curve[0] == pytest.approx(one.curve[0], rel=2e-6, abs=1e-6)
    assert two.curve[-1] == pytest.approx(one.curve[-1], rel=5e-3, abs=5e-3)


def test_an_installed_package_offers_it_by_its_entry_point(tiny_world, tmp_path):
    for name, text in {
        "offered/__init__.py": "",
        "offered/byol.py": PROGRAM,
        "offered-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: offered\nVersion: 1.0\n",
        "offered-1.0.dist-info/entry_points.txt": "[tespec.methods]\nbyol = offered.byol\n",
    }.items():
        path = tmp_path / "installed" / name
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(text)
    called(tiny_world, tmp_path, path=tmp_path / "installed")
    record = record_of(tmp_path)
    assert record.method == "byol"
    assert record.plugin == hashlib.sha256(PROGRAM.encode()).hexdigest()[:12]

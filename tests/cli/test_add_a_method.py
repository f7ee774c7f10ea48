"""The guide, block by block as it stands."""

import hashlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from guides import follow, section

from tespec.comparison.records import read_records
from tespec.core.paths import REPOSITORY

_, COMMANDS = section("A method")
PROGRAM = (REPOSITORY / "examples" / "my_method.py").read_text()
DATA = {"pretrain.py": "1mpx", "run.py": "ddd17"}


@pytest.fixture(scope="module")
def outputs(tiny_world, tmp_path_factory):
    """The folder, and what each command printed."""
    folder = tmp_path_factory.mktemp("guide")
    (folder / "examples").symlink_to(REPOSITORY / "examples")
    printed = []
    for command in COMMANDS:
        script, *arguments = command.split()[1:]
        extra = [] if "--list" in arguments or "--describe" in arguments else ["--results", "results"]
        if extra and script != "benchmarks/tables.py":
            extra += ["--runs", "runs", "--data", tiny_world / DATA[Path(script).name], "--device", "cpu"]
        printed.append(follow(command, folder, *extra)[0])
    return folder, printed


def test_its_method_is_listed_run_and_in_the_table(outputs):
    folder, (listed, described, pretraining, tuning, table) = outputs
    assert re.search(r"^  byol +BYOL: A network predicts", listed, re.MULTILINE)
    assert "title: BYOL" in described
    records = {(each.kind, each.method): each for each in read_records(folder / "results")[0]}
    pretrained, tuned = (records[kind, "byol"] for kind in ("pretraining", "evaluation"))
    assert pretrained.config["objective"] == {
        "type": "byol", "hidden": 256, "out": 64, "scale": [0.08, 1.0], "momentum": 0.99
    }  # fmt: skip
    assert pretrained.config["optimisation"]["steps"] == 3
    assert {"loss", "feature_std", "feature_rank"} <= set(pretrained.metrics)
    assert pretrained.plugin == tuned.plugin == hashlib.sha256(PROGRAM.encode()).hexdigest()[:12]
    assert 0 < pretrained.metrics["loss"] < 8  # two distances of 4 at most
    assert tuned.weights["sha256"] == pretrained.weights["sha256"]
    assert "weights: runs/" in pretraining
    assert tuning.startswith("byol on ddd17 (recurrent, data: sample): miou")
    (row,) = re.findall(r"^ *BYOL .*", table, re.MULTILINE)
    assert f"{tuned.metrics['miou']:.2f} (1" in row


def test_an_installed_package_offers_it_by_its_entry_point(tiny_world, tmp_path):
    for name, text in {
        "offered/byol.py": PROGRAM,
        "offered-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: offered\nVersion: 1.0\n",
        "offered-1.0.dist-info/entry_points.txt": "[tespec.methods]\nbyol = offered.byol\n",
    }.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    command = [sys.executable, REPOSITORY / "benchmarks" / "pretrain.py", "--method", "byol", "--profile", "tiny"]
    command += ["--data", tiny_world / "1mpx", "--device", "cpu", "--results", tmp_path / "results"]
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{REPOSITORY}"}
    subprocess.run([*map(str, command), "--runs", str(tmp_path / "runs")], env=environment, check=True, timeout=300)
    (record,), _ = read_records(tmp_path / "results")
    assert (record.method, record.plugin) == ("byol", hashlib.sha256(PROGRAM.encode()).hexdigest()[:12])

"""The commands of docs/extending.md, run unchanged, lead to records and tables."""

import hashlib
import os
import re
import shutil
import subprocess
import sys

import pytest
import torch
from guides import follow, forgotten_afterwards, section

import tespec
from tespec.comparison.records import read_records
from tespec.core.paths import REPOSITORY
from tespec.models import EventSwin

PROGRAM = (REPOSITORY / "examples" / "my_method.py").read_text()
RESULTS = ("--results", "results")
PLACES = ("--device", "cpu", "--runs", "runs", *RESULTS)


@pytest.mark.slow
def test_a_method_is_listed_run_and_in_the_table(tiny_world, tmp_path):
    (tmp_path / "examples").symlink_to(REPOSITORY / "examples")
    _, commands = section("A method")
    options = [
        (),
        (),
        *(("--data", tiny_world / name, *PLACES) for name in ("1mpx", "ddd17")),
        RESULTS,
    ]
    printed = [
        follow(command, tmp_path, *more)[0] for command, more in zip(commands, options, strict=True)
    ]
    listed, described, _, tuning, table = printed
    assert re.search(r"^  byol +BYOL: Predicts the momentum", listed, re.MULTILINE)
    assert "title: BYOL" in described
    records = {
        (each.cell.kind, each.cell.method): each for each in read_records(tmp_path / "results")[0]
    }
    pretrained, tuned = (records[kind, "byol"] for kind in ("pretraining", "evaluation"))
    own = {"type": "byol", "hidden": 4096, "out": 256, "scale": [0.08, 1.0], "momentum": 0.99}
    assert pretrained.config["objective"] == own
    assert {"loss", "last_stage_std", "last_stage_rank"} <= set(pretrained.metrics)
    assert (
        pretrained.cell.plugin
        == tuned.cell.plugin
        == hashlib.sha256(PROGRAM.encode()).hexdigest()[:12]
    )
    assert tuned.weights.sha256 == pretrained.weights.sha256
    assert tuning.startswith("byol on ddd17 (recurrent, data: sample): miou")
    (row,) = re.findall(r"^ *BYOL .*", table, re.MULTILINE)
    assert f"{tuned.metrics['miou']:.2f} (1" in row


@pytest.mark.slow
def test_three_checkpoints_with_three_seeds_are_one_cell(tiny_world, tmp_path):
    guide = (REPOSITORY / "README.md").read_text().partition("## Add your method")[2]
    (tmp_path / "mine.py").write_text(
        re.findall(r"```python\n# mine.py\n(.*?)```", guide, re.DOTALL)[0]
    )
    (loop, command) = re.findall(r"for seed in (.*?); do.*\n +(.*?) --data", guide)[0]
    for seed in loop.split():
        backbone = EventSwin("swin_micro", recurrent=True, img_size=(256, 320))
        torch.save(backbone.state_dict(), tmp_path / f"mine-{seed}.pth")
        places = ("--data", tiny_world / "gen1", "--profile", "smoke", *PLACES)
        follow(command.replace("$seed", seed), tmp_path, *places)
    records, _ = read_records(tmp_path / "results")
    assert len({record.cell for record in records}) == 1
    frame = tespec.results(tmp_path / "results")
    main = frame[frame.main].groupby("cell").value.agg(["mean", "std", "count"])
    ((mean, deviation, count),) = main.itertuples(index=False)
    table, _ = follow("python benchmarks/tables.py --measured", tmp_path, *RESULTS)
    (row,) = re.findall(r"^ *Mine .*", table, re.MULTILINE)
    assert count == 3
    assert f"{mean:.2f} ± {deviation:.2f} (3)" in row
    assert "swin_micro" in row
    assert "own weights" in row


@pytest.mark.slow
def test_an_installed_package_offers_a_method_by_its_entry_point(tiny_world, tmp_path):
    for name, text in {
        "offered/byol.py": PROGRAM,
        "offered-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: offered\nVersion: 1.0\n",
        "offered-1.0.dist-info/entry_points.txt": "[tespec.methods]\nbyol = offered.byol\n",
    }.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    command = [
        sys.executable,
        REPOSITORY / "benchmarks" / "pretrain.py",
        "--method",
        "byol",
        "--profile",
        "smoke",
    ]
    command += ["--data", tiny_world / "1mpx", *PLACES]
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{REPOSITORY}"}
    subprocess.run(list(map(str, command)), cwd=tmp_path, env=environment, check=True, timeout=300)
    (record,), _ = read_records(tmp_path / "results")
    assert (record.cell.method, record.cell.plugin) == (
        "byol",
        hashlib.sha256(PROGRAM.encode()).hexdigest()[:12],
    )


@pytest.mark.slow
def test_a_backbone_leads_to_weights_that_load_again(tiny_world, tmp_path, monkeypatch, capsys):
    (tmp_path / "examples").symlink_to(REPOSITORY / "examples")
    guide, (pretrain, finetune) = section("A backbone")
    (again,) = re.findall(r"```python\n(.*?)```", guide, re.DOTALL)
    short = ["--data", tiny_world / "ddd17", "--profile", "smoke", *PLACES]
    printed, _ = follow(pretrain, tmp_path, *short)
    shutil.copy(
        tmp_path / re.search(r"weights: (.*)", printed)[1], tmp_path / "backbone.safetensors"
    )
    monkeypatch.chdir(tmp_path)
    with forgotten_afterwards():
        exec(again, {})
    assert capsys.readouterr().out.startswith("convnext_micro [(1, 24, ")
    printed, said = follow(finetune, tmp_path, *short)
    assert "(tespec): 61 of 61 tensors of the backbone" in said
    assert "ecdp on ddd17 (feedforward, data: sample): miou" in printed


def test_a_kind_of_task_is_trained_and_scored(tiny_world, tmp_path):
    (tmp_path / "examples").symlink_to(REPOSITORY / "examples")
    _, (command,) = section("A kind of task")
    (tmp_path / "data").symlink_to(tiny_world)
    printed, _ = follow(command.replace("--profile sample", "--profile smoke"), tmp_path, *PLACES)
    assert re.match(r"scratch on cars \(recurrent, data: sample\): mae \d", printed), printed
    (record,), _ = read_records(tmp_path / "results")
    assert record.metrics["mae"] >= 0
    assert {name for each in record.recordings.values() for name in each} == {"mae"}
    assert "mae: mean over frames" in record.protocol["scores"]

"""The guide, step by step as it stands."""

import re
import shutil

from guides import follow, forgotten_afterwards, section

from tespec.comparison.records import read_records
from tespec.core.paths import REPOSITORY


def test_the_guide_leads_to_weights_that_load_again(tiny_world, tmp_path, monkeypatch, capsys):
    guide, (pretrain, finetune) = section("A backbone")
    (again,) = re.findall(r"```python\n(.*?)```", guide, re.DOTALL)
    (tmp_path / "examples").symlink_to(REPOSITORY / "examples")
    short = ["--data", tiny_world / "ddd17", "--profile", "tiny", "--device", "cpu"]
    places = ["--runs", "runs", "--results", "results"]
    printed, _ = follow(pretrain, tmp_path, *short, *places)
    shutil.copy(tmp_path / re.search(r"weights: (.*)", printed)[1], tmp_path / "backbone.safetensors")
    monkeypatch.chdir(tmp_path)
    with forgotten_afterwards():
        exec(again, {})
    assert capsys.readouterr().out.startswith("convnext-micro [(1, 24, ")
    printed, said = follow(finetune, tmp_path, *short, *places)
    assert "61 of 61 tensors of the backbone, format tespec" in said
    assert "ecdp on ddd17 (feedforward, data: sample): miou" in printed
    records, _ = read_records(tmp_path / "results")
    assert {record.facts["backbone"] for record in records} == {"convnext-micro"}
    assert all(record.overrides == {"width": "convnext-micro"} for record in records)

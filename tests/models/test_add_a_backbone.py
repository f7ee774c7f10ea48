"""The guide, step by step as it stands."""

import re
import shutil
from pathlib import Path

from guides import follow, forgotten_afterwards

REPOSITORY = Path(__file__).parents[2]
GUIDE = (REPOSITORY / "docs" / "add_a_backbone.md").read_text()


def test_the_guide_leads_to_weights_that_load_again(tiny_world, tmp_path, monkeypatch, capsys):
    file, again = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)
    pretrain, finetune = re.findall(r"```sh\n(.*?)\n```", GUIDE, re.DOTALL)
    (tmp_path / "convnext.py").write_text(file)

    short = ["--data", tiny_world / "ddd17", "--profile", "tiny", "--device", "cpu"]
    places = ["--runs", "runs", "--results", "results"]
    printed, _ = follow(pretrain, tmp_path, *short, *places)
    weights = re.search(r"weights: (.*)", printed)[1]
    shutil.copy(tmp_path / weights, tmp_path / "backbone.safetensors")
    monkeypatch.chdir(tmp_path)
    with forgotten_afterwards():
        exec(again, {})
    assert capsys.readouterr().out.startswith("convnext-micro [(1, 24, ")
    printed, said = follow(finetune, tmp_path, *short, *places)
    assert "61 of 69 tensors of the backbone, format tespec; the ConvLSTMs (8 tensors) start at random" in said
    assert "ecdp-convnext on ddd17 (recurrent, data: sample): miou" in printed

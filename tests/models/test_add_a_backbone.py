"""The guide, step by step as it stands."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
GUIDE = (REPOSITORY / "docs" / "add_a_backbone.md").read_text()


def test_the_guide_leads_to_weights_that_load_again(tiny_world, tmp_path):
    file, again = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)
    pretrain, finetune = re.findall(r"```sh\n(.*?)\n```", GUIDE, re.DOTALL)
    (tmp_path / "convnext.py").write_text(file)

    def call(*command):
        done = subprocess.run([sys.executable, *command], cwd=tmp_path, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    def follow(line):
        python, script, *arguments = shlex.split(line)
        assert python == "python"
        short = ["--data", str(tiny_world / "ddd17"), "--profile", "tiny", "--device", "cpu"]
        return call(str(REPOSITORY / script), *arguments, *short, "--runs", "runs", "--results", "results")

    weights = re.search(r"weights: (.*)", follow(pretrain))[1]
    shutil.copy(tmp_path / weights, tmp_path / "backbone.safetensors")
    assert call("-c", again).startswith("convnext-micro [(1, 24, ")
    out = follow(finetune)
    assert "61 of 69 tensors of the backbone, format tespec; the ConvLSTMs (8 tensors) start at random" in out
    assert "ecdp-convnext on ddd17 (recurrent, data: sample): miou" in out

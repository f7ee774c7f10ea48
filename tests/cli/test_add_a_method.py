"""The guide, step by step as it stands."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
GUIDE = (REPOSITORY / "docs" / "add_a_method.md").read_text()
SHORT = ["--set", "optimisation.steps=2", "--set", "optimisation.warmup_steps=1", "--set", "batch_size=2"]


def test_the_guide_leads_to_a_row_in_the_table(tiny_world, tmp_path):
    (program,) = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)
    (tmp_path / "my_method.py").write_text(program)
    outputs = []
    for command in re.findall(r"```sh\n(.*?)\n```", GUIDE, re.DOTALL):
        python, script, *arguments = shlex.split(command)
        assert python == "python"
        extra = ["--results", "results"]
        if script.endswith("run.py"):
            extra += ["--runs", "runs", "--data", str(tiny_world / "ddd17"), "--device", "cpu", *SHORT]
        called = [sys.executable, str(REPOSITORY / script), *arguments, *extra]
        done = subprocess.run(called, cwd=tmp_path, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        outputs.append(done.stdout)
    assert outputs[0].startswith("mine on ddd17 (recurrent, data: sample): miou")
    assert re.search(r"^Methods added here\nMy method +Swin-T/7 +Yes", outputs[1], re.MULTILINE)
    assert "My method" in (tmp_path / "results" / "tables" / "segmentation.tex").read_text()

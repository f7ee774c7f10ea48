"""The guide, step by step as it stands."""

import re
from pathlib import Path

from guides import follow
from PIL import Image

from tespec.comparison.records import read_records

REPOSITORY = Path(__file__).parents[2]
GUIDE = (REPOSITORY / "docs" / "add_a_task.md").read_text()


def test_the_guide_leads_to_a_scored_run_with_a_picture(tiny_world, tmp_path):
    (program,) = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)
    (config,) = re.findall(r"```yaml\n(.*?)```", GUIDE, re.DOTALL)
    (command,) = re.findall(r"```sh\n(.*?)\n```", GUIDE, re.DOTALL)
    (tmp_path / "counting.py").write_text(program)
    (tmp_path / "configs" / "tasks").mkdir(parents=True)
    (tmp_path / "configs" / "tasks" / "cars.yaml").write_text(config)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "gen1").symlink_to(tiny_world / "gen1")

    extra = ["--profile", "tiny", "--device", "cpu", "--runs", "runs", "--results", "results"]
    printed, _ = follow(command, tmp_path, *extra)
    assert re.match(r"scratch on cars \(recurrent, data: sample\): mae \d", printed), printed

    (record,), _ = read_records(tmp_path / "results")
    assert record.metrics["mae"] >= 0
    assert record.recordings
    assert all(set(each) == {"mae"} for each in record.recordings.values())
    assert "mae: mean over frames" in record.protocol["scores"]
    (picture,) = (tmp_path / "results").rglob("*.png")
    with Image.open(picture) as drawn:
        assert drawn.width > 900

"""The guide: its command runs the example."""

import re

from guides import follow, section

from tespec.comparison.records import read_records
from tespec.core.paths import REPOSITORY


def test_the_guide_leads_to_a_scored_run(tiny_world, tmp_path):
    _, (command,) = section("A kind of task")
    (tmp_path / "examples").symlink_to(REPOSITORY / "examples")
    (tmp_path / "data").symlink_to(tiny_world)
    extra = ["--profile", "tiny", "--device", "cpu", "--runs", "runs", "--results", "results"]
    printed, _ = follow(command, tmp_path, *extra)
    assert re.match(r"scratch on cars \(recurrent, data: sample\): mae \d", printed), printed
    (record,), _ = read_records(tmp_path / "results")
    assert record.metrics["mae"] >= 0
    assert record.recordings
    assert all(set(each) == {"mae"} for each in record.recordings.values())
    assert "mae: mean over frames" in record.protocol["scores"]

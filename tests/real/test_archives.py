"""The real archives against published facts: TESPEC_DATA=/data make test-real, with /data/dsec.

The numbers come from the archives' own pages and loaders: uzh-rpg/ess (DSEC/dataset/provider.py,
datasets/ddd17_events_loader.py), Wuziyi616/LEOD (docs) for Gen1 and 1Mpx, hamarh/HMNet_pth and
e2depth for MVSEC.
"""

import os
from pathlib import Path

import pytest

from tespec.core.config import finetuning_settings
from tespec.datasets.check import check, problems
from tespec.datasets.prophesee import recordings_in
from tespec.tasks import import_tasks
from tespec.tasks.base import open_dataset

# Recordings per split, rows and columns of the sensor, and possible intervals of the used labels in
# ms.
ARCHIVES = {
    "gen1": ({"test": 470}, (240, 304), [250, 500, 1000]),
    "1mpx": ({"test": 120}, (720, 1280), [100]),
    "dsec": ({"train": 8, "test": 3}, (480, 640), [50, 100]),
    "ddd17": ({"train": 5, "test": 1}, (260, 346), []),
    "mvsec": ({"train": 1, "test": 4}, (260, 346), [50]),
}
DEPTHS_OF_NIGHT1 = 5133  # but only 2704 images


@pytest.mark.parametrize("task", ARCHIVES)
def test_a_quick_check_finds_what_is_published_and_nothing_wrong(task):
    """Uses the paper's settings, for which masks have the published rows and classes."""
    recordings, sensor, spacings_ms = ARCHIVES[task]
    root = Path(os.environ.get("TESPEC_DATA", "")) / task
    if "TESPEC_DATA" not in os.environ or not root.is_dir():
        pytest.skip(f"no folder {task} in $TESPEC_DATA: TESPEC_DATA=/data make test-real checks it")
    import_tasks()
    dataset = open_dataset(finetuning_settings(task, "recurrent", "paper", ["rule=rvt"]), root)
    for split, count in recordings.items():
        # The published counts include recordings that the data set leaves out (protocol.skip).
        assert (
            len(recordings_in(root / split) if task in ("gen1", "1mpx") else dataset.names(split))
            == count
        )
    found = list(check(dataset, quick=True))
    assert problems(found) == []
    for each in (checked.facts | {"name": checked.name} for checked in found):
        if "events_width" in each:  # archives of histograms have none
            assert (each["events_height"], each["events_width"]) == sensor
        if spacings_ms and each["labels_count"] > 1:
            assert min(abs(each["labels_spacing_ms"] - spacing) for spacing in spacings_ms) < 2
        if each["name"] == "outdoor_night1":
            assert each["labels_count"] + each["labels_left_out"] == DEPTHS_OF_NIGHT1

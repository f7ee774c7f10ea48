"""The real archives against what is published of them: TESPEC_DATA=/data make test-real, with /data/dsec and so on.

Numbers are those of the archives' own pages and loaders: uzh-rpg/ess (DSEC/dataset/provider.py,
datasets/ddd17_events_loader.py), Wuziyi616/LEOD (docs) for Gen1 and 1Mpx, hamarh/HMNet_pth and e2depth for MVSEC.
"""

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from tespec.cli.main import main
from tespec.core.config import finetuning_settings
from tespec.datasets.ddd17 import image_times
from tespec.datasets.labels import DepthMaps, MaskFiles, mask_names, read_stamps
from tespec.datasets.mvsec import DEPTH_MAPS, read_times
from tespec.datasets.prophesee import raw_boxes, recordings_in
from tespec.datasets.sources import ArchiveSource
from tespec.events.packing import open_reader
from tespec.events.readers.arrays import load_array
from tespec.events.readers.hdf5 import part
from tespec.tasks import import_tasks
from tespec.tasks.base import open_dataset

SHOWN = 20  # labels of a recording that are read


@dataclass(frozen=True)
class Archive:
    """Recordings of each split, rows and columns of the sensor and of labels, classes, and ms between labels."""

    recordings: dict[str, int]
    sensor: tuple[int, int]
    labels: tuple[int, int] | None = None
    classes: frozenset[int] = frozenset()
    spacing_ms: tuple[float, ...] = ()


ARCHIVES = {
    "gen1": Archive({"test": 470}, (240, 304), classes=frozenset(range(2)), spacing_ms=(250, 500, 1000)),
    "1mpx": Archive({"test": 120}, (720, 1280), classes=frozenset(range(7)), spacing_ms=(1000 / 60, 1000 / 30)),
    "dsec": Archive({"train": 8, "test": 3}, (480, 640), (440, 640), frozenset((*range(11), 255)), (50,)),
    "ddd17": Archive({"train": 5, "test": 1}, (260, 346), (200, 346), frozenset((*range(6), 255))),
    "mvsec": Archive({"train": 1, "test": 4}, (260, 346), (260, 346), spacing_ms=(50,)),
}
DEPTHS_OF_NIGHT1 = 5133  # while there are 2704 images


def archive(task):
    """The data set with the paper's settings; skips where it is not at hand."""
    root = Path(os.environ.get("TESPEC_DATA", "")) / task
    if "TESPEC_DATA" not in os.environ or not root.is_dir():
        pytest.skip(f"no folder {task} in $TESPEC_DATA: TESPEC_DATA=/data make test-real checks it")
    import_tasks()
    return open_dataset(finetuning_settings(task, "recurrent", "paper", ["rule=rvt"]), root)


def labels_of(task, files):
    """Labels and their times in us, without the events; of boxes their classes."""
    if task == "dsec":
        masks, stamps = files.beside[:2]
        return MaskFiles(masks, tuple(mask_names(masks).values())), read_stamps(stamps)
    if task == "ddd17":
        masks = next(path for path in files.beside if path.name.startswith("segmentation_masks"))
        found = mask_names(masks)
        return MaskFiles(masks, tuple(found.values())), image_times(files.source.path)[0][np.array([*found]) - 1]
    if task == "mvsec":
        count = len(part(files.beside[0], DEPTH_MAPS))
        return DepthMaps(files.beside[0], DEPTH_MAPS, tuple(range(count))), read_times(
            files.beside[0], f"{DEPTH_MAPS}_ts"
        )
    boxes = raw_boxes(load_array(files.beside[0]), files.beside[0], 7)
    return [boxes.label], np.unique(boxes.t)


@pytest.mark.parametrize("task", ARCHIVES)
def test_recordings_sensors_and_labels_are_those_published(task):
    dataset, facts = archive(task), ARCHIVES[task]
    for split, count in facts.recordings.items():
        # Recordings with faulty labels are left out, and count in the archives.
        found = recordings_in(dataset.root / split) if task in ("gen1", "1mpx") else dataset.names(split)
        assert len(found) == count
    every = [files for split in dataset.splits for files in dataset.files(split)]
    for files in every:
        if isinstance(files.source, ArchiveSource):
            assert files.source.region.height * files.source.factor == facts.sensor[0]
            continue
        reader = open_reader(files.source.path, *(files.source.sensor or (None, None)))
        assert (reader.height, reader.width) == facts.sensor
        labels, times = labels_of(task, files)
        assert len(labels) == len(times) or task in ("gen1", "1mpx")
        shown = [labels[index] for index in np.unique(np.linspace(0, len(labels) - 1, SHOWN).astype(int)).tolist()]
        if facts.labels is not None:
            assert {label.shape for label in shown} == {facts.labels}
        if facts.classes:
            assert set(np.unique(np.concatenate([label.ravel() for label in shown])).tolist()) <= facts.classes
        if facts.spacing_ms and len(times) > 1:
            spacing = float(np.median(np.diff(times))) / 1000
            assert min(abs(spacing - each) for each in facts.spacing_ms) < 2
        if files.name == "outdoor_night1":
            assert len(labels) == DEPTHS_OF_NIGHT1


@pytest.mark.parametrize("task", ARCHIVES)
def test_a_quick_check_finds_nothing_wrong(task, capsys):
    assert main(["data", "check", task, str(archive(task).root), "--quick", "--set", "rule=rvt"]) == 0, (
        capsys.readouterr()
    )

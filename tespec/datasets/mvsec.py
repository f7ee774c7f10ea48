"""MVSEC: events and depth maps, read from the official HDF5 files without conversion."""

import numpy as np

from tespec.core.errors import UserError
from tespec.datasets.base import LabelledDataset, RecordingFiles
from tespec.datasets.labels import DEPTH, DepthMaps, label_spacing
from tespec.datasets.recording import LabelledRecording
from tespec.datasets.sources import EventSource
from tespec.datasets.splits import search_folders
from tespec.events.histogram import Region
from tespec.events.readers.columns import MVSEC
from tespec.events.readers.hdf5 import COPY_AGAIN, dataset, translate_errors
from tespec.registry import DATASETS

DATA = "_data.hdf5"
TRUTH = "_gt.hdf5"
DEPTH_MAPS = "davis/left/depth_image_raw"
LATEST = 1e11  # s, the year 5138; in us it is exact in 64 bits


@DATASETS.register_module()
class Mvsec(LabelledDataset):
    """MVSEC: events of 346x260 px, depth at 20 Hz.

    Get it: https://daniilidis-group.github.io/mvsec/download/ (no registration), HDF5 files,
    "outdoor_day" and "outdoor_night". Licence: see this page. Size: not measured by us; `check`
    prints that of files and packed events.

    Layout:
        mvsec/outdoor_day2_data.hdf5     mvsec/outdoor_day2_gt.hdf5
        the same for outdoor_day1, outdoor_night1, outdoor_night2, outdoor_night3

    Also read: the same files in subfolders, such as outdoor_day/ and outdoor_night/ of the download
    page. They are read without conversion.

    Labels have the times of the depth maps; images, which differ in number, are not used. The
    ground truth is depth_image_raw, since depth_image_rect is at rectified pixels and the events
    are not. The events of a map are those since the previous map. Maps less than one label spacing
    after the first event, or more than one after the last, are left out and counted. Maps without
    any depth remain labels.

    Args: those of `LabelledDataset`; there are no options in `protocol`.

    Example:
        >>> from tespec.sample import make_world
        >>> root = make_world("tiny", datasets=["mvsec"]) / "mvsec"  # or the folder of the archive
        >>> data = Mvsec(root, "train", window_ms=50)
        >>> histogram, depth, name, time = data[0]
        >>> histogram.shape, depth.shape, name
        ((20, 64, 80), (64, 80), 'outdoor_day2')
    """

    title = "MVSEC"
    label_kind = DEPTH
    sensor = MVSEC.sensor
    test_windows = 23_480  # 20 depth maps per s of 262, 262, 374 and 276 s (Zhu et al. 2018)
    # As in the paper. HMNet has no validation split (experiments/depth/config/hmnet_B3.py); e2depth
    # and RAMNet validate on a time segment of outdoor_day2, in separate folders
    # (uzh-rpg/rpg_ramnet, RAM_Net/configs/*_mvsec.json).
    splits = {  # noqa: RUF012  # instances set their own
        "train": ["outdoor_day2"],
        "test": ["outdoor_day1", "outdoor_night1", "outdoor_night2", "outdoor_night3"],
    }
    layout = "official hdf5 files, one of events and one of ground truth for each sequence"

    def find(self, split: str, name: str) -> RecordingFiles:
        data = self.locate([path / f"{name}{DATA}" for path in search_folders(self.root)], split)
        truth = data.with_name(f"{name}{TRUTH}")
        if not truth.is_file():
            raise UserError(truth, "no such file", "copy the ground truth next to the events")
        return RecordingFiles(name, split, EventSource(data, self.user_sensor), (truth,))

    def open(self, files: RecordingFiles) -> LabelledRecording:
        facts = files.source.facts
        truth = files.label_files[0]
        name = f"{DEPTH_MAPS}_ts"
        count = len(dataset(truth, DEPTH_MAPS, "f", 3))
        with translate_errors(truth, name):
            seconds = dataset(truth, name, "f")[()].astype(np.float64)  # since 1970
        if not len(seconds) or not (np.abs(seconds) < LATEST).all():
            raise UserError(truth, f"{name} is empty or has invalid times", COPY_AGAIN)
        # float64 resolves 0.24 us, so this is exact
        times = np.rint(seconds * 1e6).astype(np.int64)
        if len(times) != count:
            raise UserError(
                truth, f"{DEPTH_MAPS} has {count} maps, but {len(times)} times", COPY_AGAIN
            )
        begins = times - label_spacing(times)
        maps = np.flatnonzero((begins >= facts.t_first) & (begins <= facts.t_last))
        if not len(maps):
            raise UserError(
                truth,
                f"its depth is at {times[0]} to {times[-1]} us, "
                f"the events at {facts.t_first} to {facts.t_last}",
                "copy events and ground truth again",
            )
        return self.labelled_recording(
            files,
            Region(facts.height, facts.width),
            DepthMaps(truth, DEPTH_MAPS, tuple(maps.tolist())),
            times[maps],
            begin=int(begins[maps[0]]),
            left_out=count - len(maps),
        )

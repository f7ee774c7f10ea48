"""DDD17 with segmentation masks, in the layout of the archive that uzh-rpg/ess offers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tespec.datasets.masks import MaskFiles, mask_names
from tespec.datasets.recording import LabelledRecording, windows_of_length, windows_since_last
from tespec.errors import UserError
from tespec.events.readers.ddd17 import SENSOR, image_index, open_ddd17
from tespec.events.spatial import Region
from tespec.registry import DATASETS

LABEL_ROWS = 200  # px; the 60 rows below show the car's bonnet
MASK_PLACES = ("segmentation_masks.zip", "segmentation_masks")
SPEED = "ego_speed.npy"
START_MS = 100  # labels before this time of a recording have too few events before them


def facts_of(root: Path) -> dict[str, Any]:
    """What `dataset.json` in `root` says; {} where there is none, as in the official archive."""
    path = root / "dataset.json"
    if not path.is_file():
        return {}
    try:
        facts = json.loads(path.read_text())
        return dict(facts)
    except (json.JSONDecodeError, UnicodeDecodeError, TypeError, ValueError) as error:
        raise UserError(path, "not readable", "remove it or copy it again") from error


@DATASETS.register_module()
class Ddd17:
    """Recordings of one split, each window ending at a mask.

    Image j belongs to the mask numbered j + 1. Window i holds all events since the mask before (so that events add up
    where masks are missing), or the last `window_ms` before mask i.

    Args:
        root: folder of the archive; a `dataset.json` in it names other sizes and splits than the official ones.
        split: "train" or "test".
        splits: recording folders of each split, by name.
        classes: names of the classes.
        window_ms: length of the windows in ms; None for all events since the mask before.

    Attributes:
        recordings: those of the split, in the order of `splits`.

    Raises:
        UserError: the root, a recording of the split, or a part of one is missing or does not fit.
    """

    def __init__(
        self,
        root: Path,
        split: str,
        splits: Mapping[str, Sequence[str]],
        classes: Sequence[str],
        window_ms: float | None = None,
    ) -> None:
        if not root.is_dir():
            raise UserError(root, "no such folder", "give the folder of the DDD17 archive (its dir* folders)")
        facts = facts_of(root)
        sensor = facts.get("sensor", {"height": SENSOR[0], "width": SENSOR[1]})
        self._region = Region(int(facts.get("label_rows", LABEL_ROWS)), int(sensor["width"]))
        self._classes = len(classes)
        self._window_ms = window_ms
        names = facts.get("splits", splits)[split]
        for name in names:
            if not (root / name).is_dir():
                raise UserError(root / name, f"recording of the {split} split is missing", "copy it into the archive")
        self.recordings = [self._open(root / name) for name in names]

    @property
    def size(self) -> tuple[int, int]:
        """(H, W) of histograms and masks in px."""
        return self._region.height, self._region.width

    def _open(self, folder: Path) -> LabelledRecording:
        stream = open_ddd17(folder)
        image_times, _ = image_index(folder)
        place = next((folder / name for name in MASK_PLACES if (folder / name).exists()), None)
        if place is None:
            raise UserError(folder, f"has neither {' nor '.join(MASK_PLACES)}", "copy the recording again")
        masks = mask_names(place)
        images = np.array(list(masks), np.int64) - 1
        if images[-1] >= len(image_times):
            raise UserError(
                place, f"mask {images[-1] + 1} has no image among {len(image_times)}", "copy the folder again"
            )
        times = image_times[images]
        used = times >= stream.t_first + START_MS * 1000
        if not used.any():
            raise UserError(place, "no mask lies within the recording's events", "copy the folder again")
        first = int(np.flatnonzero(used)[0])
        names = tuple(list(masks.values())[first:])
        times, images = times[first:], images[first:]
        speed = _speed(folder, len(image_times))
        return LabelledRecording(
            name=folder.name,
            path=folder,
            region=self._region,
            windows=self._windows(times, int(image_times[max(images[0] - 1, 0)])),
            labels=MaskFiles(place, names, self._region.height, self._region.width, self._classes),
            ego_speed=None if speed is None else speed[images],
        )

    def _windows(self, times: NDArray[np.int64], before: int) -> NDArray[np.int64]:
        if self._window_ms is None:
            return windows_since_last(times, before)
        return windows_of_length(times, round(self._window_ms * 1000))


def _speed(folder: Path, images: int) -> NDArray[np.float32] | None:
    path = folder / SPEED
    if not path.is_file():
        return None
    try:
        speed = np.load(path, allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise UserError(path, "not readable", "remove it or copy it again") from error
    if speed.shape != (images,):
        raise UserError(path, f"has shape {speed.shape} for {images} images", "remove it or copy it again")
    return np.asarray(speed, np.float32)

"""DDD17 with segmentation masks, in the layout of the archive that uzh-rpg/ess offers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tespec.datasets.description import read_description
from tespec.datasets.masks import MaskFiles, mask_names
from tespec.datasets.recording import LabelledRecording
from tespec.datasets.windows import Windows, windows_of_length, windows_since_last
from tespec.errors import UserError
from tespec.events.readers.ddd17 import EVENTS, image_index, open_ddd17
from tespec.events.spatial import Region
from tespec.registry import DATASETS

LABEL_ROWS = 200  # px; the 60 rows below show the car's bonnet
MASK_PLACES = ("segmentation_masks.zip", "segmentation_masks")
SPEED = "ego_speed.npy"


@DATASETS.register_module()
class Ddd17:
    """Recordings of one split, each window ending at a mask.

    The mask numbered n belongs to image n - 1 and has its time. Window i holds all events since the mask before (so
    that events add up where masks are missing), that of the first mask those since the image before; or each holds the
    last `window_ms` before its mask. Every mask is used.

    Args:
        root: folder of the archive, or the one above that holds it as `data`; a `dataset.json` in it names other label
            rows and splits than the official ones.
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
        if not any(root.glob("dir*")) and (root / "data").is_dir():
            root = root / "data"
        description = read_description(root)
        names = (description.splits or splits).get(split, ())
        if not names:
            raise UserError(root, f"no recordings are named for split {split}", "name them in the settings' splits")
        for name in names:
            if not (root / name).is_dir():
                raise UserError(root / name, f"recording of the {split} split is missing", "copy it into the archive")
        if description.classes not in (None, tuple(classes)):
            said = ", ".join(description.classes or ())
            raise UserError(root, f"its classes are {said}, not {', '.join(classes)}", "name the same in the settings")
        self._label_rows = description.label_rows or LABEL_ROWS
        self._classes = tuple(classes)
        self._window_ms = window_ms
        self.recordings = [self._open(root / name) for name in names]

    def _open(self, folder: Path) -> LabelledRecording:
        stream = open_ddd17(folder)
        if self._label_rows > stream.height:
            what = f"has {stream.height} rows, of which {self._label_rows} cannot carry labels"
            raise UserError(folder, what, "name the sensor's size in dataset.json")
        image_times, event_index = image_index(folder)
        place = next((folder / name for name in MASK_PLACES if (folder / name).exists()), None)
        if place is None:
            raise UserError(folder, f"has neither {' nor '.join(MASK_PLACES)}", "copy the recording again")
        masks = mask_names(place)
        images = np.array(list(masks), np.int64) - 1
        outside = images[(images < 0) | (images >= len(image_times))] + 1
        if len(outside):
            what = f"mask {outside[0]} has no image among {len(image_times)}"
            raise UserError(place, what, "copy the folder again")
        times = image_times[images]
        start = image_times[images[0] - 1] if images[0] else min(stream.t_first, times[0] - 1)
        if (np.diff(times, prepend=start) <= 0).any():
            raise UserError(folder / "index", "the images' times step back or repeat", "copy the folder again")
        if times[-1] < stream.t_first or times[0] > stream.t_last:
            raise UserError(place, "no mask lies within the recording's events", "copy the folder again")
        needed = int(event_index[images].max())
        if needed > stream.count:
            what = f"truncated: {stream.count} events, the masks need {needed}"
            raise UserError(folder / EVENTS, what, "copy the events' files again")
        region = Region(self._label_rows, stream.width)
        speed = _speed(folder, len(image_times))
        return LabelledRecording(
            name=folder.name,
            path=folder,
            region=region,
            windows=self._windows(times, int(start)),
            labels=MaskFiles(place, tuple(masks.values()), region.height, region.width, len(self._classes)),
            ego_speed=None if speed is None else speed[images],
        )

    def _windows(self, times: NDArray[np.int64], start: int) -> Windows:
        if self._window_ms is None:
            return windows_since_last(times, start)
        return windows_of_length(times, round(self._window_ms * 1000))


def _speed(folder: Path, images: int) -> NDArray[np.float32] | None:
    path = folder / SPEED
    if not path.is_file():
        return None
    try:
        speed = np.load(path, allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise UserError(path, "not readable", "remove it or copy it again") from error
    if speed.shape != (images,) or speed.dtype.kind != "f":
        what = f"holds {speed.dtype} of shape {speed.shape} for {images} images"
        raise UserError(path, what, "remove it or copy it again")
    return np.asarray(speed, np.float32)

"""DDD17 with segmentation masks, in the layout of the archive that uzh-rpg/ess offers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pydantic
from numpy.typing import NDArray

from tespec.core.errors import UserError
from tespec.core.registry import DATASETS
from tespec.core.settings import Count
from tespec.datasets.base import LEVELS, LabelledDataset, RecordingFiles
from tespec.datasets.labels import MaskFiles, mask_names
from tespec.datasets.recording import LabelledRecording
from tespec.datasets.sources import STORE, EventSource
from tespec.events.readers.arrays import load_array
from tespec.events.readers.ddd17 import EVENTS, IMAGES, INDEX, TIMES, image_index
from tespec.events.spatial import Region
from tespec.events.store import HEADER

MASK_PLACES = ("segmentation_masks.zip", "segmentation_masks")
SPEED = "ego_speed.npy"
PARTS = (TIMES, f"events{STORE}", HEADER, "index", "imgs", *MASK_PLACES)  # of a recording, packed or not


@pydantic.dataclasses.dataclass(frozen=True)
class Ddd17Protocol:
    """What is scored: the upper `rows` of the sensor, below which the car's bonnet shows."""

    rows: Count


@DATASETS.register_module()
class Ddd17(LabelledDataset):
    """DDD17; see `LabelledDataset`.

    The mask numbered n belongs to image n - 1 and has its time. Events add up where masks are missing; the events of
    the first mask are those since the image before it. Every mask is used.
    """

    title = "DDD17"
    layout = "archive of the ESS authors (uzh-rpg/ess), a folder for each recording"
    protocol_type = Ddd17Protocol
    not_downsampled = "masks are"
    protocol: Ddd17Protocol

    def __init__(self, root: Path, *arguments: Any, **named: Any) -> None:
        if not any(root.glob("dir*")) and (root / "data").is_dir():
            root = root / "data"
        super().__init__(root, *arguments, **named)

    def find(self, split: str, name: str) -> RecordingFiles:
        """What one recording consists of."""
        folder = self.root / name
        if not folder.is_dir():
            raise UserError(folder, f"recording of the {split} split is missing", "copy it into the archive")
        beside = tuple(folder / part for part in (INDEX, *MASK_PLACES, IMAGES, SPEED) if (folder / part).exists())
        return RecordingFiles(name, split, EventSource(folder, self.given_sensor), beside)

    def open(self, files: RecordingFiles) -> LabelledRecording:
        """One recording with its masks."""
        folder, stream, rows = files.source.path, files.source.stream, self.protocol.rows
        if rows > stream.height:
            what = f"has {stream.height} rows, of which {rows} cannot carry labels"
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
        windows, labelled = self.rule.apply(times, int(start))
        speed = _speed(folder, len(image_times))
        return LabelledRecording(
            name=files.name,
            source=files.source,
            region=Region(rows, stream.width),
            windows=windows,
            labels=MaskFiles(place, tuple(masks.values()), rows, stream.width, len(self.classes)),
            labelled=labelled,
            ego_speed=None if speed is None else speed[images],
        )

    @classmethod
    def is_called(cls, path: Path, name: str) -> bool:
        """Whether a file or folder belongs to the recording `name`; other folders that are named so do not count."""
        if name not in path.parts[-LEVELS:]:
            return False
        folders = [folder for folder in (path, *path.parents)[:LEVELS] if folder.name == name]
        return any(not folder.exists() or any((folder / part).exists() for part in PARTS) for folder in folders)

    def describe(self) -> dict[str, str]:
        """The protocol in words."""
        return super().describe() | {"labels": f"every mask, {self.protocol.rows} rows"}


def _speed(folder: Path, images: int) -> NDArray[np.float32] | None:
    path = folder / SPEED
    if not path.is_file():
        return None
    speed = load_array(path)
    if speed.shape != (images,) or speed.dtype.kind != "f":
        what = f"holds {speed.dtype} of shape {speed.shape} for {images} images"
        raise UserError(path, what, "remove it or copy it again")
    return np.asarray(speed, np.float32)

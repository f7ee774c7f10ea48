"""DDD17 with segmentation masks, in the layout of the archive that uzh-rpg/ess offers."""

from pathlib import Path

import numpy as np
import pydantic

from tespec.core.description import LEVELS_ABOVE
from tespec.core.errors import UserError
from tespec.core.settings import PositiveInt
from tespec.datasets.base import LabelledDataset, RecordingFiles
from tespec.datasets.labels import MASK, MaskFiles, ego_speed_at, mask_names
from tespec.datasets.recording import LabelledRecording
from tespec.datasets.sources import EventSource
from tespec.datasets.splits import search_folders
from tespec.events.histogram import Region
from tespec.events.readers.ddd17 import (
    EVENTS,
    INDEX,
    INDICES,
    SENSOR,
    TIMES,
    read_image_times,
)
from tespec.events.store import HEADER, STORE
from tespec.registry import DATASETS

IMAGES = "imgs"  # folder of images, if the archive has them
MASK_PATHS = ("segmentation_masks.zip", "segmentation_masks")
SPEED = "ego_speed.npy"
# of a recording, packed or not
PARTS = (TIMES, f"events{STORE}", HEADER, INDEX, IMAGES, *MASK_PATHS)


@pydantic.dataclasses.dataclass(frozen=True)
class Ddd17Protocol:
    """Scored part of the image: the upper `rows` of the sensor, above the car's bonnet."""

    rows: PositiveInt


@DATASETS.register_module()
class Ddd17(LabelledDataset):
    """DDD17 with EV-SegNet's labels: events of 346x260 px, masks of 6 classes.

    Get it: https://github.com/Shathe/Ev-SegNet (labels and events in the format of ESS; if the
    links are dead, ask the authors of https://github.com/uzh-rpg/ess). The recordings are from
    DDD17 (Binas et al. 2017), the labels from EV-SegNet (Alonso and Murillo 2019). Licence: see
    these pages. Size: not measured by us; `check` prints the size of the files and of packed
    events.

    Layout:
        ddd17/dir0/events.dat.t   ddd17/dir0/events.dat.xyp   ddd17/dir0/index/index_*.npy
        ddd17/dir0/segmentation_masks.zip (or the folder inside it)
        the same for dir1 dir3 dir4 dir6 dir7; dir5 has a single mask and is not used

    Also read: recordings in a subfolder data/, or in subfolders train/ and test/.

    Mask n belongs to image n - 1 and has its time. Events accumulate over missing masks; those of
    the first mask start at the previous image. Every mask is used. 200 of the 260 rows carry
    labels; the car's bonnet is below them.

    Args:
        protocol: `rows`, see `Ddd17Protocol`; other arguments are those of `LabelledDataset`.

    Example:
        >>> from tespec.sample import make_world
        >>> root = make_world("tiny", datasets=["ddd17"]) / "ddd17"  # or the folder of the archive
        >>> data = Ddd17(root, "train", window_ms=None)
        >>> histogram, mask, name, time = data[0]
        >>> histogram.shape, mask.shape, name
        ((20, 64, 96), (64, 96), 'dir0')
    """

    title = "DDD17"
    label_kind = MASK
    sensor = SENSOR
    test_windows = 3_890  # EV-SegNet, Alonso and Murillo 2019: images of the test sequence
    # Papers report on dir1, the test sequence of EV-SegNet. No validation split exists: uzh-rpg/ess
    # calls dir1 "valid", and dir5, which has a single mask, "test"
    # (datasets/ddd17_events_loader.py).
    splits = {  # noqa: RUF012  # instances set their own
        "train": ["dir0", "dir3", "dir4", "dir6", "dir7"],
        "test": ["dir1"],
    }
    layout = "archive of the ESS authors (uzh-rpg/ess), a folder for each recording"
    protocol_type = Ddd17Protocol
    protocol: Ddd17Protocol

    def find(self, split: str, name: str) -> RecordingFiles:
        # Some loaders read <root>/train/dir0 and <root>/test/dir1; the names decide on the split,
        # not the folders.
        folder = self.locate([folder / name for folder in search_folders(self.root)], split)
        parts = [folder / part for part in (*MASK_PATHS, IMAGES, SPEED)]
        indices = [folder / INDEX / index for index in INDICES]
        parts += [path for path in indices if path.is_file()][:1]  # the one that is read
        label_files = tuple(path for path in parts if path.exists())
        return RecordingFiles(name, split, EventSource(folder, self.user_sensor), label_files)

    def open(self, files: RecordingFiles) -> LabelledRecording:
        folder = files.source.path
        facts = files.source.facts
        image_times, next_events, _ = read_image_times(folder)
        archive, extracted = (folder / name for name in MASK_PATHS)
        mask_path = extracted if extracted.exists() and not archive.exists() else archive
        masks = mask_names(mask_path)
        images = np.array(list(masks), np.int64) - 1
        outside = images[(images < 0) | (images >= len(image_times))] + 1
        if len(outside):
            raise UserError(
                mask_path,
                f"mask {outside[0]} matches none of {len(image_times)} images",
                "copy the folder again",
            )
        times = image_times[images]
        begin = image_times[images[0] - 1] if images[0] else min(facts.t_first, times[0] - 1)
        count = facts.count + facts.dropped
        needed = int(next_events[images].max())
        if needed > count:
            raise UserError(
                folder / EVENTS,
                f"truncated: {count} events, but the masks need {needed}",
                "copy the event files again",
            )
        return self.labelled_recording(
            files,
            Region(self.protocol.rows, facts.width),
            MaskFiles(mask_path, tuple(masks.values())),
            times,
            begin=int(begin),
            ego_speed=ego_speed_at(folder / SPEED, times, image_times),
        )

    @classmethod
    def is_called(cls, path: Path, name: str) -> bool:
        """Whether a file or folder belongs to a recording; see `LabelledDataset.is_called`.

        Unrelated folders of this name, which hold no part of a recording, do not count.
        """
        folders = [folder for folder in (path, *path.parents)[:LEVELS_ABOVE] if folder.name == name]
        return any(
            not folder.exists() or any((folder / part).exists() for part in PARTS)
            for folder in folders
        )

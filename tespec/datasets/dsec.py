"""DSEC-Semantic: events, rectification maps and masks, in all layouts of its labels."""

from pathlib import Path
from typing import Any, Literal

import pydantic

from tespec.core.errors import UserError
from tespec.core.settings import Flag, PositiveInt
from tespec.datasets.base import TRAIN, LabelledDataset, RecordingFiles
from tespec.datasets.labels import MASK, MaskFiles, label_spacing, mask_names, read_label_times
from tespec.datasets.recording import LabelledRecording
from tespec.datasets.sources import EventSource, unique_path
from tespec.datasets.splits import search_folders
from tespec.events.histogram import Region
from tespec.events.readers.columns import DSEC
from tespec.registry import DATASETS

# In a sequence's folder; {classes} is 11 or 19, {name} the sequence.
EVENTS = (
    "events/left/events.h5",  # train_events.zip, test_events.zip
    # {name}_events_left.zip, as unpacked by uzh-rpg/E-RAFT (download_dsec_test.py)
    "events_left/events.h5",
)
RECTIFY = "rectify_map.h5"  # next to the events
MASKS = (
    "semantic/left/{classes}classes/data",  # README of uzh-rpg/ess
    "semantic/left/{classes}classes",  # README of uzh-rpg/DSEC
    "semantic/{classes}classes/data",  # code of uzh-rpg/ess (DSEC/dataset/sequence.py)
    "semantic/{classes}classes",
    # train_semantic_segmentation.zip; Yan98/Event-Camera-Data-Dense-Pre-training
    # (data/DESC_dataset.py)
    "{classes}classes",
)
TIMES = (  # of the masks
    "semantic/timestamps.txt",  # README of uzh-rpg/DSEC
    "semantic/semantic_timestamps.txt",
    "semantic/left/{name}_semantic_timestamps.txt",
    "semantic/{name}_semantic_timestamps.txt",
    "{name}_semantic_timestamps.txt",  # train_semantic_segmentation.zip
)
LABEL_SETS = {"all": slice(None), "ess": slice(6, None, 2)}


@pydantic.dataclasses.dataclass(frozen=True)
class DsecProtocol:
    """Labels to use, and alignment of events with them."""

    rows: PositiveInt  # upper rows of the sensor that carry labels
    # "ess": every second label from the seventh on, as in uzh-rpg/ess and ECDDP
    labels: Literal["all", "ess"]
    rectify: Flag  # whether events are moved to rectified pixels, where the labels are


@DATASETS.register_module()
class Dsec(LabelledDataset):
    """DSEC-Semantic: events of 640x480 px, masks of 11 or 19 classes at 20 Hz.

    Get it: https://dsec.ifi.uzh.ch/dsec-datasets/download/ (no registration), labels at
    https://dsec.ifi.uzh.ch/dsec-semantic/. Licence: see these pages. Size: 125 GB for the events of
    the full training set, 89 MB for the labels; 11 sequences have labels.

    Layout:
        dsec/train/zurich_city_00_a/events/left/events.h5
        dsec/train/zurich_city_00_a/events/left/rectify_map.h5
        dsec/train/zurich_city_00_a/semantic/left/11classes/*.png
        dsec/train/zurich_city_00_a/semantic/timestamps.txt
        the same for 01_a 02_a 04_a 05_a 06_a 07_a 08_a in train, 13_a 14_c 15_a in test

    Also read: the official archives unpacked side by side (train_events,
    train_semantic_segmentation, ...) or into one folder, the layout of the ESS code
    (semantic/11classes/data), times of masks named as in the label archive
    (<sequence>_semantic_timestamps.txt) next to the masks or above, events_left/events.h5, and
    sequences directly in the folder. The number of `classes` in the settings, 11 or 19, selects the
    masks.

    Events are moved to the nearest rectified pixel, where the labels are. 440 of the 480 rows carry
    labels.

    Args:
        protocol: `rows`, `labels` and `rectify`, see `DsecProtocol`; other arguments are those of
            `LabelledDataset`.

    Example:
        >>> from tespec.sample import make_world
        >>> root = make_world("tiny", datasets=["dsec"]) / "dsec"  # or the folder of the archive
        >>> data = Dsec(root, "train", window_ms=50)
        >>> histogram, mask, name, time = data[0]
        >>> histogram.shape, mask.shape, name
        ((20, 56, 80), (56, 80), 'zurich_city_00_a')
    """

    title = "DSEC"
    label_kind = MASK
    sensor = DSEC.sensor
    test_windows = 2_809  # labels of the test sequences of ESS (Sun et al. 2022)
    # As in uzh-rpg/ess (DSEC/dataset/provider.py), which has no validation split: it validates on
    # its test sequences.
    splits = {  # noqa: RUF012  # instances set their own
        "train": [
            f"zurich_city_{number}_a" for number in ("00", "01", "02", "04", "05", "06", "07", "08")
        ],
        "test": ["zurich_city_13_a", "zurich_city_14_c", "zurich_city_15_a"],
    }
    protocol_type = DsecProtocol
    protocol: DsecProtocol

    def __init__(self, root: Path | str, split: str = TRAIN, **options: Any) -> None:
        super().__init__(root, split, **options)
        self._search = search_folders(self.root)
        sequences = [name for names in self.splits.values() for name in names]
        layouts = {self._masks(folder) for name in sequences for folder in self._folders(name)}
        texts = sorted(filter(None, layouts))
        self.layout = f"masks in {' and '.join(texts)}" if texts else "no labels"

    def _folders(self, name: str) -> list[Path]:
        """Folders of a sequence: one, or those of its events and labels in separate archives."""
        return [folder / name for folder in self._search if (folder / name).is_dir()]

    def _masks(self, folder: Path) -> str | None:
        """Subfolder of a sequence's folder that holds its masks, if any."""
        layouts = (layout.format(classes=len(self.classes)) for layout in MASKS)
        return next((layout for layout in layouts if any((folder / layout).glob("*.png"))), None)

    def find(self, split: str, name: str) -> RecordingFiles:
        folders = self._folders(name) or [self.root / name]
        events = self.locate([folder / path for folder in folders for path in EVENTS], split)
        with_masks = [folder for folder in folders if self._masks(folder)]
        if not with_masks:
            raise UserError(
                folders[0],
                f"holds no masks of {len(self.classes)} classes in any known layout",
                "list 11 or 19 classes, and copy these labels of DSEC-Semantic next to the events",
            )
        labels = unique_path(with_masks)
        self.refuse_description(labels.parent)
        times = [labels / path.format(name=name) for path in TIMES]
        stamps = next((path for path in times if path.is_file()), times[-1])
        rectify = events.with_name(RECTIFY) if self.protocol.rectify else None
        source = EventSource(events, self.user_sensor, rectify)
        return RecordingFiles(name, split, source, (labels / str(self._masks(labels)), stamps))

    def open(self, files: RecordingFiles) -> LabelledRecording:
        masks, stamps = files.label_files
        names = tuple(mask_names(masks).values())
        times = read_label_times(stamps)
        if len(times) != len(names):
            raise UserError(
                stamps,
                f"holds {len(times)} times for {len(names)} masks in {masks.name}",
                "copy masks and times again",
            )
        selected = LABEL_SETS[self.protocol.labels]
        spacing = (selected.step or 1) * label_spacing(times)
        times = times[selected]
        if not len(times):
            raise UserError(
                stamps, f"protocol.labels={self.protocol.labels} leaves no label", "set it to all"
            )
        return self.labelled_recording(
            files,
            Region(self.protocol.rows, files.source.facts.width),
            MaskFiles(masks, names[selected]),
            times,
            begin=int(times[0]) - spacing,
            left_out=len(names) - len(times),
        )

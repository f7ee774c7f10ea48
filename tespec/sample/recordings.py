"""What a world of a given size holds: its recordings, their sensors, splits, names and streets."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tespec.core.errors import UserError

VERSION = 7


class Sensor(NamedTuple):
    """Height and width in pixels and the rows that carry labels."""

    height: int
    width: int
    label_rows: int


class Content(NamedTuple):
    """What a world holds in the layout of one data set.

    Attributes:
        sensor: of all its recordings.
        splits: number of recordings of each, and the seconds that each lasts; recordings are numbered through.
        first_street: number of the street of its first recording, within the world's.
        val_street: number of the street of the first validation recording, where those do not follow on.
    """

    sensor: Sensor
    splits: dict[str, tuple[int, float]]
    first_street: int
    val_street: int | None = None


# Numbers of streets decide events: those of a data set stay what they are when another one grows.
CONTENTS: dict[str, dict[str, Content]] = {
    "tiny": {
        "ddd17": Content(Sensor(80, 96, 64), {"train": (2, 2.0), "test": (1, 2.0), "val": (1, 2.0)}, 0, 700),
        "1mpx": Content(Sensor(64, 96, 64), {"train": (1, 2.0), "val": (1, 2.0), "test": (1, 2.0)}, 3),
        "gen1": Content(Sensor(64, 80, 64), {"train": (2, 2.0), "val": (1, 2.0), "test": (1, 2.0)}, 100),
        "dsec": Content(Sensor(64, 80, 56), {"train": (2, 2.0), "test": (1, 2.0), "val": (1, 2.0)}, 200, 720),
        "mvsec": Content(Sensor(64, 80, 64), {"train": (1, 2.0), "test": (2, 2.0), "val": (1, 2.0)}, 300, 740),
        "objects": Content(Sensor(64, 96, 64), {"train": (2, 2.0), "val": (1, 2.0)}, 400),
    },
    "demo": {
        "ddd17": Content(Sensor(100, 128, 80), {"train": (7, 2.5), "test": (4, 2.5), "val": (1, 2.5)}, 800),
        "1mpx": Content(Sensor(80, 128, 80), {"train": (6, 2.5), "val": (1, 2.5), "test": (1, 2.5)}, 820),
    },
    "small": {
        "ddd17": Content(Sensor(120, 160, 96), {"train": (16, 5.0), "test": (6, 6.0), "val": (3, 6.0)}, 0, 700),
        "1mpx": Content(Sensor(96, 160, 96), {"train": (14, 8.0), "val": (2, 8.0), "test": (4, 8.0)}, 50),
        "gen1": Content(Sensor(96, 128, 96), {"train": (32, 8.0), "val": (6, 8.0), "test": (8, 8.0)}, 100),
        "dsec": Content(Sensor(96, 128, 88), {"train": (8, 8.0), "test": (3, 8.0), "val": (3, 8.0)}, 200, 720),
        "mvsec": Content(Sensor(96, 128, 96), {"train": (1, 60.0), "test": (4, 8.0), "val": (2, 8.0)}, 300, 740),
        "objects": Content(Sensor(180, 240, 180), {"train": (12, 8.0), "val": (2, 8.0)}, 400),
    },
    # The sensors' true sizes, as far as a GPU's comparison needs them.
    "medium": {
        "ddd17": Content(Sensor(260, 346, 200), {"train": (16, 12.0), "test": (6, 12.0), "val": (3, 12.0)}, 500, 700),
        "1mpx": Content(Sensor(260, 346, 260), {"train": (24, 12.0), "test": (6, 12.0), "val": (3, 12.0)}, 530, 760),
        "gen1": Content(Sensor(240, 304, 240), {"train": (16, 12.0), "test": (6, 12.0), "val": (3, 12.0)}, 570, 780),
        "dsec": Content(Sensor(480, 640, 440), {"train": (8, 12.0), "test": (3, 12.0), "val": (3, 12.0)}, 600, 720),
        "mvsec": Content(Sensor(260, 346, 260), {"train": (1, 60.0), "test": (4, 12.0), "val": (2, 12.0)}, 620, 740),
        "objects": Content(Sensor(260, 346, 260), {"train": (24, 12.0), "val": (2, 12.0)}, 640),
    },
}
DATASETS = tuple(CONTENTS["small"])
NIGHT_EVERY = 4  # every fourth recording of a split is a night
STREETS_PER_WORLD = 1000  # seeds set aside for the streets of one world; those below 3000 belong to none

DSEC_NAMES = {
    "train": tuple(f"zurich_city_{number}_a" for number in ("00", "01", "02", "04", "05", "06", "07", "08")),
    "test": ("zurich_city_13_a", "zurich_city_14_c", "zurich_city_15_a"),
    "val": ("zurich_city_09_a", "zurich_city_10_a", "zurich_city_11_a"),
}
MVSEC_NAMES = {
    "train": ("outdoor_day2",),
    "test": ("outdoor_day1", "outdoor_night1", "outdoor_night2", "outdoor_night3"),
    "val": ("outdoor_day3", "outdoor_night4"),
}
# Number within the data set, split, and number within the split to a name like those of the official recordings.
NAMES: dict[str, Callable[[int, str, int], str]] = {
    "ddd17": lambda number, split, index: f"dir{number}",
    "1mpx": lambda number, split, index: f"moorea_2019-02-19_{number:03d}_td_500000_8500000",
    "gen1": lambda number, split, index: f"17-04-13_15-05-{10 + number}_500000_8500000",
    "dsec": lambda number, split, index: DSEC_NAMES[split][index],
    "mvsec": lambda number, split, index: MVSEC_NAMES[split][index],
    "objects": lambda number, split, index: f"street{number:02d}",
}


class Recording(NamedTuple):
    """A recording to make; `seed` is the street's, no two recordings of a world share it."""

    dataset: str
    split: str
    name: str
    sensor: Sensor
    seconds: float
    seed: int
    night: bool


def content_of(size: str, dataset: str) -> Content:
    """What a world of a size holds in the layout of one data set.

    Raises:
        UserError: there is no such size or data set.
    """
    if size not in CONTENTS:
        raise UserError(f"sample world '{size}'", "no such size", f"choose one of {', '.join(CONTENTS)}")
    if dataset not in CONTENTS[size]:
        raise UserError(
            f"sample world of size {size}, dataset '{dataset}'",
            "no such dataset",
            f"choose from {', '.join(CONTENTS[size])}",
        )
    return CONTENTS[size][dataset]


def recordings_of(size: str, seed: int, dataset: str) -> list[Recording]:
    """All recordings of one data set of a world, in a fixed order."""
    content = content_of(size, dataset)
    found: list[Recording] = []
    for split, (count, seconds) in content.splits.items():
        for index in range(count):
            name = NAMES[dataset](len(found), split, index)
            night = "night" in name or (dataset != "mvsec" and index % NIGHT_EVERY == NIGHT_EVERY - 2)
            street = content.first_street + len(found)
            if split == "val" and content.val_street is not None:
                street = content.val_street + index
            street += STREETS_PER_WORLD * (seed + 3)
            found.append(Recording(dataset, split, name, content.sensor, seconds, street, night))
    return found

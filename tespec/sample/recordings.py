"""What a sample world of a given size holds: its recordings, their sensors, splits, names and streets."""

from __future__ import annotations

from typing import NamedTuple

from tespec.core.errors import UserError

VERSION = 9


class Sensor(NamedTuple):
    """Height and width in pixels and the rows that carry labels."""

    height: int
    width: int
    label_rows: int


TRUE_SIZE = {"train": (16, 12.0), "test": (6, 12.0), "val": (3, 12.0)}
# Of each size and data set: the sensor of all recordings, and for each split their number and the seconds of each.
CONTENTS: dict[str, dict[str, tuple[Sensor, dict[str, tuple[int, float]]]]] = {
    "tiny": {
        "ddd17": (Sensor(80, 96, 64), {"train": (2, 2.0), "test": (1, 2.0), "val": (1, 2.0)}),
        "1mpx": (Sensor(64, 96, 64), {"train": (1, 2.0), "val": (1, 2.0), "test": (1, 2.0)}),
        "gen1": (Sensor(64, 80, 64), {"train": (2, 2.0), "val": (1, 2.0), "test": (1, 2.0)}),
        "dsec": (Sensor(64, 80, 56), {"train": (2, 2.0), "test": (1, 2.0), "val": (1, 2.0)}),
        "mvsec": (Sensor(64, 80, 64), {"train": (1, 2.0), "test": (2, 2.0), "val": (1, 2.0)}),
        "objects": (Sensor(64, 96, 64), {"train": (2, 2.0), "val": (1, 2.0)}),
    },
    "demo": {
        "ddd17": (Sensor(100, 128, 80), {"train": (11, 2.0), "test": (5, 2.0), "val": (1, 2.0)}),
        "1mpx": (Sensor(80, 128, 80), {"train": (6, 2.5), "val": (1, 2.5), "test": (1, 2.5)}),
    },
    "small": {
        "ddd17": (Sensor(120, 160, 96), {"train": (24, 3.5), "test": (10, 4.0), "val": (4, 4.0)}),
        "1mpx": (Sensor(96, 160, 96), {"train": (14, 8.0), "val": (2, 8.0), "test": (4, 8.0)}),
        "gen1": (Sensor(96, 128, 96), {"train": (32, 8.0), "val": (6, 8.0), "test": (8, 8.0)}),
        "dsec": (Sensor(96, 128, 88), {"train": (8, 8.0), "val": (3, 8.0), "test": (3, 8.0)}),
        "mvsec": (Sensor(96, 128, 96), {"train": (1, 60.0), "val": (2, 8.0), "test": (4, 8.0)}),
        "objects": (Sensor(180, 240, 180), {"train": (12, 8.0), "val": (2, 8.0)}),
    },
    # The sensors' true sizes, as far as a GPU's comparison needs them.
    "medium": {
        "ddd17": (Sensor(260, 346, 200), TRUE_SIZE),
        "1mpx": (Sensor(260, 346, 260), TRUE_SIZE | {"train": (24, 12.0)}),
        "gen1": (Sensor(240, 304, 240), TRUE_SIZE),
        "dsec": (Sensor(480, 640, 440), TRUE_SIZE | {"train": (8, 12.0), "test": (3, 12.0)}),
        "mvsec": (Sensor(260, 346, 260), {"train": (1, 60.0), "val": (2, 12.0), "test": (4, 12.0)}),
        "objects": (Sensor(260, 346, 260), {"train": (24, 12.0), "val": (2, 12.0)}),
    },
}
DATASETS = tuple(CONTENTS["small"])
NIGHT_EVERY = 4  # every fourth recording of a split is a night
# Numbers of streets decide events: those of a split stay what they are when another one grows. Below 3000 are none.
STREETS_PER_WORLD, STREETS_PER_DATASET = 1000, 100
FIRST_STREET = {"train": 0, "val": 60, "test": 80}

# Of recordings that are named like official ones: what these names begin with, and how they go on in each split.
OFFICIAL = {
    "dsec": (
        "zurich_city_",
        {"train": "00_a 01_a 02_a 04_a 05_a 06_a 07_a 08_a", "val": "09_a 10_a 11_a", "test": "13_a 14_c 15_a"},
    ),
    "mvsec": ("outdoor_", {"train": "day2", "val": "day3 night4", "test": "day1 night1 night2 night3"}),
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


def recordings_of(size: str, seed: int, dataset: str) -> list[Recording]:
    """All recordings of one data set of a world, in a fixed order.

    Raises:
        UserError: there is no such size or data set.
    """
    if size not in CONTENTS:
        raise UserError(f"sample world '{size}'", "no such size", f"choose one of {', '.join(CONTENTS)}")
    if dataset not in CONTENTS[size]:
        where = f"sample world of size {size}, dataset '{dataset}'"
        raise UserError(where, "no such dataset", f"choose from {', '.join(CONTENTS[size])}")
    sensor, splits = CONTENTS[size][dataset]
    first = STREETS_PER_WORLD * (seed + 3) + STREETS_PER_DATASET * DATASETS.index(dataset)
    found: list[Recording] = []
    for split, (number, seconds) in splits.items():
        for index in range(number):
            name = _name(dataset, split, index, len(found))
            night = "night" in name or (dataset != "mvsec" and index % NIGHT_EVERY == NIGHT_EVERY - 2)
            street = first + FIRST_STREET[split] + index
            found.append(Recording(dataset, split, name, sensor, seconds, street, night))
    return found


def _name(dataset: str, split: str, index: int, number: int) -> str:
    """A name like those of the official recordings; `index` counts within the split, `number` within the data set."""
    if dataset in OFFICIAL:
        beginning, endings = OFFICIAL[dataset]
        return beginning + endings[split].split()[index]
    return {
        "ddd17": f"dir{number}",
        "1mpx": f"moorea_2019-02-19_{number:03d}_td_500000_8500000",
        "gen1": f"17-04-13_15-05-{10 + number}_500000_8500000",
        "objects": f"street{number:02d}",
    }[dataset]

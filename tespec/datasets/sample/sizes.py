"""What a world of a given size holds: its recordings, their sensors, splits and seeds."""

from __future__ import annotations

from dataclasses import dataclass

from tespec.errors import UserError

VERSION = 1


@dataclass(frozen=True)
class Sensor:
    """Height and width in pixels and the rows that carry labels."""

    height: int
    width: int
    label_rows: int


@dataclass(frozen=True)
class Part:
    """Recordings of one dataset's split: how many and how many seconds each."""

    split: str
    recordings: int
    seconds: float


@dataclass(frozen=True)
class Recipe:
    """What a world of one size holds."""

    ddd17_sensor: Sensor
    ddd17: tuple[Part, ...]
    one_mpx_sensor: Sensor
    one_mpx: tuple[Part, ...]


RECIPES = {
    "tiny": Recipe(
        Sensor(80, 96, 64),
        (Part("train", 2, 2.0), Part("test", 1, 2.0)),
        Sensor(64, 96, 64),
        (Part("train", 1, 2.0), Part("val", 1, 2.0)),
    ),
    "small": Recipe(
        Sensor(120, 160, 96),
        (Part("train", 8, 8.0), Part("test", 4, 10.0)),
        Sensor(96, 160, 96),
        (Part("train", 14, 8.0), Part("val", 2, 8.0)),
    ),
}
NIGHT_EVERY = 4  # every fourth recording of a split is a night
STREETS_PER_WORLD = 1000  # seeds set aside for the streets of one world; those below 3000 belong to none


@dataclass(frozen=True)
class Plan:
    """One recording to make; `seed` is the street's, no two recordings of a world share it."""

    dataset: str
    split: str
    name: str
    sensor: Sensor
    seconds: float
    seed: int
    night: bool


def recipe(size: str) -> Recipe:
    """The recipe of a size.

    Raises:
        UserError: there is no such size.
    """
    if size not in RECIPES:
        raise UserError(f"sample world '{size}'", "no such size", f"choose one of {', '.join(RECIPES)}")
    return RECIPES[size]


def plans(size: str, seed: int) -> list[Plan]:
    """All recordings of a world, in a fixed order."""
    chosen = recipe(size)
    made: list[Plan] = []
    for dataset, sensor, parts in (
        ("ddd17", chosen.ddd17_sensor, chosen.ddd17),
        ("one_mpx", chosen.one_mpx_sensor, chosen.one_mpx),
    ):
        number = 0
        for part in parts:
            for index in range(part.recordings):
                name = f"dir{number}" if dataset == "ddd17" else f"street_{number:03d}"
                night = index % NIGHT_EVERY == NIGHT_EVERY - 2
                street = STREETS_PER_WORLD * (seed + 3) + len(made)
                made.append(Plan(dataset, part.split, name, sensor, part.seconds, street, night))
                number += 1
    return made

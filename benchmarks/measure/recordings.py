"""Many recordings: an index of them without files, and small ones on disk."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Callable
from itertools import count as numbers
from pathlib import Path

import numpy as np

from benchmarks.measure.scene import make_store
from tespec.core.settings import Downsample
from tespec.datasets.lanes import Lanes
from tespec.datasets.unlabelled import divide

SEGMENTS, LANES = 15, 8  # of the paper's pre-training
WINDOWS = 1_200  # of a recording of a minute


def play_steps(count: int) -> tuple[Callable[[], object], int]:
    """What the lanes of one step after the other play, of `count` recordings; and the bytes that a worker is sent."""
    lengths = np.random.default_rng(0).integers(WINDOWS // 2, WINDOWS, count)
    lanes = Lanes(tuple(lengths.tolist()), SEGMENTS, LANES, seed=0)
    step = numbers()

    def play() -> object:
        now = next(step)
        return [lanes.slot(lane, now) for lane in range(LANES)]

    return play, len(pickle.dumps(lanes))


def open_folder(folder: Path, count: int) -> Callable[[], object]:
    """Opens `count` recordings of a fifth of a second that are written below `folder`."""
    first = make_store(folder / "recording0.store", 5_000, 0.2, (24, 32))
    for number in range(1, count):
        shutil.copytree(first, folder / f"recording{number}.store")
    return lambda: divide(folder, 50.0, Downsample(1, "nearest"))

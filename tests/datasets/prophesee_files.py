"""Recordings as Prophesee distributes Gen1 and 1Mpx, in the official sizes, and their datasets with the official
settings."""

import numpy as np

from tespec.core.config import finetuning_settings
from tespec.events.readers.prophesee import write_dat
from tespec.sample.layouts import BOX
from tespec.tasks import import_tasks
from tespec.tasks.base import open_dataset

SIZES = {"gen1": (240, 304), "1mpx": (720, 1280)}


def boxes(*rows):
    """A structured array of (time in us, x, y, w, h, class)."""
    stored = np.zeros(len(rows), BOX)
    for place, (t, x, y, w, h, label) in enumerate(rows):
        stored[place] = (t, x, y, w, h, label, place, 1.0)
    return stored


def frames_at(times, *, label=0, size=(60, 50)):
    """One box each at `times` in us, moving to the right."""
    return boxes(*((time, 20 + place % 50, 30, *size, label) for place, time in enumerate(times)))


def write_recording(folder, name, stored, *, task="gen1", end=1_300_000, start=0, count=4000, seed=0):
    """Events over the sensor, one of them at `start` and one `end` us later, and boxes; the path of the events."""
    height, width = SIZES[task]
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    t = np.sort(rng.integers(0, end, count))
    t[0], t[-1] = 0, end
    x, y, p = (rng.integers(0, limit, count) for limit in (width, height, 2))
    write_dat(folder / f"{name}_td.dat", x, y, start + t, p, height, width)
    np.save(folder / f"{name}_bbox.npy", stored)
    return folder / f"{name}_td.dat"


def opened(root, task="gen1", *changes, arch="recurrent"):
    """The dataset with the paper's settings."""
    import_tasks()
    return open_dataset(finetuning_settings(task, arch, "paper", changes), root)

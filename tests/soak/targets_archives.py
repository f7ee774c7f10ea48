"""Archives."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
from harm import Rng, damage
from target import Target


def write_npz(folder: Path) -> Path:
    np.savez_compressed(folder / "a.npz", labels=np.zeros(500, "<i8"), first=np.arange(9))
    return folder / "a.npz"


def read_npz(path: Path) -> None:
    from tespec.events.readers.arrays import load_arrays

    load_arrays(path, ("labels", "first"))


def harm_npz(path: Path, rng: Rng) -> None:
    """Damage the bytes, or put a lying array into an archive that is whole."""
    if rng.random() < 0.5:
        damage(path, rng)
        return
    array = path.with_suffix(".npy")
    np.save(array, np.arange(50))
    for _ in range(3):
        damage(array, rng)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("labels.npy", array.read_bytes())
        archive.writestr("first.npy", array.read_bytes())
    array.unlink()


ARCHIVES: dict[str, Target] = {
    "npz": Target(write_npz, read_npz, harm_npz),
}

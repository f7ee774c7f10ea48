"""Twins: copies of the sample world's data sets in other layouts, or damaged."""

import shutil

from tespec.core.hashes import checksums, fingerprint_of
from tespec.datasets.recording import contents_of
from tespec.runs.data import Data, settings_of
from tespec.tasks import import_tasks
from tespec.tasks.base import open_dataset


def copied(world, folder, dataset):
    """Copy a data set of the world below `folder`, without images, and return its path."""
    return shutil.copytree(
        world / dataset, folder / "Daten ü" / dataset, ignore=shutil.ignore_patterns("imgs")
    )


def opened(root, dataset, *changes, arch="recurrent"):
    """Open the data set of the sample world in `root` with the settings of its task."""
    import_tasks()
    return open_dataset(settings_of(Data(root, "sample"), dataset, arch, "sample", changes), root)


def fingerprint(*splits):
    """Fingerprint of the data of recordings."""
    return fingerprint_of(checksums(contents_of(*splits)))

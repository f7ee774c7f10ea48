"""The sample world's data sets in other layouts, and broken on purpose as real downloads are."""

import shutil

from tespec.runs.data import Data, settings_of
from tespec.tasks import import_tasks
from tespec.tasks.base import open_dataset


def copied(world, folder, dataset):
    """A copy of a data set of the world below `folder`, without images."""
    return shutil.copytree(world / dataset, folder / "Daten ü" / dataset, ignore=shutil.ignore_patterns("imgs"))


def opened(root, dataset, *changes, arch="recurrent"):
    """The data set of the sample world in `root` with the settings of its task."""
    import_tasks()
    return open_dataset(settings_of(Data(root, "sample"), dataset, arch, "sample", changes), root)

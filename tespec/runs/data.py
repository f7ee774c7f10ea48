"""Find a run's data: the path given by the user, a default folder or, with a notice, the sample world."""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import tespec.datasets  # noqa: F401  # registers the data sets
from tespec.core.config import finetuning_settings, names, repository_task
from tespec.core.description import (
    Description,
    described_size,
    descriptions_above,
    read_description,
)
from tespec.core.distributed import rank_zero_first
from tespec.core.errors import UserError
from tespec.core.settings import Finetuning, Size
from tespec.datasets.folder import find_recordings
from tespec.events.opening import open_reader
from tespec.registry import DATASETS
from tespec.sample import facts, make_world, world_folder

SAMPLE = "sample"
UNASKED = (None, "sample", "smoke")  # profiles under which a run without data uses the sample world
ANSWER = f"give --data FOLDER, or --data {SAMPLE} for the synthetic sample world"


@dataclass(frozen=True)
class Data:
    """A data set on disk, or one of the sample world, which `made` generates if it is missing."""

    root: Path  # folder or file
    label: str  # name in records: "sample", or the name of the data set
    # one line for the user if the sample world replaces real data or a run would be refused
    notice: str = ""

    @property
    def is_sample(self) -> bool:
        """Whether the data belongs to the sample world."""
        return self.label == SAMPLE

    @property
    def profile(self) -> str:
        """Default profile for this data."""
        return "sample" if self.is_sample else "paper"

    @property
    def title(self) -> str:
        """Label and path, or the notice if the data is missing."""
        return (
            f"{self.label} ({self.root})" if self.is_sample or self.root.exists() else self.notice
        )

    @property
    def description(self) -> Description:
        """Content of its `dataset.json`, also for a sample world that is not generated yet."""
        if self.is_sample and not self.root.exists():
            return Description.model_validate(facts("small", 0, self.root.name))
        return read_description(self.root)

    def sensor(self, given: Size | None = None) -> Size | None:
        """Sensor size (height, width) in px by a `dataset.json` or a recording's header (or `given`), else None."""
        if size := self.description.sensor or described_size(self.root):
            return size
        files = (
            [self.root]
            if self.root.is_file()
            else sorted([*self.root.glob("*.raw"), *self.root.glob("*.dat")])
        )
        if not files:
            return None
        reader = open_reader(files[0], given)
        return reader.height, reader.width

    def made(self) -> "Data":
        """Generate missing data of the sample world, and return this object."""
        if self.root == world_folder() / self.root.name:
            with rank_zero_first():
                make_world(datasets=(self.root.name,))
        return self


def find_unlabelled(
    dataset: str, given: Path | None, profile: str | None = None, *, planned: bool = False
) -> Data:
    """Find recordings for pre-training as in `find_data`, with the label of `label_of`."""
    data = find_data(dataset, given, profile, planned=planned)
    return (
        data
        if data.is_sample
        else replace(data, label=label_of(data.root, dataset, labelled=False))
    )


def find_data(
    dataset: str, given: Path | None, profile: str | None = None, *, planned: bool = False
) -> Data:
    """Find a data set: `given`, else `$TESPEC_DATA/<dataset>`, else `./data/<dataset>`, else the sample world.

    The sample world is a default only if neither `$TESPEC_DATA` nor a profile for real data is
    given. It is not generated yet. If `planned`, as in a dry run, missing data yields a
    placeholder, which is not read.
    """
    # A task of one's own uses the sample world's data of the task that it is based on.
    of_world = repository_task(dataset) if dataset in names("tasks") else ""
    sample, named = world_folder() / (of_world or dataset), os.environ.get("TESPEC_DATA", "")
    if given == Path(SAMPLE):
        if given.exists():
            what = f"a folder here has this name, but --data {SAMPLE} means the sample world"
            raise UserError(
                f"--data {SAMPLE}",
                what,
                "give the full path of the folder, or run from another folder",
            )
        return Data(sample, SAMPLE)
    if given is not None:
        if not given.exists():
            raise UserError(given, "no such file or folder", "check the path")
        return Data(given, label_of(given, dataset))
    gone = named != "" and not Path(named).is_dir()
    for parent in (Path(named or "data"), Path("data")):
        if not gone and (parent / dataset).is_dir():
            return Data(parent / dataset, label_of(parent / dataset, dataset))
    missing = f"no {dataset} data given or found in ./data/{dataset}"
    if named:
        what = "no such folder" if gone else f"contains no folder {dataset}"
        refusal = UserError(f"TESPEC_DATA={named}", what, ANSWER)
    elif profile not in UNASKED:
        refusal = UserError(f"--profile {profile}", missing, ANSWER)
    else:
        return Data(sample, SAMPLE, f"{missing}: using the synthetic sample world")
    if not planned:
        raise refusal
    return Data(
        Path(dataset),
        dataset,
        f"sizes of the official {dataset}; a run would be refused: {refusal}",
    )


def settings_of(
    data: Data,
    task: str,
    arch: str,
    profile: str | None = None,
    changes: Sequence[str] = (),
    network: str = "swin",
) -> Finetuning:
    """Resolve the settings of a cell on this data, which may override splits; default profile: `data.profile`."""
    return finetuning_settings(
        task, arch, profile or data.profile, changes, data.description.overrides(), network
    )


def sibling(data: Data, dataset: str) -> Data:
    """Return another data set of the same sample world, generated if it is missing."""
    root = data.root.parent / dataset
    if not root.is_dir():
        world = read_description(data.root).world
        with rank_zero_first():
            make_world(
                str(world["size"]), int(world["seed"]), data.root.parent.parent, datasets=(dataset,)
            )
    return Data(root, SAMPLE)


def label_of(root: Path, dataset: str, *, labelled: bool = True) -> str:
    """Name in records of the data in `root`: by the nearest `dataset.json` that has one, else `dataset`.

    Without labels, any recordings may be given for a `dataset`: instead of its name, the name is
    that of the data set that all of them are official recordings of, else that of the file or
    folder.
    """
    described = next((each.data for _, each in descriptions_above(root) if each.data), "")
    if labelled:
        return described or dataset
    path = Path(os.path.abspath(root))
    official = _official(path) if dataset in names("tasks") else ""  # others are images
    if (official or path.stem) == SAMPLE and not described:
        raise UserError(
            root,
            "has the name of the sample world",
            "rename it, or name the data in a dataset.json",
        )
    return re.sub(r"[^A-Za-z0-9]+", "_", described or official or path.stem)


@cache
def _official(root: Path) -> str:
    """Name of the data set that all recordings at or under `root` belong to, judging by their paths; "" for none."""
    try:
        paths = find_recordings(root)
    except UserError:
        return ""
    kinds = DATASETS.module_dict.values()
    found = {
        next((kind.title for kind in kinds if kind.split_of(path, kind.splits)), "")
        for path in paths
    }
    return found.pop().casefold() if len(found) == 1 else ""

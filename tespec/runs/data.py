"""Which data a run uses: what the user names or keeps in its place; the sample world never replaces it in silence."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tespec.core.config import finetuning_settings
from tespec.core.description import Description, described_size, descriptions_above, read_description
from tespec.core.distributed import rank_zero_first
from tespec.core.errors import UserError
from tespec.core.settings import Finetuning, Size
from tespec.events.packing import open_reader
from tespec.sample import facts, make_world, world_folder

SAMPLE = "sample"
UNASKED = (None, "sample", "tiny")  # profiles under which a run without data takes the sample world
ANSWER = f"give --data FOLDER, or --data {SAMPLE} for the synthetic sample world"


@dataclass(frozen=True)
class Data:
    """A data set on disk, or the sample world's, which `made` makes where it is not there yet.

    Attributes:
        root: its folder or file.
        label: what records call it: "sample", or the name of the data set.
        notice: one line for the user, where the sample world is used instead of real data or a run would be
            refused, else "".
    """

    root: Path
    label: str
    notice: str = ""

    @property
    def is_sample(self) -> bool:
        """Whether it is the sample world."""
        return self.label == SAMPLE

    @property
    def profile(self) -> str:
        """The profile that fits it where the user names none."""
        return "sample" if self.is_sample else "paper"

    @property
    def title(self) -> str:
        """What it is and where it lies."""
        return f"{self.label} ({self.root})" if self.is_sample or self.root.exists() else self.notice

    @property
    def description(self) -> Description:
        """What it states of itself, whether it is made or not."""
        if self.is_sample and not self.root.exists():
            return Description.model_validate(facts("small", 0, self.root.name))
        return read_description(self.root)

    def sensor(self, given: Size | None = None) -> Size | None:
        """(height, width) in px by a `dataset.json` or the header of a recording, which may need `given`; else None."""
        if (stated := self.description.sensor) is not None:
            return stated.height, stated.width
        if (size := described_size(self.root)) is not None:
            return size
        files = [self.root] if self.root.is_file() else sorted([*self.root.glob("*.raw"), *self.root.glob("*.dat")])
        if not files:
            return None
        reader = open_reader(files[0], *(given or (None, None)))
        return reader.height, reader.width

    def made(self) -> Data:
        """Itself, once it is there."""
        if self.root == world_folder() / self.root.name:
            with rank_zero_first():
                make_world(datasets=(self.root.name,))
        return self


def find_unlabelled(dataset: str, given: Path | None, profile: str | None = None, *, planned: bool = False) -> Data:
    """Recordings for pre-training, as `find_data`; those the user gives are called by the name of their file or folder.

    Raises:
        UserError: as of `find_data`.
    """
    data = find_data(dataset, given, profile, planned=planned)
    if given is None or data.is_sample:
        return data
    return replace(data, label=re.sub(r"[^A-Za-z0-9]+", "_", given.resolve().stem))


def find_data(dataset: str, given: Path | None, profile: str | None = None, *, planned: bool = False) -> Data:
    """Data set `dataset`: `given`, else `$TESPEC_DATA/<dataset>`, else `./data/<dataset>`, else the sample world.

    The sample world is taken unasked only where nothing points to real data: neither `$TESPEC_DATA` nor a profile of
    real data. Nothing is made yet.

    Args:
        dataset: name of a data set, as of a task.
        given: folder or file the user named, or "sample" for the sample world.
        profile: the user named, if any.
        planned: whether the official data set may stand for one that is not there, since nothing reads it.

    Raises:
        UserError: `given` does not exist, or the folder that `$TESPEC_DATA` names; or there is no data, and the sample
            world was not asked for.
    """
    sample, named = world_folder() / dataset, os.environ.get("TESPEC_DATA", "")
    if given == Path(SAMPLE):
        if given.exists():
            what = f"a folder here has this name, and --data {SAMPLE} means the sample world"
            raise UserError(f"--data {SAMPLE}", what, "give the full path of the folder, or run from another one")
        return Data(sample, SAMPLE)
    if given is not None:
        if not given.exists():
            raise UserError(given, "no such file or folder", "check the path given to --data")
        return Data(given, _label(given, dataset))
    gone = named != "" and not Path(named).is_dir()
    for parent in (Path(named or "data"), Path("data")):
        if not gone and (parent / dataset).is_dir():
            return Data(parent / dataset, _label(parent / dataset, dataset))
    missing = f"no {dataset} data given or found in ./data/{dataset}"
    if named:
        what = "no such folder" if gone else f"holds no folder {dataset}"
        refusal = UserError(f"TESPEC_DATA={named}", what, ANSWER)
    elif profile not in UNASKED:
        refusal = UserError(f"--profile {profile}", missing, ANSWER)
    else:
        return Data(sample, SAMPLE, f"{missing}: using the synthetic sample world")
    if not planned:
        raise refusal
    return Data(Path(dataset), dataset, f"sizes of the official {dataset}; a run is refused: {refusal}")


def settings_of(
    data: Data, task: str, arch: str, profile: str | None = None, changes: Sequence[str] = (), network: str = "swin"
) -> Finetuning:
    """Settings of a cell on this data, which may name splits of its own; the profile that fits it where none is given.

    Raises:
        UserError: there is no such task or setting, or a value that it cannot have.
    """
    return finetuning_settings(task, arch, profile or data.profile, changes, data.description.overrides(), network)


def sibling(data: Data, dataset: str) -> Data:
    """Another data set of the same sample world, made where it is not there yet."""
    root = data.root.parent / dataset
    if not root.is_dir():
        world = read_description(data.root).world
        with rank_zero_first():
            make_world(str(world["size"]), int(world["seed"]), data.root.parent.parent, datasets=(dataset,))
    return Data(root, SAMPLE)


def _label(root: Path, dataset: str) -> str:
    """What the data set in folder `root`, or that of a recording in one of its splits, calls itself."""
    return next((each.data for _, each in descriptions_above(root) if each.data), dataset)

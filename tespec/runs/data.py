"""Find a run's data: the user's path, a default folder or, with a notice, the sample world."""

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
from tespec.core.errors import UserError, require
from tespec.core.progress import log
from tespec.core.settings import Finetuning, Size
from tespec.datasets.folder import find_recordings
from tespec.events.opening import open_reader
from tespec.registry import DATASETS
from tespec.sample import facts, make_world, world_folder

SAMPLE = "sample"
SAMPLE_PROFILES = (None, "sample", "smoke")  # a run without data uses the sample world
REMEDY = f"give --data FOLDER, or --data {SAMPLE} for the synthetic sample world"


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
    def option(self) -> str:
        """Value of `--data` that names it in any folder."""
        return SAMPLE if self.root.parent == world_folder() else os.path.abspath(self.root)

    @property
    def profile(self) -> str:
        """Default profile for this data."""
        return "sample" if self.is_sample else "paper"

    @property
    def title(self) -> str:
        """Label and path, or the notice if the data is missing."""
        is_missing = not (self.is_sample or self.root.exists())
        return self.notice if is_missing else f"{self.label} ({self.root})"

    @property
    def description(self) -> Description:
        """Content of its `dataset.json`, also for a sample world that is not generated yet."""
        if self.is_sample and not self.root.exists():
            return Description.model_validate(facts("small", 0, self.root.name))
        return read_description(self.root)

    def sensor(self, given: Size | None = None) -> Size | None:
        """Sensor size (height, width) in px by a `dataset.json` or a recording's header, or None.

        Args:
            given: size of recordings that do not store it.
        """
        if size := self.description.sensor or described_size(self.root):
            return size
        in_folder = [*self.root.glob("*.raw"), *self.root.glob("*.dat")]
        files = [self.root] if self.root.is_file() else sorted(in_folder)
        if not files:
            return None
        reader = open_reader(files[0], given)
        return reader.height, reader.width

    def generate(self) -> "Data":
        """Print the notice, generate missing data of the sample world; return it without notice."""
        if self.notice:
            log(self.notice)
        if self.root == world_folder() / self.root.name:
            with rank_zero_first():
                make_world(datasets=(self.root.name,))
        return replace(self, notice="")


def find_data(
    dataset: str,
    given: Path | None,
    profile: str | None = None,
    *,
    planned: bool = False,
    labelled: bool = True,
) -> Data:
    """Find a data set: `given`, `$TESPEC_DATA/<dataset>`, `./data/<dataset>` or the sample world.

    The sample world is a default only if neither `$TESPEC_DATA` nor a profile for real data is
    given. It is not generated yet.

    Args:
        dataset: name of the data set or of a task.
        given: path, or "sample", given by the user.
        profile: given by the user.
        planned: whether this is a dry run: missing data yields a placeholder, which is not read.
        labelled: False for recordings to pre-train on, see `record_label`.

    Raises:
        UserError: no data is found.
    """
    # A user's task has the sample data of the task that it is based on.
    world_name = repository_task(dataset) if dataset in names("tasks") else ""
    sample = world_folder() / (world_name or dataset)
    if given == Path(SAMPLE):
        require(
            not given.exists(),
            f"--data {SAMPLE}",
            f"a folder here has this name, but --data {SAMPLE} means the sample world",
            "give the full path of the folder, or run from another folder",
        )
        return Data(sample, SAMPLE)
    require(given is None or given.exists(), given, "no such file or folder", "check the path")
    variable = os.environ.get("TESPEC_DATA", "")
    missing_folder = variable != "" and not Path(variable).is_dir()
    defaults = [] if missing_folder else [Path(variable or "data"), Path("data")]
    existing = [parent / dataset for parent in defaults if (parent / dataset).is_dir()]
    roots = [given] if given else existing
    if roots:
        return Data(roots[0], record_label(roots[0], dataset, labelled=labelled))
    missing = f"no {dataset} data given or found in ./data/{dataset}"
    if variable:
        what = "no such folder" if missing_folder else f"contains no folder {dataset}"
        refusal = UserError(f"TESPEC_DATA={variable}", what, REMEDY)
    elif profile not in SAMPLE_PROFILES:
        refusal = UserError(f"--profile {profile}", missing, REMEDY)
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
    *,
    frozen: bool = False,
) -> Finetuning:
    """Resolve the settings of a cell on this data, whose `dataset.json` may override splits.

    Args:
        data: gives the default profile.
        task: name of the task.
        arch: "recurrent" or "feedforward".
        profile: name of the profile.
        changes: `KEY=VALUE` settings of the user.
        network: name of a backbone or a kind of network.
        frozen: whether only the head is trained.
    """
    return finetuning_settings(
        task,
        arch,
        profile or data.profile,
        changes,
        data.description.overrides(),
        network,
        frozen=frozen,
    )


def same_world(data: Data, dataset: str) -> Data:
    """Return another data set of the same sample world, which is generated if it is missing.

    Args:
        data: a data set of the world.
        dataset: name of the other one.
    """
    root = data.root.parent / dataset
    if not root.is_dir():
        world = read_description(data.root).world
        with rank_zero_first():
            make_world(
                str(world["size"]), int(world["seed"]), root.parent.parent, datasets=(dataset,)
            )
    return Data(root, SAMPLE)


def record_label(root: Path, dataset: str, *, labelled: bool = True) -> str:
    """Name of data in records.

    Args:
        root: file or folder, whose nearest `dataset.json` may give the name.
        dataset: name of labelled data.
        labelled: False for recordings of any data set, given for a `dataset`: they get the name of
            the data set that all of them are official recordings of, else that of their path.
    """
    described = next((d.data for _, d in descriptions_above(root) if d.data), "")
    if labelled:
        return described or dataset
    path = Path(os.path.abspath(root))
    official = _official(path) if dataset in names("tasks") else ""  # others are images
    require(
        described or (official or path.stem) != SAMPLE,
        root,
        "has the name of the sample world",
        "rename it, or name the data in a dataset.json",
    )
    return re.sub(r"[^A-Za-z0-9]+", "_", described or official or path.stem)


@cache
def _official(root: Path) -> str:
    """Name of the data set that all recordings in `root` belong to by their paths, or ""."""
    try:
        paths = find_recordings(root)
    except UserError:
        return ""
    datasets = DATASETS.module_dict.values()
    titles = {
        next((kind.title for kind in datasets if kind.split_of(path, kind.splits)), "")
        for path in paths
    }
    return titles.pop().casefold() if len(titles) == 1 else ""

"""What a result is: every fact that determines it but its seeds; never imports torch."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, field
from functools import cached_property
from typing import Annotated, Any, Literal

import pydantic.dataclasses
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from tespec.comparison.published import task_titles
from tespec.core.errors import UserError
from tespec.core.settings import PositiveFraction

# Incremented by hand when the same settings yield different numbers, as golden tests (tests/golden)
# detect. Results of different versions never share a column of a table.
RESULTS_VERSION = 3
OWN_WEIGHTS: Literal["own weights"] = "own weights"
SAMPLE = "sample"  # data of the sample world
# in the overrides of a pre-training: hash of the user's file of another network, such as a teacher
REQUIRED_SHA256 = "required_sha256"
DIGITS = 12  # of the hash in the name of a run
PAPER = "paper"  # profile with the paper's settings
# names in the paper's tables of the paper's networks
NETWORKS = {"swin_tiny": "Swin-T/7", "resnet50": "ResNet50"}
Name = Annotated[str, Field(pattern=r"^[^/\x00-\x1f]+$")]  # part of file names
Arch = Literal["recurrent", "feedforward"]
Kind = Literal[
    "evaluation", "pretraining", "probe", "reference", "control", "history", "predictions"
]


@pydantic.dataclasses.dataclass(frozen=True, kw_only=True, config=ConfigDict(extra="forbid"))
class Cell:
    """A result without its seeds: two runs with equal cells are draws of the same quantity.

    A pre-training is a cell too, and the `start` of the cells that fine-tune it.
    """

    kind: Kind
    method: Name
    task: Name  # of a pre-training, the data set that it learns from
    data: str  # name in records; "sample" is the sample world
    profile: str
    arch: Arch
    backbone: str = ""  # registered name; "" for a reference without a network
    overrides: dict[str, Any] = field(default_factory=dict)  # changed settings by dotted name
    # Origin of the initial weights: a pre-training, `OWN_WEIGHTS` for a file that does not describe
    # its pre-training, or "" for none.
    start: Cell | Literal["", "own weights"] = ""
    split: Literal["test", "val"] = "test"
    label_fraction: PositiveFraction = 1.0
    frozen: bool = False  # only the head is trained
    method_version: int = 1
    task_version: int = 1
    plugin: str = ""  # hash of the user's files that the run uses; "" for none
    results_version: int = Field(default=RESULTS_VERSION, ge=1)

    def __hash__(self) -> int:
        return hash(self.text)

    @cached_property
    def text(self) -> str:
        """The cell as JSON; equal cells have equal texts."""
        return json.dumps(asdict(self), sort_keys=True, allow_nan=False)

    @property
    def evaluation(self) -> str:
        """How the network is fine-tuned: "full", "frozen", "5 % of labels", or both of these."""
        words = ["frozen"] if self.frozen else []
        if self.label_fraction != 1:
            words.append(f"{100 * self.label_fraction:g} % of labels")
        return ", ".join(words) or "full"

    @property
    def network(self) -> str:
        """Name of the network in tables: "Swin-T/7" only for the paper's."""
        return NETWORKS.get(self.backbone, self.backbone) or "-"

    @property
    def pretraining_data(self) -> str:
        """What the initial weights learned from, such as "1Mpx (sample world, study)"; or "-"."""
        if not isinstance(self.start, Cell):
            return self.start or "-"
        start = self.start
        is_sample = start.data == SAMPLE
        name = start.task if is_sample else start.data
        facts = ["sample world"] if is_sample else []
        facts += [start.profile] if start.profile != PAPER else []
        return task_titles().get(name, name) + (f" ({', '.join(facts)})" if facts else "")


Start = Cell | Literal["", "own weights"]


def run_name(cell: Cell, seed: int, data_fingerprint: str, start_sha256: str) -> str:
    """Name of a run, of its record and of its folder; it ends in a hash of everything given.

    Args:
        cell: what is computed.
        seed: of the run.
        data_fingerprint: hash of the data.
        start_sha256: hash of the initial weights, with those that are random.
    """
    facts = [cell.text, seed, data_fingerprint, start_sha256]
    digest = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:DIGITS]
    return f"{name_prefix(cell, seed)}{digest}"


def name_prefix(cell: Cell, seed: int) -> str:
    """First part of `run_name`, which other runs share."""
    return f"{cell.kind}-{cell.method}-{cell.task}-{cell.arch}-s{seed}-"


def differences(old: Cell, new: Cell) -> dict[str, tuple[Any, Any]]:
    """Compare two cells.

    Returns:
        The values of both, by dotted name of the facts that differ, such as
        "start.overrides.objective.mask.ratio"; None for a fact that one of them lacks.
    """
    return differing(asdict(old), asdict(new))


def differing(
    old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = ""
) -> dict[str, tuple[Any, Any]]:
    """Compare nested facts.

    Args:
        old: facts by name.
        new: other facts.
        prefix: of the dotted names.

    Returns:
        As `differences`.
    """
    changed: dict[str, tuple[Any, Any]] = {}
    for key in {**old, **new}:
        before = old.get(key)
        after = new.get(key)
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            changed |= differing(before, after, f"{prefix}{key}.")
        elif before != after:
            changed[f"{prefix}{key}"] = (before, after)
    return changed


def format_changes(changed: Mapping[str, tuple[Any, Any]]) -> str:
    """Format what `differing` returns with the recorded and the present value; None: default."""

    def text(value: Any) -> str:
        return f"{'default' if value is None else value!s:.40}" or "none"

    return ", ".join(
        f"{key} ({text(recorded)} there, {text(present)} here)"
        for key, (recorded, present) in changed.items()
    )


def start_of(
    recipe: Mapping[str, Any], sha256: str, where: object
) -> tuple[Start, int | str | None]:
    """Read from the recipe of a weights file which pre-training it is, and of which seed.

    Args:
        recipe: of the file; a file from elsewhere has no cell in it.
        sha256: hash of the file, "" for random initialisation.
        where: file that errors name.

    Returns:
        `Cell.start` and `Record.pretraining`.

    Raises:
        UserError: the recipe's cell is malformed.
    """
    if "cell" not in recipe:
        return (OWN_WEIGHTS, sha256) if sha256 else ("", None)
    try:
        return TypeAdapter(Cell).validate_python(recipe["cell"]), int(recipe["seed"])
    except (ValidationError, LookupError, ValueError, TypeError) as error:
        raise UserError(where, "its recipe is damaged", "copy the file again") from error


def run_of(recipe: Mapping[str, Any], where: object) -> tuple[Cell, int]:
    """Read from the recipe of a weights file which run trained it: its cell and seed.

    Args:
        recipe: as in `start_of`.
        where: file that errors name.

    Raises:
        UserError: the recipe names no run, or is malformed.
    """
    cell, seed = start_of(recipe, "", where)
    if not isinstance(cell, Cell):
        remedy = "give the model.safetensors of a run"
        raise UserError(where, "does not name the run that trained it", remedy)
    return cell, int(seed or 0)


def recipe_of(cell: Cell, seed: int) -> dict[str, Any]:
    """Facts of a recipe that `start_of` reads."""
    return {"cell": asdict(cell), "method": cell.method, "seed": seed}

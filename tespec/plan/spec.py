"""Plans as YAML: which cells are compared, under which settings, on which data."""

from __future__ import annotations

from dataclasses import field
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, NonNegativeInt
from pydantic.dataclasses import dataclass

from tespec.core.config import files, names
from tespec.core.errors import UserError
from tespec.core.files import UNREADABLE, read_yaml
from tespec.core.settings import PositiveInt, SomeShare, build, suggest

Some = Field(min_length=1)
Seeds = Annotated[tuple[NonNegativeInt, ...], Some]
Names = Annotated[tuple[str, ...], Some]


@dataclass(frozen=True)
class Cells:
    """Cells of the tables: every method with every architecture, task, fraction of the training labels and seed.

    `tasks`: default: all; `seeds`: default: the plan's.
    """

    methods: Names
    architectures: Annotated[tuple[Literal["recurrent", "feedforward"], ...], Some] = ("recurrent", "feedforward")
    tasks: Names | None = None
    seeds: Seeds | None = None
    label_share: Annotated[tuple[SomeShare, ...], Some] = (1.0,)
    set: tuple[str, ...] = ()


@dataclass(frozen=True)
class Ablations:
    """Ablations by the names of their tables: each row is pre-trained and fine-tuned; default task: the table's."""

    tables: Names
    task: str | None = None
    seeds: Seeds | None = None


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A set of runs.

    Attributes:
        data: "sample", or a folder that holds a folder for each data set; default: `$TESPEC_DATA`, else ./data.
        profile: default: "sample" on the sample world, else "paper".
        pretraining_seeds: of the pre-trainings that every seed starts from; default: each seed has its own.
        references: tasks whose label prior is scored.
        set: changed settings of all cells and, behind "pretraining.", of all pre-trainings, `KEY=VALUE`.
        checkpoints: weights by method, which is then not pre-trained.
        accumulate: gradient accumulation steps of all runs.
        threads: CPU threads of a run; default: the profile's.
        at_once: number of runs at the same time.
        show: a table that is printed at the end.
    """

    name: str
    title: str
    data: str | None = None
    profile: str | None = None
    split: Literal["test", "val"] = "test"
    seeds: Seeds = (0,)
    pretraining_seeds: Seeds | None = None
    cells: tuple[Cells, ...] = ()
    ablations: tuple[
        Annotated[Ablations, BeforeValidator(lambda each: {"tables": [each]} if isinstance(each, str) else each)], ...
    ] = ()
    references: tuple[str, ...] = ()
    set: tuple[str, ...] = ()
    checkpoints: dict[str, Path] = field(default_factory=dict)
    accumulate: PositiveInt = 1
    threads: PositiveInt | None = None
    at_once: PositiveInt = 1
    show: str | None = None


def read_plan(name: str) -> Plan:
    """A plan of configs/plans by its name, or from a file that ends in .yaml.

    Raises:
        UserError: no such plan, unreadable YAML, an unknown name or a wrong value.
    """
    path = Path(name) if name.endswith(".yaml") else files("plans").get(name)
    if path is None:
        raise UserError(f"plan {name}", "no such plan", suggest(name, [*names("plans"), "FILE.yaml"]))
    try:
        facts = {"title": path.stem} | dict(name=path.stem, **read_yaml(path))  # a file does not state its name
    except (*UNREADABLE, TypeError) as error:
        raise UserError(path, f"not a readable YAML file of settings ({error})", "see docs/running.md") from error
    return build(Plan, facts, str(path))

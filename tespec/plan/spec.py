"""Plans as YAML: which cells are compared, under which settings, on which data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, NonNegativeInt, PositiveInt, ValidationError

from tespec.core.config import files, names
from tespec.core.errors import UserError
from tespec.core.files import UNREADABLE, read_yaml
from tespec.core.settings import suggest

Some = Field(min_length=1)
Seeds = Annotated[tuple[NonNegativeInt, ...], Some]
Names = Annotated[tuple[str, ...], Some]


class Spec(BaseModel):
    """A group of settings that refuses unknown names; `seeds`: default: the plan's, `tasks`: default: all."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Cells(Spec):
    """Cells of the tables: every method with every architecture, task, fraction of the training labels and seed."""

    methods: Names
    architectures: Annotated[tuple[Literal["recurrent", "feedforward"], ...], Some] = ("recurrent", "feedforward")
    tasks: Names | None = None
    seeds: Seeds | None = None
    label_share: Annotated[tuple[Annotated[float, Field(gt=0, le=1)], ...], Some] = (1.0,)
    set: tuple[str, ...] = ()


class Ablations(Spec):
    """Ablations by the names of their tables: each row is pre-trained and fine-tuned; default task: the table's."""

    tables: Names
    task: str | None = None
    seeds: Seeds | None = None


class References(Spec):
    """Label-prior baselines of tasks."""

    tasks: Names


class Plan(Spec):
    """A set of runs.

    Attributes:
        data: "sample", or a folder that holds a folder for each data set; default: `$TESPEC_DATA`, else ./data.
        profile: default: "sample" on the sample world, else "paper".
        pretraining_seeds: of the pre-trainings that every seed starts from; default: each seed has its own.
        set: changed settings of all cells and, behind "pretraining.", of all pre-trainings, `KEY=VALUE`.
        checkpoints: weights by method, which is then not pre-trained.
        accumulate: gradient accumulation steps of all runs.
        threads: CPU threads of a run; default: the profile's.
        at_once: number of runs at the same time.
        results: folder of the records; default: "results".
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
    references: tuple[References, ...] = ()
    set: tuple[str, ...] = ()
    checkpoints: dict[str, Path] = {}
    accumulate: PositiveInt = 1
    threads: PositiveInt | None = None
    at_once: PositiveInt = 1
    results: Path | None = None
    show: str | None = None


def read_plan(name: str) -> Plan:
    """A plan of configs/plans by its name, or from a file that ends in .yaml.

    Raises:
        UserError: no such plan, unreadable YAML, an unknown name or a wrong value.
    """
    path = Path(name) if name.endswith(".yaml") else files("plans").get(name)
    if path is None:
        raise UserError(f"plan {name}", "no such plan", f"{suggest(name, names('plans'))}, or give FILE.yaml")
    try:
        facts = read_yaml(path)
        return Plan.model_validate({"title": path.stem, **facts, "name": path.stem})
    except ValidationError as error:
        raise _mistake(path, error) from error
    except (*UNREADABLE, TypeError) as error:
        raise UserError(path, f"not a readable YAML file of settings ({error})", "see docs/running.md") from error


def _mistake(path: Path, error: ValidationError) -> UserError:
    """The first mistake in a plan; an unknown name before all others, since another may be missing because of it."""
    first = min(error.errors(), key=lambda each: each["type"] != "extra_forbidden")
    place = first["loc"]
    where = f"{path}, {'.'.join(map(str, place))}"
    if first["type"] != "extra_forbidden":
        return UserError(where, first["msg"].removeprefix("Input "), "see docs/running.md")
    groups: dict[int | str, type[Spec]] = {"cells": Cells, "ablations": Ablations, "references": References}
    return UserError(where, "no such setting", suggest(str(place[-1]), groups.get(place[0], Plan).model_fields))

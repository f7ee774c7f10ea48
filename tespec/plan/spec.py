"""Plans as YAML: which cells are compared, under which settings, on which data."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, NonNegativeInt, PositiveInt, ValidationError

from tespec.core.config import file_of, names
from tespec.core.errors import UserError
from tespec.core.files import UNREADABLE, read_yaml

Seeds = Annotated[tuple[NonNegativeInt, ...], Field(min_length=1)]
Names = Annotated[tuple[str, ...], Field(min_length=1)]


class Spec(BaseModel):
    """A group of settings that refuses unknown names."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Cells(Spec):
    """Cells of the tables: every method with every architecture, task, label share and seed.

    Attributes:
        tasks: default: all.
        seeds: default: the plan's.
        label_share: fractions of the training labels.
        set: changed settings (`KEY=VALUE`), behind "pretraining." those of the pre-trainings.
    """

    methods: Names
    architectures: Annotated[tuple[Literal["recurrent", "feedforward"], ...], Field(min_length=1)] = (
        "recurrent",
        "feedforward",
    )
    tasks: Names | None = None
    seeds: Seeds | None = None
    label_share: Annotated[tuple[Annotated[float, Field(gt=0, le=1)], ...], Field(min_length=1)] = (1.0,)
    set: tuple[str, ...] = ()


class Ablations(Spec):
    """Ablations by the names of their tables: every row is pre-trained and fine-tuned, by default on the table's task."""

    tables: Names
    task: str | None = None
    seeds: Seeds | None = None


class References(Spec):
    """Label-prior baselines of tasks."""

    tasks: Names


class Plan(Spec):
    """A set of runs.

    Attributes:
        name: of the file.
        title: one line.
        data: "sample", or a folder that holds a folder for each data set; default: `$TESPEC_DATA`, else ./data.
        profile: default: "sample" on the sample world, else "paper".
        split: on which all runs are scored.
        seeds: of all groups that name none.
        pretraining_seed: of one pre-training that all seeds start from; default: each seed has its own.
        set: changed settings of all cells and, behind "pretraining.", of all pre-trainings.
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
    pretraining_seed: NonNegativeInt | None = None
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

    def with_seeds(self, seeds: Sequence[int]) -> Plan:
        """The plan with these seeds for all of its groups."""
        groups = {
            name: tuple(each.model_copy(update={"seeds": None}) for each in getattr(self, name))
            for name in ("cells", "ablations")
        }
        return self.model_copy(update={"seeds": tuple(seeds), **groups})


def read_plan(name: str) -> Plan:
    """A plan of configs/plans by its name, or from a file that ends in .yaml.

    Raises:
        UserError: no such plan, unreadable YAML, an unknown name or a wrong value; the line is named.
    """
    path = Path(name) if name.endswith(".yaml") else file_of("plans", name)
    if path is None:
        known = names("plans")
        near = difflib.get_close_matches(name, known, n=1)
        remedy = f"did you mean {near[0]!r}?" if near else f"choose from {', '.join(known)}, or give FILE.yaml"
        raise UserError(f"plan {name}", "no such plan", remedy)
    try:
        facts = read_yaml(path)
    except UNREADABLE as error:
        raise UserError(path, f"not a readable YAML file ({error})", "correct it") from error
    if not isinstance(facts, dict):
        raise UserError(path, "holds no settings by name", "see docs/plan.md")
    try:
        return Plan.model_validate({"title": path.stem, **facts, "name": path.stem})
    except ValidationError as error:
        raise _mistake(path, error) from error


def _mistake(path: Path, error: ValidationError) -> UserError:
    """The first mistake in a plan; an unknown name before all others, since another may be missing because of it."""
    errors: list[Any] = sorted(error.errors(), key=lambda each: each["type"] != "extra_forbidden")
    place, message = errors[0]["loc"], errors[0]["msg"]
    where = f"{path}, line {_line(path, place)}, {'.'.join(map(str, place))}"
    if errors[0]["type"] != "extra_forbidden":
        return UserError(where, message.removeprefix("Input "), "see docs/plan.md")
    group: type[Spec] = {"cells": Cells, "ablations": Ablations, "references": References}.get(place[0], Plan)
    near = difflib.get_close_matches(str(place[-1]), group.model_fields, n=1)
    known = ", ".join(name for name in group.model_fields if name != "name")
    return UserError(where, "no such setting", f"did you mean {near[0]!r}?" if near else f"choose from {known}")


def _line(path: Path, place: Sequence[str | int]) -> int:
    """Line of a setting in a YAML file, or of the nearest group around it."""
    node, line = yaml.compose(path.read_text(encoding="utf-8"), yaml.SafeLoader), 1
    for part in place:
        if isinstance(node, yaml.MappingNode):
            found = next(((key, value) for key, value in node.value if key.value == part), None)
            if found is None:
                break
            line, node = found[0].start_mark.line + 1, found[1]
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int):
            node = node.value[part]
            line = node.start_mark.line + 1
    return line

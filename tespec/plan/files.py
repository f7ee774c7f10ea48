"""Plans as YAML: which runs there are, under which settings, on which data."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, NonNegativeInt, PositiveInt, ValidationError

from tespec.core.config import file_of, names
from tespec.core.errors import UserError
from tespec.core.files import UNREADABLE, read_yaml

Arch = Literal["recurrent", "feedforward"]
Split = Literal["test", "val"]
Seeds = Annotated[tuple[NonNegativeInt, ...], Field(min_length=1)]
GROUPS = ("cells", "pretrainings", "ablations", "references", "probes")


class Facts(BaseModel):
    """What is common to all groups of a plan: no other names than those stated."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class World(Facts):
    """A sample world, in the place of data sets."""

    size: str
    seed: NonNegativeInt = 0


class Group(Facts):
    """What groups of runs may each say for themselves; `seeds`: None for the plan's."""

    seeds: Seeds | None = None


class Start(Facts):
    """A training with labels, without pre-training, whose backbone cells of the same task and architecture start from.

    Attributes:
        world: whose streets it is trained on.
        set: changes to its settings, beside those of the whole plan.
    """

    world: World
    set: tuple[str, ...] = ()


class Cells(Group):
    """Cells of the tables: every method, architecture and task with every other.

    Attributes:
        methods: None: all that can start from nothing, from a recipe or from a checkpoint given.
        architectures: those of them that a method has.
        tasks: None: all.
        split: on which they are scored; None: the plan's.
        set: changes to their settings and, behind "pretraining.", to those of their pre-trainings, beside those of the
            whole plan.
        start: what they start from instead of a pre-training.
    """

    methods: tuple[str, ...] | None = None
    architectures: tuple[Arch, ...] = ("recurrent", "feedforward")
    tasks: tuple[str, ...] | None = None
    split: Split | None = None
    set: tuple[str, ...] = ()
    start: Start | None = None


class Ablations(Group):
    """Ablations, by the names of their tables; `task`: on which they are fine-tuned, None for that of each table."""

    tables: tuple[str, ...]
    task: str | None = None


def _group_of(ablation: object) -> object:
    """The name of a table is a group of that one."""
    return {"tables": (ablation,)} if isinstance(ablation, str) else ablation


class Pretrainings(Group):
    """Pre-trainings for their own sake; those that cells start from need not be named."""

    methods: tuple[str, ...]
    set: tuple[str, ...] = ()


class References(Group):
    """Floor ("prior") and ceiling ("frame") of tasks; `split` as of `Cells`."""

    kinds: tuple[Literal["prior", "frame"], ...] = ("prior", "frame")
    tasks: tuple[str, ...]
    split: Split | None = None


class Plan(Facts):
    """A set of runs.

    Attributes:
        name: of the file.
        title: in words.
        world: the sample world that all runs are of; None: real data.
        data: folder that holds a folder for each data set; None: $TESPEC_DATA or ./data.
        profile: whose settings all runs have; None: the one that fits the data.
        split: on which cells, ablations, references and probes are scored.
        seeds: of every run whose group names no others; a prior, which is counted and not drawn, has the first alone.
        pretraining_seed: of all trainings that cells start from, each of which all seeds then share; None: each seed
            has its own.
        cells: of the tables.
        pretrainings: beside those that other runs start from.
        ablations: names of tables, whose every row is pre-trained and fine-tuned, or groups of them.
        references: floor and ceiling.
        probes: cells that are probed instead of fine-tuned.
        set: changes to the settings of all cells and, behind "pretraining.", of all pre-trainings.
        checkpoints: files that methods start from, by method.
        threads: of a run on a CPU; None: the profile's.
        at_once: runs at the same time where the command line does not say.
        seconds: what a run takes where it was measured: by pretraining and method, or by reference, recurrent,
            feedforward and task. Records take their place.
        results: folder of the records where the command line does not say.
        show: a table that is printed at the end.
    """

    name: str
    title: str
    world: World | None = None
    data: Path | None = None
    profile: str | None = None
    split: Split = "test"
    seeds: Seeds = (0,)
    pretraining_seed: NonNegativeInt | None = None
    cells: tuple[Cells, ...] = ()
    pretrainings: tuple[Pretrainings, ...] = ()
    ablations: tuple[Annotated[Ablations, BeforeValidator(_group_of)], ...] = ()
    references: tuple[References, ...] = ()
    probes: tuple[Cells, ...] = ()
    set: tuple[str, ...] = ()
    checkpoints: dict[str, Path] = Field(default_factory=dict)
    threads: PositiveInt | None = None
    at_once: PositiveInt = 1
    seconds: dict[str, dict[str, float]] = Field(default_factory=dict)
    results: Path | None = None
    show: str | None = None

    def with_seeds(self, seeds: tuple[int, ...]) -> Plan:
        """The plan with these seeds for all of its runs."""
        groups = {
            kind: tuple(each.model_copy(update={"seeds": None}) for each in getattr(self, kind)) for kind in GROUPS
        }
        return self.model_copy(update={"seeds": seeds, **groups})


def read_plan(name: str) -> Plan:
    """A plan by its name, or from a file that ends in .yaml.

    Raises:
        UserError: there is none, or it is not as it has to be.
    """
    path = Path(name) if name.endswith(".yaml") else file_of("plans", name)
    if path is None:
        known = names("plans")
        close = difflib.get_close_matches(name, known, n=1)
        remedy = f"did you mean {close[0]!r}?" if close else f"choose from {', '.join(known)}, or give FILE.yaml"
        raise UserError(f"plan {name}", "no such plan", remedy)
    try:
        facts = read_yaml(path)
    except UNREADABLE as error:
        raise UserError(path, f"not a readable YAML file ({error})", "fix it") from error
    if not isinstance(facts, dict):
        raise UserError(path, "holds no settings by name", "see docs/plan.md")
    try:
        return Plan.model_validate({"title": path.stem} | facts | {"name": path.stem})
    except ValidationError as error:
        raise _refusal(path, error) from error


def _refusal(path: Path, error: ValidationError) -> UserError:
    """The first thing that is wrong with a plan."""
    every: list[Any] = list(error.errors())
    # A name that is wrong may be another one that is missing.
    first = next((each for each in every if each["type"] == "extra_forbidden"), every[0])
    place = ".".join(map(str, first["loc"]))
    if first["type"] == "extra_forbidden":
        last = str(first["loc"][-1])
        kinds = (Plan, Cells, World, References, Pretrainings, Ablations, Start)
        known = [field for group in kinds for field in group.model_fields]
        close = difflib.get_close_matches(last, known, n=1)
        remedy = f"did you mean {close[0]!r}?" if close else "remove it"
        if last in known:
            remedy = "it belongs elsewhere in a plan, see docs/plan.md"
        return UserError(f"{path}, {place}", "no such setting", remedy)
    return UserError(f"{path}, {place}", first["msg"].removeprefix("Input "), "see docs/plan.md")

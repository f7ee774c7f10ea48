"""What a reproduction consists of: its facts from configs/reproductions, and the pieces that follow from them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tespec.core.errors import UserError
from tespec.core.paths import CONFIGS, RESULTS
from tespec.core.settings import build

PRETRAINING, EVALUATION, REFERENCE = "pretraining", "evaluation", "reference"
ABLATED = "tespec"  # the method that ablations are about


@dataclass(frozen=True)
class Rows:
    """Rows of the tables: every one of the methods with every one of the architectures on every one of the tasks."""

    methods: tuple[str, ...]
    architectures: tuple[str, ...]
    tasks: tuple[str, ...]


@dataclass(frozen=True)
class Reproduction:
    """The facts of one size.

    Attributes:
        name: of the size.
        title: in words.
        world: `size` and `seed` of the sample world.
        profile: whose settings all runs have.
        seeds: of the runs.
        rows: of the three comparison tables.
        ablations: names of the tables.
        references: "frame" (upper reference) and "prior" (floor).
        tasks_of_references: what they are made for.
        processes: how many runs at once where nothing else is said.
        seconds: what one run took where it was measured, by kind and method or by kind and task; `machine` names it.
    """

    name: str
    title: str
    world: dict[str, Any]
    profile: str
    seeds: Any
    rows: tuple[Rows, ...]
    ablations: tuple[str, ...]
    references: tuple[str, ...]
    tasks_of_references: tuple[str, ...]
    processes: int
    seconds: dict[str, Any]

    @property
    def results(self) -> Path:
        """Folder of its records, tables and pictures."""
        return RESULTS / f"sample-{self.name}"


@dataclass(frozen=True, order=True)
class Piece:
    """One run: a pre-training, an evaluation or a reference; `changes` are those to the pre-training of its weights."""

    kind: str
    method: str
    task: str
    arch: str
    seed: int
    changes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """For people and for files."""
        parts = [self.kind, self.method, self.task, self.arch, *self.changes, f"s{self.seed}"]
        return re.sub(r"[^A-Za-z0-9.=_-]+", "_", "-".join(filter(None, parts)))

    def before(self) -> Piece:
        """The pre-training that it starts from."""
        return Piece(PRETRAINING, self.method, "", "", self.seed, self.changes)


def sizes() -> list[str]:
    """Names of the reproductions there are."""
    return sorted(path.stem for path in (CONFIGS / "reproductions").glob("*.yaml"))


def read_reproduction(size: str) -> Reproduction:
    """The facts of a size.

    Raises:
        UserError: there is no such size, or the file is not as it has to be.
    """
    path = CONFIGS / "reproductions" / f"{size}.yaml"
    if size not in sizes():
        raise UserError(f"--size {size}", "no such size", f"choose from {', '.join(sizes())}")
    try:
        facts = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise UserError(path, f"not a readable YAML file ({type(error).__name__})", "mend or restore it") from error
    if not isinstance(facts, Mapping):
        raise UserError(path, "holds no settings by name", "mend or restore it")
    found = build(Reproduction, facts, f"reproduction {size}")
    if not isinstance(found.seeds, list) or not found.seeds or not all(type(seed) is int for seed in found.seeds):
        raise UserError(path, "seeds are no whole numbers", "write seeds: [0, 1, 2]")
    if set(found.world) != {"size", "seed"}:
        raise UserError(path, "the world needs a size and a seed", "write world: {size: small, seed: 0}")
    return found


def pieces(reproduction: Reproduction) -> list[Piece]:
    """All evaluations and references, each once: rows of the tables, rows of the ablations, references.

    Raises:
        UserError: a method without this architecture or without a way to its weights, or an unknown name.
    """
    from tespec.comparison.ablations import read_ablation
    from tespec.core.config import as_facts, pretraining_settings
    from tespec.pretraining.method import find_method

    found: dict[Piece, None] = {}
    for rows in reproduction.rows:
        for name in rows.methods:
            method = find_method(name)
            if method.recipe is None and method.pretraining_data != "-":
                raise UserError(f"reproduction {reproduction.name}, {name}", "has no recipe here", "leave it out")
            for arch in rows.architectures:
                method.require(name, arch)
                for task in rows.tasks:
                    found |= dict.fromkeys(Piece(EVALUATION, name, task, arch, seed) for seed in reproduction.seeds)
    default = as_facts(pretraining_settings(ABLATED, reproduction.profile))
    for table in reproduction.ablations:
        ablation = read_ablation(table)
        for row in ablation.rows:
            changes = tuple(row.changes(default))
            found |= dict.fromkeys(
                Piece(EVALUATION, ABLATED, ablation.task, "recurrent", seed, changes) for seed in reproduction.seeds
            )
    for name in reproduction.references:
        # What is counted has no seed.
        seeds = reproduction.seeds if name == "frame" else reproduction.seeds[:1]
        found |= dict.fromkeys(
            Piece(REFERENCE, name, task, "feedforward", seed)
            for task in reproduction.tasks_of_references
            for seed in seeds
        )
    return list(found)


def pretrainings(needed: list[Piece]) -> list[Piece]:
    """Pre-trainings that evaluations start from, each once."""
    return list(dict.fromkeys(piece.before() for piece in needed if is_pretrained(piece)))


def is_pretrained(piece: Piece) -> bool:
    """Whether its weights are made by a pre-training."""
    from tespec.pretraining.method import find_method

    return piece.kind == EVALUATION and find_method(piece.method).recipe is not None

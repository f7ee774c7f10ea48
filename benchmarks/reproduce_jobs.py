"""Pieces of a reproduction as command lines, in the order in which they are best begun."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.reproduce_states import recipe_behind, seconds_of
from benchmarks.reproduction import PRETRAINING, REFERENCE, Piece, Reproduction

if TYPE_CHECKING:
    from tespec.comparison.records import Record

HERE = Path(__file__).parent
UNKNOWN = 60.0  # s of a piece that nothing is known of


def in_order(jobs: Sequence[Piece], reproduction: Reproduction, records: Sequence[Record]) -> list[Piece]:
    """Those first that the most time hangs on: a pre-training counts with the longest run that waits for it."""
    took = {piece: seconds_of(piece, reproduction, records) or UNKNOWN for piece in jobs}
    longest: dict[Piece, float] = {}
    for piece in jobs:
        if piece.kind != PRETRAINING:
            longest[piece.before()] = max(longest.get(piece.before(), 0.0), took[piece])
    return sorted(jobs, key=lambda piece: (-took[piece] - longest.get(piece, 0.0), piece))


def commands(
    jobs: Sequence[Piece],
    reproduction: Reproduction,
    world: Path,
    results: Path,
    runs: Path,
    accepted: Sequence[str] = (),
) -> dict[Piece, list[str]]:
    """What runs each piece, after the interpreter."""
    where = ["--results", str(results), "--runs", str(runs), "--resume"]
    where += [part for code in accepted for part in ("--accept-code", code)]
    return {piece: [*_command(piece, reproduction, world), *where] for piece in jobs}


def _command(piece: Piece, reproduction: Reproduction, world: Path) -> list[str]:
    how = ["--profile", reproduction.profile, "--seed", str(piece.seed)]
    if piece.kind == PRETRAINING:
        recipe = recipe_behind(piece, reproduction)
        assert recipe is not None
        changes = [part for change in piece.changes for part in ("--set", change)]
        data = _data(str(recipe["dataset"]), world)
        return [str(HERE / "pretrain.py"), "--method", piece.method, *data, *changes, *how]
    data = _data(piece.task, world)
    if piece.kind == REFERENCE:
        return [str(HERE / "reference.py"), piece.method, "--task", piece.task, *data, *how]
    changes = [part for change in piece.changes for part in ("--set", f"pretraining.{change}")]
    method = ["--method", piece.method, "--task", piece.task, "--arch", piece.arch]
    # The report shows the first seed of each row.
    quiet = ["--no-picture"] if piece.changes or piece.seed != min(reproduction.seeds) else []
    return [str(HERE / "run.py"), *method, *data, *changes, *how, *quiet]


def _data(dataset: str, world: Path) -> list[str]:
    """Names the data only where it is not what a run takes by itself, so that commands fit every machine."""
    from tespec.runs.data import given_data
    from tespec.world import world_folder

    return [] if world == world_folder() and given_data(dataset) is None else ["--data", str(world / dataset)]

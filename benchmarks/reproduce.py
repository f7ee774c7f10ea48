"""The whole comparison in a closed world: make it, pre-train, fine-tune, measure, print tables and claims.

python benchmarks/reproduce.py --world sample --size small
python benchmarks/reproduce.py --world sample --size small --dry-run
python benchmarks/reproduce.py --world sample --size small --only dsec scratch tespec --seeds 0
python benchmarks/reproduce.py --world sample --size small --publish   # tables, claims, report and pictures again
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if not __package__:
    import installed  # noqa: F401  # before the harness

from benchmarks.grid_jobs import Job, Places, say, work
from benchmarks.grid_states import codes_of, fingerprint_of
from benchmarks.reproduce_jobs import commands, in_order
from benchmarks.reproduce_publish import publish
from benchmarks.reproduce_states import is_measured, jobs_of, recipe_behind, seconds_of
from benchmarks.reproduction import EVALUATION, PRETRAINING, Piece, Reproduction, pieces, read_reproduction, sizes
from tespec.cli.command import Parser, run
from tespec.core.errors import UserError
from tespec.core.paths import RUNS

if TYPE_CHECKING:
    from tespec.comparison.records import Record

WORLDS = ("sample",)


def parse() -> argparse.Namespace:
    """Read the command line."""
    from tespec.cli.options import add_accept_code, whole_number

    parser = Parser(description=__doc__)
    what = parser.add_argument_group("what")
    what.add_argument("--world", choices=WORLDS, default="sample", help="where it happens (default: sample)")
    what.add_argument("--size", choices=sizes(), required=True, help="facts in configs/reproductions")
    what.add_argument("--seeds", nargs="+", type=whole_number, metavar="N", help="these alone (default: all)")
    what.add_argument("--only", nargs="+", metavar="NAME", help="runs of these tasks and methods alone")
    how = parser.add_argument_group("how and where")
    how.add_argument("--processes", type=whole_number, help="runs at once (default: as the size says)")
    how.add_argument("--gpus", nargs="+", metavar="N", help="GPUs; a number given twice has two runs at once")
    how.add_argument("--results", type=Path, help="folder of records (default: results/sample-SIZE)")
    how.add_argument("--runs", type=Path, default=RUNS, help="folder of checkpoints, weights and logs")
    add_accept_code(how)
    how.add_argument("--dry-run", action="store_true", help="print what is missing and what it takes; run nothing")
    how.add_argument("--publish", action="store_true", help="run nothing; write tables, claims, report, pictures, docs")
    options = parser.parse_args()
    if options.publish and options.dry_run:
        parser.error("--publish writes and --dry-run does not")
    return options


def main() -> int:
    """Run what is missing, then print and write what came out; 1 if a run failed."""
    options = parse()
    from tespec.comparison.cells import of_other_code
    from tespec.comparison.records import read_records
    from tespec.core.registry import register_methods

    register_methods()
    reproduction = read_reproduction(options.size)
    results = options.results or reproduction.results
    chosen = choose(pieces(reproduction), reproduction, options)
    if options.publish:
        return publish(reproduction, results, documented=True)
    records, problems = read_records(results / "runs")
    for problem in problems:
        say(f"left out: {problem}")
    world = made_world(reproduction, chosen, options.dry_run)
    data = {} if world is None or not records else fingerprints(reproduction, chosen, world)
    methods = {piece.method if piece.kind == EVALUATION else "scratch" for piece in chosen}
    codes = codes_of(methods, options.accept_code)
    missing = [piece for piece in chosen if not is_measured(piece, reproduction, records, data, codes)]
    if line := of_other_code(records, codes):
        print(line)
    jobs = in_order(jobs_of(missing), reproduction, records)
    processes = len(options.gpus) if options.gpus else options.processes or reproduction.processes
    show(reproduction, chosen, jobs, records, processes)
    if options.dry_run:
        return 0
    failed: dict[str, str] = {}
    if jobs and world is not None:
        failed = carry_out(jobs, reproduction, world, results, processes, options)
    code = publish(reproduction, results)
    for name, reason in failed.items():
        print(f"failed: {name}: {reason}")
    return 1 if failed else code


def choose(every: Sequence[Piece], reproduction: Reproduction, options: argparse.Namespace) -> list[Piece]:
    """The pieces asked for.

    Raises:
        UserError: a name or a seed that none has, or nothing left.
    """
    tasks, methods = {piece.task for piece in every}, {piece.method for piece in every}
    for name in options.only or ():
        if name not in tasks | methods:
            raise UserError(
                f"--only {name}", "no such task or method", f"choose from {', '.join(sorted(tasks | methods))}"
            )
    for seed in options.seeds or ():
        if seed not in reproduction.seeds:
            known = ", ".join(map(str, reproduction.seeds))
            raise UserError(f"--seeds {seed}", "is not part of this size", f"choose from {known}")
    wanted = set(options.only or ())
    chosen = [
        piece
        for piece in every
        if piece.seed in (options.seeds or reproduction.seeds)
        and (not wanted & tasks or piece.task in wanted)
        and (not wanted & methods or piece.method in wanted)
    ]
    if not chosen:
        raise UserError("--only and --seeds", "leave nothing", "ask for others")
    return chosen


def made_world(reproduction: Reproduction, chosen: Sequence[Piece], dry: bool) -> Path | None:
    """Folder of the world with all that the pieces need, made where it is missing; None for a dry run without it."""
    from tespec.core.progress import progress
    from tespec.world import make_world, world_folder

    size, seed = str(reproduction.world["size"]), int(reproduction.world["seed"])
    datasets = needed_data(reproduction, chosen)
    if dry:
        folder = world_folder(size, seed)
        return folder if all((folder / name).is_dir() for name in datasets) else None
    with progress(f"making the sample world, size {size}", "recordings") as advance:
        return make_world(size, seed, progress=lambda done, total: advance(done, total, ""), datasets=datasets)


def needed_data(reproduction: Reproduction, chosen: Sequence[Piece]) -> list[str]:
    """Data sets of the tasks and of the pre-trainings."""
    recipes = [recipe_behind(piece, reproduction) for piece in chosen]
    return sorted({piece.task for piece in chosen} | {str(recipe["dataset"]) for recipe in recipes if recipe})


def fingerprints(reproduction: Reproduction, chosen: Sequence[Piece], world: Path) -> dict[str, str]:
    """Fingerprint of each task's data, so that records of another world do not count."""
    from tespec.runs.data import Data, settings_of

    found = {}
    for name in sorted({piece.task for piece in chosen}):
        data = Data(world / name, "sample")
        found[name] = fingerprint_of(settings_of(data, name, "feedforward", reproduction.profile), data.root)
    return found


def show(
    reproduction: Reproduction, chosen: Sequence[Piece], jobs: Sequence[Piece], records: Sequence[Record], at_once: int
) -> None:
    """Print what there is to do and how long it takes."""
    missing = [piece for piece in jobs if piece.kind != PRETRAINING]
    counts = f"{len(chosen) - len(missing)} of {len(chosen)} runs have a record"
    print(f"{reproduction.title}: {counts}; {len(missing)} to do, after {len(jobs) - len(missing)} pre-trainings")
    groups: dict[tuple[str, str, str], list[Piece]] = {}
    for piece in jobs:
        groups.setdefault((piece.kind, piece.task or piece.method, piece.arch), []).append(piece)
    for (kind, name, arch), members in sorted(groups.items()):
        known = [each for each in (seconds_of(piece, reproduction, records) for piece in members) if each is not None]
        took = f"{sum(known) / len(known):6.0f} s each" if known else "    not measured"
        print(f"  {kind:12}{name:10}{arch:12}{len(members):4} runs {took}")
    print(forecast(jobs, reproduction, records, at_once))


def forecast(jobs: Sequence[Piece], reproduction: Reproduction, records: Sequence[Record], at_once: int) -> str:
    """How long jobs will take, in words."""
    seconds = [seconds_of(piece, reproduction, records) for piece in jobs]
    known = [each for each in seconds if each is not None]
    if not jobs:
        return "nothing to do"
    if not known:
        return "no forecast: nothing like it was measured yet"
    hours = sum(known) / len(known) * len(jobs) / at_once / 3600
    return f"about {hours:.1f} h, {at_once} at once"


def carry_out(
    jobs: Sequence[Piece],
    reproduction: Reproduction,
    world: Path,
    results: Path,
    processes: int,
    options: argparse.Namespace,
) -> dict[str, str]:
    """Run the jobs; gives those that failed."""
    from tespec.comparison.records import read_records

    began, total = time.monotonic(), len(jobs)
    by_name = {piece.name: piece for piece in jobs}

    def tell(left: Sequence[str]) -> str:
        known, _ = read_records(results / "runs")
        soon = forecast([by_name[name] for name in left], reproduction, known, processes)
        return f" ({total - len(left)} of {total} after {(time.monotonic() - began) / 60:.0f} min, {soon})"

    called = commands(jobs, reproduction, world, results, options.runs, options.accept_code)
    places = Places(options.runs / f"reproduce-{reproduction.name}", processes, options.gpus or (), tell=tell)
    return work([Job(piece.name, tuple(called[piece]), needs(piece, by_name)) for piece in jobs], places)


def needs(piece: Piece, there: dict[str, Piece]) -> tuple[str, ...]:
    """Names of the jobs that a piece waits for."""
    return (piece.before().name,) if piece.kind == EVALUATION and piece.before().name in there else ()


if __name__ == "__main__":
    sys.exit(run(main))

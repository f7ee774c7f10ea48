"""What is known of the cells of a grid: done, running, failed or missing, and how long the others will take."""

from __future__ import annotations

import argparse
import os
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.grid_matrix import data_of, named_files, pretrainings

if TYPE_CHECKING:
    from tespec.comparison.cells import GridCell
    from tespec.comparison.records import Record
    from tespec.core.settings import Finetuning


def states_of(cells: list[GridCell], options: argparse.Namespace, records: list[Record]) -> dict[GridCell, str]:
    """What is known of each cell: done where there is a record of it by this code, on this data, as it is asked for."""
    from tespec.comparison.cells import DONE, is_done
    from tespec.core.config import as_facts
    from tespec.pretraining.method import find_method
    from tespec.runs.data import settings_of
    from tespec.runs.finetune import with_start

    states = {}
    changed = any(change.startswith("pretraining.") for change in options.set)
    given = named_files(options.checkpoints)
    prints: dict[str, str] = {}
    for cell in cells:
        method, data = find_method(cell.method), data_of(cell.task, options)
        own = [change for change in options.set if not change.startswith("pretraining.")]
        settings = settings_of(data, cell.task, cell.arch, options.profile, own, method.network)
        recipe = [change.removeprefix("pretraining.") for change in options.set if change not in own]
        settings = with_start(settings, method, given.get(cell.method), sample=data.is_sample, changes=recipe)
        config = as_facts(settings)
        # Records do not say which changes their weights were made with: such cells are run, and taken up if complete.
        told = not changed or method.recipe is None
        codes = codes_of([cell.method], options.accept_code)
        done = told and cell.method not in given and is_done(cell, config, records, codes)
        # Data is read only where there is a record that it could belong to.
        if done and cell.task not in prints:
            prints[cell.task] = fingerprint_of(settings, data.root)
        done = done and is_done(cell, config, records, codes, prints[cell.task])
        states[cell] = DONE if done else last_state(cell, options)
    return states


def codes_of(methods: Iterable[str], accepted: Iterable[str]) -> set[str]:
    """Hashes of the code whose records of these methods count."""
    from tespec.comparison.identity import plugin_files, run_code
    from tespec.pretraining.method import find_method

    return {run_code(plugin_files(type(find_method(name)), ())) for name in methods} | set(accepted)


def fingerprint_of(settings: Finetuning, root: Path) -> str:
    """Fingerprint of a task's data in a folder."""
    from tespec.datasets.recording import fingerprint
    from tespec.tasks import build_task

    return fingerprint(*build_task(settings, root).splits)


def last_state(cell: GridCell, options: argparse.Namespace) -> str:
    """State of a cell without a record, by what the last grid left of it."""
    from tespec.comparison.cells import FAILED, MISSING, RUNNING
    from tespec.training.status import read_status

    status = read_status(folder_of(cell, options))
    if status.get("state") == RUNNING and is_alive(status.get("process")):
        return RUNNING
    return FAILED if status.get("state") == FAILED else MISSING


def folder_of(cell: GridCell, options: argparse.Namespace) -> Path:
    """Where the grid keeps the log and the state of a cell."""
    folder: Path = options.runs / "grid" / cell.name
    return folder


def is_alive(process: object) -> bool:
    """Whether there is a process of that number on this machine."""
    if not isinstance(process, int) or process <= 0:
        return False
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def print_states(states: dict[GridCell, str], options: argparse.Namespace, records: list[Record]) -> None:
    """Print the states of the cells, and how long the missing ones will take."""
    from tespec.comparison.cells import DONE, MISSING, expected_seconds, of_other_code

    tasks = sorted({cell.task for cell in states})
    rows = sorted({(cell.method, cell.arch) for cell in states})
    width = 12 if set(states.values()) <= {DONE, MISSING} else 22
    print(f"{'method':14}{'':13}" + "".join(f"{task:>{width}}" for task in tasks))
    for method, arch in rows:
        counts = []
        for task in tasks:
            each = [
                state for cell, state in states.items() if (cell.method, cell.arch, cell.task) == (method, arch, task)
            ]
            others = Counter(state for state in each if state not in (DONE, MISSING))
            said = "".join(f", {count} {state}" for state, count in sorted(others.items()))
            counts.append(f"{sum(state == DONE for state in each)}/{len(each)} done{said}" if each else "-")
        print(f"{method:14}{arch:13}" + "".join(f"{text:>{width}}" for text in counts))
    total = Counter(states.values())
    print(", ".join(f"{count} {state}" for state, count in sorted(total.items())))
    evaluations = [record for record in records if record["kind"] == "evaluation"]
    if line := of_other_code(evaluations, codes_of({cell.method for cell in states}, options.accept_code)):
        print(line)
    missing = [cell for cell, state in states.items() if state != DONE]
    if not missing:
        return
    profile = options.profile or data_of(missing[0].task, options).profile
    jobs = [*missing, *pretrainings(missing, named_files(options.checkpoints))]
    seconds = [expected_seconds(cell, profile, records) for cell in jobs]
    known = [each for each in seconds if each is not None]
    if not known:
        print("no forecast: there is no record yet to judge by (run.py --dry-run measures a cell)")
        return
    hours = sum(known) / len(known) * len(jobs) / options.processes / 3600
    print(f"forecast: {hours:.1f} h for {len(jobs)} runs, {options.processes} at once, by what records like them took")

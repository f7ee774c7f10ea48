"""Compute a record again by its own command, and compare all numbers: `run --reproduce`."""

import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tespec.cli.main import refuse
from tespec.cli.options import by_option
from tespec.comparison.cell import differing, format_changes, name_prefix
from tespec.comparison.records import (
    REPORTED,
    Record,
    find_record,
    read_record,
    read_records,
    write_record,
)
from tespec.core.errors import UserError, one_line
from tespec.runs.setup import Setup

FOLDERS = ("--reproduce", "--results", "--runs")
# options of a record's command that are left out: they write elsewhere
ELSEWHERE = (*FOLDERS, "--track", "--out")
# options that may replace those of a record's command
REPLACEABLE = {
    *("--data", "--checkpoint", "--import", "--backbone", "--device", "--threads", "--workers"),
    *("--check-data", "--overwrite"),
}


def run_again(text: str, setup: Setup, given: Sequence[str]) -> int:
    """Run the command of a record in a folder of its own, compare the numbers, and write both.

    Args:
        text: file of the record, or its name in the results folder, or RESULTS_FOLDER/NAME.
        setup: gives the folders of results and runs.
        given: arguments of the command line, which may replace options of the command.

    Returns:
        Exit code of the command if it failed, else 1 if tables would show other numbers.

    Raises:
        UserError: the record does not exist, or its command is not one of this program or imports
            a file.
    """
    options = [pair for pair in by_option(given) if pair[0] not in ("", *FOLDERS)]
    replaced = {option for option, _ in options}
    wrong = ", ".join(sorted(replaced - REPLACEABLE))
    refuse(bool(wrong), f"--reproduce cannot be combined with {wrong}")
    record = _find(text, setup.results)
    folder = setup.runs / "reproduced" / record.name
    unused = {*ELSEWHERE, *replaced}
    words = [pair for pair in by_option(command_of(record)) if pair[0] not in unused]
    imported = [word.removeprefix("--import") for option, word in words if option == "--import"]
    if imported:
        files = " ".join(imported).strip(" =")
        remedy = f"read it, and repeat with --import {files}"
        raise UserError(record.name, f"its command imports {files}", remedy)
    command = [word for _, word in [*words, *options]]
    command += ["--results", str(folder / "results"), "--runs", str(folder / "runs")]
    print(shlex.join(command), flush=True)
    if code := subprocess.run(command).returncode:
        return code
    records, _ = read_records(folder / "results", {name_prefix(record.cell, record.seed)})
    new = max(records, key=lambda new: new.written)
    equal, lines = compare(record, new)
    print(record.name, *map(one_line, lines), sep="\n")
    written = [write_record(record, setup.results / REPORTED)]
    if find_record(setup.results, new.name) in (None, record):  # else it was computed before
        written.append(write_record(new, setup.results))
    print(f"written: {', '.join(map(str, written))}")
    return 0 if equal else 1


def _find(text: str, results: Path) -> Record:
    path = Path(text)
    if path.is_file():
        return read_record(path)
    folder = results if path.name == text else path.parent
    record = find_record(folder, path.name.removesuffix(".json"))
    if record is None:
        what = "no such record"
        raise UserError(f"--reproduce {text}", what, "give its file, or RESULTS_FOLDER/NAME")
    return record


def command_of(record: Record) -> list[str]:
    """Make the command that repeats a record here, with as many processes.

    The record may be sent by others: only the options of its command are used.

    Raises:
        UserError: it is not `tespec run` or `tespec pretrain`.
    """
    command = [sys.executable, "-m"]
    program = "tespec"
    processes = record.environment.model_dump().get("processes", 1)
    if processes != 1:
        command += ["torch.distributed.run", "--nproc-per-node", str(processes), "-m"]
        program = "tespec.cli"
    try:
        words = shlex.split(record.command.partition(f"{program} ")[2])
    except ValueError:  # a quote without its end
        words = []
    if words[:1] not in (["run"], ["pretrain"]):
        what = f"its command is not `tespec run` or `tespec pretrain`: {record.command!r}"
        raise UserError(record.name, what, "compute it in another way")
    return [*command, "tespec.cli", *words]


def compare(old: Record, new: Record) -> tuple[bool, list[str]]:
    """Compare the numbers of two records, and what they were computed from.

    Returns:
        Whether tables show the same numbers for both, and lines that describe the differences.
    """
    from tespec.comparison.tables import digits_of  # imports pandas

    lines = [f"{'metric':24} {'record':>12} {'here':>12} {'difference':>12}"]
    equal = True
    for metric in {**old.metrics, **new.metrics}:
        first = old.metrics.get(metric)
        second = new.metrics.get(metric)
        unit = old.scores[metric].unit if metric in old.scores else ""
        digits = digits_of(unit, first or 0.0)
        texts = ["nan" if value is None else f"{value:{digits}}" for value in (first, second)]
        equal &= texts[0] == texts[1]
        if first is not None and second is not None:
            texts.append(f"{second - first:+{digits}}")
        lines.append(f"{metric:24} {' '.join(f'{text:>12}' for text in texts)}")
    parts = {"groups", "recordings", "classes"}
    changed = differing(old.model_dump(include=parts), new.model_dump(include=parts))
    lines.append(f"numbers of groups, recordings and classes that differ: {len(changed)}")
    origins = {"cell", "data_fingerprint", "start_sha256", "weights", "config", "environment"}
    changed = differing(old.model_dump(include=origins), new.model_dump(include=origins))
    changed.pop("config.deviations", None)  # prose, which may be reworded
    lines += [f"other {format_changes({name: pair})}" for name, pair in changed.items()]
    return equal, lines

"""Compute a record again by its own command, and compare all numbers: `run --reproduce`."""

import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tespec.cli.main import app, refuse
from tespec.cli.options import CellOptions, by_option
from tespec.comparison.cell import differing, format_changes, name_prefix
from tespec.comparison.records import (
    REPORTED,
    Record,
    find_record,
    read_record,
    read_records,
    write_record,
)
from tespec.core.errors import UserError, one_line, require
from tespec.core.signals import on_signals
from tespec.plan.execute import stop_with_parent
from tespec.runs.setup import Setup

FOLDERS = ("--reproduce", "--results", "--runs")
# options of a record's command that are left out: they write elsewhere, or start processes
LEFT_OUT = (*FOLDERS, "--track", "--out", "--launcher")
# options that may replace those of a record's command: files, which lie elsewhere here, and how to
# compute
REPLACEABLE = {
    *("--data", "--checkpoint", "--import", "--task", "--profile", "--model", "--score"),
    *("--backbone", "--device", "--threads", "--workers", "--check-data", "--overwrite"),
}


def run_again(text: str, setup: Setup, given: Sequence[str]) -> int:
    """Run the command of a record in a folder of its own, and compare the numbers.

    A record of the results folder is only compared. So is a pre-training: other runs start from its
    weights, which remain in that folder. Otherwise the record is written to the reported ones and
    the new one to the results; neither replaces a record there.

    Args:
        text: file of the record, or its name in the results folder, or RESULTS_FOLDER/NAME.
        setup: gives the folders of results and runs.
        given: arguments of the command line, which may replace options of the command.

    Returns:
        Exit code of the command if it failed, else 1 if tables would show other numbers.

    Raises:
        UserError: the record does not exist, or its command is not one of this program, imports
            a file or computes another run.
    """
    options = [pair for pair in by_option(given) if pair[0] not in ("", *FOLDERS)]
    # A setting that names a file of weights is added: the last value of a setting counts.
    replaced = {option for option, word in options if word != "--set" and "_weights=" not in word}
    wrong = ", ".join(sorted(replaced - REPLACEABLE))
    refuse(bool(wrong), f"--reproduce cannot be combined with {wrong}")
    record = _find(text, setup.results)
    folder = setup.runs / "reproduced" / record.name
    words = [pair for pair in by_option(words_of(record)) if pair[0] not in {*LEFT_OUT, *replaced}]
    if imported := " ".join(word for option, word in words if option == "--import"):
        raise UserError(
            record.name, f"its command has {imported}", "read this file, and repeat with it"
        )
    arguments = [word for _, word in [*words, *options]]
    require_same_run(record, arguments)
    arguments += ["--results", str(folder / "results"), "--runs", str(folder / "runs")]
    start = [sys.executable, "-m"]
    processes = record.environment.processes
    if processes != 1:
        start += ["torch.distributed.run", "--nproc-per-node", str(processes), "-m"]
        arguments += ["--launcher", "pytorch"]
    command = [*start, "tespec.cli", *arguments]
    print(one_line(shlex.join(command)), flush=True)
    if code := run_to_end(command):
        return code
    records, _ = read_records(folder / "results", {name_prefix(record.cell, record.seed)})
    require(records, record.name, "its command computed another run", f"see {folder}")
    new = max(records, key=lambda new: new.written)
    equal, lines = compare(record, new)
    print(*map(one_line, (record.name, *lines)), f"record and weights: {folder}", sep="\n")
    if record.cell.kind != "pretraining" and find_record(setup.results, record.name) != record:
        for copy, results in ((record, setup.results / REPORTED), (new, setup.results)):
            if find_record(results, copy.name) is None:
                print(f"written: {write_record(copy, results)}")
    return 0 if equal else 1


def _find(text: str, results: Path) -> Record:
    path = Path(text)
    if path.is_file():
        return read_record(path)
    folder = results if path.name == text else path.parent
    record = find_record(folder, path.name.removesuffix(".json"))
    if record is None:
        raise UserError(
            f"--reproduce {text}", "no such record", "give its file, or RESULTS_FOLDER/NAME"
        )
    return record


def words_of(record: Record) -> list[str]:
    """Arguments of `tespec` in a record's command, which may have been started by a launcher.

    The record may be sent by others: only the options of its command are used.

    Raises:
        UserError: it is not `tespec run` or `tespec pretrain`.
    """
    try:
        words = shlex.split(record.command)
        arguments = words[1:] if words[:1] == ["tespec"] else words[words.index("tespec.cli") + 1 :]
    except ValueError:  # a quote without its end, or another program
        arguments = []
    require(
        arguments[:1] in (["run"], ["pretrain"]),
        record.name,
        f"its command is not `tespec run` or `tespec pretrain`: {record.command!r}",
        "compute it in another way",
    )
    return arguments


def require_same_run(record: Record, arguments: Sequence[str]) -> None:
    """Refuse a command that computes another run than the record's.

    Args:
        record: the record.
        arguments: of `tespec`.

    Raises:
        CycloptsError: an option does not exist or has no such value.
        UserError: names the facts of the other run.
    """
    _, bound, _ = app.parse_args(arguments, exit_on_error=False, print_error=False)
    bound.apply_defaults()
    given = bound.arguments
    cell = given.get("cell", CellOptions())
    facts: dict[str, object] = {}
    if "training" in given:  # of `pretrain`, which also trains a network that its method needs
        facts = {
            "kind": "pretraining",
            "profile": given["training"].profile,
            "seed": given["seed"],
        }
    elif record.cell.kind != "pretraining" and (cell.method or cell.reference):
        facts = {
            "method": cell.method or cell.reference,
            "task": cell.task,
            "arch": "feedforward" if cell.reference == "prior" else cell.arch,
            "profile": cell.training.profile,
            "seed": cell.seeds[0],
        }
    recorded = {**vars(record.cell), "seed": record.seed}
    wrong = [f"{name} {fact}" for name, fact in facts.items() if fact not in (None, recorded[name])]
    require(
        not wrong,
        record.name,
        f"its command computes {', '.join(wrong)}",
        "compute it in another way",
    )


def run_to_end(command: Sequence[str]) -> int:
    """Run a command to its end; signals that stop a run are passed on to it, so that it saves.

    Args:
        command: program and arguments.

    Returns:
        Its exit code; 128 + N if signal N ended it.
    """
    # In a new session, Ctrl-C reaches only this process, so the command gets it once.
    process = subprocess.Popen(command, start_new_session=True, preexec_fn=stop_with_parent)

    def pass_on(number: int, _: object) -> None:
        # SIGTERM stops a run as SIGUSR1 does, which torchrun does not pass on to its processes.
        process.send_signal(signal.SIGINT if number == signal.SIGINT else signal.SIGTERM)

    with on_signals((signal.SIGINT, signal.SIGTERM, signal.SIGUSR1), pass_on):
        code = process.wait()
    return code if code >= 0 else 128 - code


def compare(old: Record, new: Record) -> tuple[bool, list[str]]:
    """Compare the numbers of two records, and what they were computed from.

    Returns:
        Whether tables show the same numbers for both, and lines that describe the differences.
    """
    from tespec.comparison.tables import digits_of  # imports pandas

    lines = [f"{'metric':24} {'record':>12} {'here':>12} {'difference':>12}"]
    equal = True
    for metric in {**old.metrics, **new.metrics}:
        first, second = (record.metrics.get(metric) for record in (old, new))
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

"""Look after data sets: check them, pack them, look at them.

python benchmarks/data.py check dsec /data/dsec             # every file and label; exit code 2 if something is wrong
python benchmarks/data.py check gen1 /data/gen1 --out gen1.csv
python benchmarks/data.py prepare 1mpx /data/1mpx           # pack events beside their files, for fast reading
python benchmarks/data.py prepare recordings /data/own      # recordings of any kind, for pre-training
python benchmarks/data.py preview dsec /data/dsec           # a picture: events, histogram, intensity, labels
python benchmarks/data.py preview recordings drive.raw --sensor 640x480 --at 1.1 2 --high-pass
python benchmarks/data.py download-guide mvsec              # where to get it, licence, size, layout
"""

from __future__ import annotations

import argparse
import inspect
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tespec.cli.command import Parser
from tespec.cli.options import add_own, add_sensor, load_plugins, positive
from tespec.core.errors import UserError
from tespec.core.settings import parse_size

if TYPE_CHECKING:
    from tespec.core.settings import Finetuning, Size
    from tespec.datasets.base import LabelledDataset

RECORDINGS = "recordings"  # in place of a data set: recordings of any kind, without labels
WRONG = 2  # exit code where something was found wrong or left out
NORM_EVENTS = 5000.0  # N of Eq. 7, as the paper sets it
RULE = "edges"  # of histograms of recordings that belong to no data set


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = Parser(verb="data", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, verb, what in (
        ("check", check, "read every file and label, say what they hold and what is wrong"),
        ("prepare", prepare, "pack events for fast reading"),
        ("preview", preview, "draw events, histogram, intensity and labels"),
        ("download-guide", guide, "where to get a data set, its licence, size and layout"),
    ):
        command = commands.add_parser(name, help=what, description=what)
        command.set_defaults(verb=verb)
        command.add_argument("dataset", metavar="DATASET", help="gen1, 1mpx, dsec, ddd17 or mvsec; or recordings, for "
                             "a file or folder of any kind")  # fmt: skip
        add_own(command)
        if name == "download-guide":
            continue
        command.add_argument("path", type=Path, metavar="PATH", help="folder of the data set, or a recording")
        command.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="change a setting, for "
                             "example protocol.labels=ess; repeatable")  # fmt: skip
        add_sensor(command)
        if name == "preview":
            command.add_argument("--out", type=Path, metavar="FILE", help="the PNG (default: preview-<dataset>.png, "
                                 "or -2 and so on where that is there)")  # fmt: skip
            command.add_argument("--split", default="test", help="which recordings (default: test)")
            command.add_argument("--count", type=positive, default=3, help="moments to show (default 3)")
            command.add_argument("--at", type=float, nargs="+", metavar="S", help="these moments of the first "
                                 "recording instead, in s since its first event")  # fmt: skip
            command.add_argument("--high-pass", action="store_true", help="intensity of Eq. 6 beside that of Eq. 7")
            command.add_argument("--norm-events", type=above_zero, default=NORM_EVENTS, metavar="N",
                                 help="N of Eq. 7; less for bins of fewer events (default 5000, for 1Mpx)")  # fmt: skip
            continue
        command.add_argument("--processes", type=positive, default=1, help="recordings at once (default 1)")
        if name == "check":
            command.add_argument("--quick", action="store_true", help="a few labels, and no packed events")
            command.add_argument("--out", type=Path, metavar="FILE", help="write all figures as CSV too")
        else:
            command.add_argument("--skip-damaged", action="store_true",
                                 help="name recordings that cannot be read, and go on")  # fmt: skip
    return parser.parse_args(arguments)


def above_zero(text: str) -> float:
    """A finite number above 0."""
    number = float(text)
    if not 0 < number < float("inf"):
        raise ValueError("not above 0")
    return number


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line says; returns the exit code."""
    options = parse(arguments)
    load_plugins(options, only_given=True)
    code: int = options.verb(options)
    return code


def find_dataset(options: argparse.Namespace) -> LabelledDataset:
    """The data set, or the recordings of any kind, in the path given."""
    from tespec.datasets.folder import EventFolder

    if options.dataset != RECORDINGS:
        return asked_for(options)[1]
    return EventFolder(options.path, sensor_given(options))


def sensor_given(options: argparse.Namespace) -> Size | None:
    """The size of the sensor as the command line has it, of recordings that belong to no data set.

    Raises:
        UserError: another setting is changed, or this is no size.
    """
    sensor = None
    for change in options.set:
        key, _, value = change.partition("=")
        if key != "sensor_px":
            raise UserError(f"--set {change}", f"{RECORDINGS} have no such setting", "leave it out")
        sensor = parse_size(value)
    return sensor


def asked_for(options: argparse.Namespace) -> tuple[Finetuning, LabelledDataset]:
    """The data set, read by the protocol for recurrent models of the profile that fits it."""
    from tespec.runs.data import find_data, settings_of
    from tespec.tasks import import_tasks
    from tespec.tasks.base import open_dataset

    import_tasks()
    data = find_data(options.dataset, options.path)
    settings = settings_of(data, options.dataset, "recurrent", None, options.set)
    return settings, open_dataset(settings, data.root)


def check(options: argparse.Namespace) -> int:
    """Say what the data set holds and what is wrong with it."""
    from tespec.core.files import whole_file
    from tespec.core.progress import progress
    from tespec.datasets import check as report

    dataset, found = find_dataset(options), []
    count = sum(len(dataset.names(split)) for split in dataset.splits)
    with progress("checking", "recordings") as advance:
        for each in report.check(dataset, quick=options.quick, processes=options.processes):
            found.append(each)
            advance(len(found), count, each.name)
    print(f"{dataset.title} in {dataset.root}")
    for name, text in dataset.describe().items():
        print(f"{name}: {text}")
    print(f"\n{report.table(found)}\n")
    for title, lines in (("classes", report.class_shares(found)), ("note", report.notes(found))):
        for line in lines:
            print(f"{title}: {line}")
    needed = sum(each.facts.get("events_packed_bytes", 0) for each in found)
    free = shutil.disk_usage(dataset.root).free
    print(f"disk: {report.bytes_in_words(needed)} needed by `prepare`, {report.bytes_in_words(free)} free")
    if options.out:
        with whole_file(options.out) as unfinished:
            report.frame(found).to_csv(unfinished, index=False)
        print(f"written: {options.out}")
    problems = report.problems(found)
    for problem in problems:
        print(f"error: {problem}")
    if problems:
        print(f"{counted(len(problems), 'problem')} in {counted(len(found), 'recording')}")
        return WRONG
    labels = sum(each.facts["labels_count"] for each in found)
    print(f"fine: {counted(len(found), 'recording')}, {counted(labels, 'label')}")
    return 0


def counted(count: int, what: str) -> str:
    """A number of things, in words."""
    return f"{count:,} {what}" + ("" if count == 1 else "s")


def prepare(options: argparse.Namespace) -> int:
    """Pack every recording, beside its file."""
    from tespec.datasets.prepare import pack_missing
    from tespec.datasets.sources import EventSource

    dataset = find_dataset(options)
    sources = [files.source for split in dataset.splits for files in dataset.files(split)]
    if not any(isinstance(source, EventSource) for source in sources):
        raise UserError(dataset.root, "holds histograms, which are read as they are", "leave it as it is")
    left_out = pack_missing(sources, beside=True, processes=options.processes, skip_damaged=options.skip_damaged)
    for problem in left_out:
        print(f"left out: {problem}")
    print(f"packed: {counted(len(sources) - len(left_out), 'recording')}")
    return WRONG if left_out else 0


def preview(options: argparse.Namespace) -> int:
    """Draw a few moments."""
    from tespec.datasets.folder import ALL
    from tespec.datasets.preview import choose, draw, moment, windows_at

    if options.dataset == RECORDINGS:
        dataset, rule = find_dataset(options), RULE
        recordings = dataset.recordings(ALL)
    else:
        settings, dataset = asked_for(options)
        recordings, rule = dataset.recordings(options.split), settings.rule
    if options.at:
        chosen = [(recordings[0], window) for window in windows_at(recordings[0], options.at)]
    else:
        chosen = choose(recordings, options.count, rule)
    shown = [moment(recording, window, rule, options.norm_events) for recording, window in chosen]
    path = options.out or unused(f"preview-{options.dataset}")
    draw(shown, dataset.classes, path, options.norm_events, options.high_pass)
    print(f"written: {path}")
    return 0


def unused(name: str) -> Path:
    """A PNG of this name, with a number where there is one already."""
    paths = (Path(f"{name}{number}.png") for number in ("", *(f"-{each}" for each in range(2, 10_000))))
    return next(path for path in paths if not path.exists())


def guide(options: argparse.Namespace) -> int:
    """Print where to get a data set."""
    import tespec.datasets  # noqa: F401  # registers them
    from tespec.core.config import dataset_of_task, names
    from tespec.core.registry import DATASETS, find_registered

    if options.dataset not in names("tasks"):
        raise UserError(options.dataset, "no such dataset", f"choose from {', '.join(names('tasks'))}")
    print(inspect.getdoc(find_registered(DATASETS, dataset_of_task(options.dataset), "dataset")))
    print("\nNothing is downloaded: the archives are gated or large, and their owners' pages say how to get them.")
    return 0

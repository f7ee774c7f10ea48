"""Look after datasets: check them, pack them, look at them.

python benchmarks/data.py check dsec /data/dsec             # every file and label; exit code 2 if something is wrong
python benchmarks/data.py prepare 1mpx /data/1mpx           # pack events beside their files, for fast reading
python benchmarks/data.py prepare recordings /data/own      # recordings of any kind, for pre-training
python benchmarks/data.py preview dsec /data/dsec           # a picture: events, histogram, intensity, labels
python benchmarks/data.py preview recordings drive.raw --sensor 640x480
python benchmarks/data.py intensity drive.raw               # Eq. 6 above Eq. 7: busiest moment, then a quiet one
python benchmarks/data.py stats gen1 /data/gen1 --out gen1.csv
python benchmarks/data.py download-guide mvsec              # where to get it, licence, size, layout
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tespec.cli.command import Parser
from tespec.cli.options import add_own, add_sensor, bring_in, positive
from tespec.core.errors import UserError
from tespec.core.settings import parse_size

if TYPE_CHECKING:
    from tespec.core.settings import Finetuning, Size
    from tespec.datasets.base import LabelledDataset
    from tespec.datasets.survey import RecordingFacts
    from tespec.events.spatial import Region

RECORDINGS = "recordings"  # in place of a dataset: recordings of any kind, without labels
WRONG = 2  # exit code of a check that found something
WINDOW_MS = 50.0  # of the moments that are drawn
NORM_EVENTS = 5000.0  # N of Eq. 7, as the paper sets it
RULE = "edges"  # of histograms of recordings that belong to no dataset


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = Parser(verb="data", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, what in (
        ("check", "read every file and label, and say what is wrong"),
        ("prepare", "pack events for fast reading"),
        ("preview", "draw events, histogram, intensity and labels"),
        ("stats", "events, labels and classes of every recording"),
        ("download-guide", "where to get a dataset, its licence, size and layout"),
    ):
        command = commands.add_parser(name, help=what, description=what)
        command.add_argument("dataset", metavar="DATASET", help="gen1, 1mpx, dsec, ddd17 or mvsec; or recordings, for "
                             "a file or folder of any kind")  # fmt: skip
        add_own(command)
        if name == "download-guide":
            continue
        command.add_argument("path", type=Path, metavar="PATH", help="folder of the dataset, or a recording")
        command.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="change a setting, for "
                             "example protocol.labels=ess; repeatable")  # fmt: skip
        add_sensor(command)
        if name in ("check", "stats", "prepare"):
            command.add_argument("--processes", type=positive, default=1, help="recordings at once (default 1)")
        if name in ("check", "stats"):
            command.add_argument(
                "--quick", action="store_true", help="read the ends of recordings and a few labels only"
            )
        if name == "stats":
            command.add_argument("--out", type=Path, metavar="FILE", help="write the figures as CSV")
        if name == "prepare":
            command.add_argument("--out", type=Path, metavar="DIR", help="make a packed copy of the dataset there "
                                 "(default: pack beside the files)")  # fmt: skip
            command.add_argument("--skip-damaged", action="store_true",
                                 help="name recordings that cannot be read, and go on")  # fmt: skip
        if name == "preview":
            command.add_argument("--out", type=Path, metavar="FILE", help="the PNG (default: preview-<dataset>.png, "
                                 "or -2 and so on where that is there)")  # fmt: skip
            command.add_argument("--split", default="test", help="which recordings (default: test)")
            command.add_argument("--count", type=positive, default=3, help="moments to show (default 3)")
    moments = commands.add_parser("intensity", help="draw the intensity of Eq. 6 above that of Eq. 7")
    moments.add_argument("recording", type=Path, metavar="RECORDING", help="a recording of any kind that can be read")
    moments.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="sensor_px=WIDTHxHEIGHT, the "
                         "only setting of such recordings")  # fmt: skip
    add_sensor(moments)
    moments.add_argument("--at", type=float, nargs="+", metavar="S", help="moments, in s since the first event "
                         "(default: the busiest, and the quietest after it)")  # fmt: skip
    moments.add_argument("--crop", type=int, nargs=4, metavar=("LEFT", "TOP", "WIDTH", "HEIGHT"),
                         help="part of the image that is drawn, in px (default: all)")  # fmt: skip
    moments.add_argument("--alpha", type=above_zero, default=5.0, metavar="A", help="decay in 1/s (default 5)")
    moments.add_argument("--norm-events", type=above_zero, default=NORM_EVENTS, metavar="N",
                         help="N of Eq. 7; the paper's 5000 goes with 1Mpx, whose bins of 5 ms hold tens of thousands "
                              "of events (default 5000)")  # fmt: skip
    moments.add_argument("--out", type=Path, metavar="FILE",
                         help="the PNG (default: intensity.png, or -2 and so on where that is there)")  # fmt: skip
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
    commands: dict[str, Callable[[argparse.Namespace], int]] = {
        "check": check,
        "prepare": prepare,
        "preview": preview,
        "intensity": intensity,
        "stats": stats,
        "download-guide": guide,
    }
    if "plugins" in options:
        bring_in(options, only_given=True)
    return commands[options.command](options)


def find_dataset(options: argparse.Namespace) -> LabelledDataset:
    """The dataset, or the recordings of any kind, in the path given."""
    from tespec.datasets.folder import EventFolder

    if options.dataset != RECORDINGS:
        return asked_for(options)[1]
    return EventFolder(options.path, sensor_given(options))


def sensor_given(options: argparse.Namespace) -> Size | None:
    """The size of the sensor as the command line has it, of recordings that belong to no dataset.

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
    """The dataset, read by the protocol for recurrent models of the profile that fits it."""
    from tespec.runs.data import find_data, settings_of
    from tespec.tasks import import_tasks
    from tespec.tasks.base import open_dataset

    import_tasks()
    data = find_data(options.dataset, options.path)
    settings = settings_of(data, options.dataset, "recurrent", None, options.set)
    return settings, open_dataset(settings, data.root)


def look(options: argparse.Namespace) -> tuple[LabelledDataset, list[RecordingFacts]]:
    """Survey the dataset, with progress."""
    from tespec.core.progress import progress
    from tespec.datasets.survey import survey, tasks_of

    dataset = find_dataset(options)
    found, tasks = [], tasks_of(dataset)
    with progress("looking", "recordings") as advance:
        for facts in survey(dataset, quick=options.quick, processes=options.processes):
            found.append(facts)
            advance(len(found), len(tasks), facts.name)
    found.sort(key=lambda facts: tasks.index((facts.split, facts.name)))
    return dataset, found


def check(options: argparse.Namespace) -> int:
    """Say what the dataset holds and what is wrong with it."""
    from tespec.datasets import survey as report

    dataset, found = look(options)
    print_survey(dataset, found)
    print_disk(dataset, found)
    problems = report.problems(found)
    for problem in problems:
        print(f"error: {problem}")
    labels = sum(facts.labels.count for facts in found if facts.labels)
    if problems:
        print(f"{counted(len(problems), 'problem')} in {counted(len(found), 'recording')}")
        return WRONG
    print(f"fine: {counted(len(found), 'recording')}, {counted(labels, 'label')}")
    return 0


def counted(count: int, what: str) -> str:
    """A number of things, in words."""
    return f"{count:,} {what}" + ("" if count == 1 else "s")


def stats(options: argparse.Namespace) -> int:
    """Print, and write, what every recording holds."""
    dataset, found = look(options)
    print_survey(dataset, found)
    if options.out:
        from tespec.datasets.survey import write_csv

        write_csv(found, options.out)
        print(f"written: {options.out}")
    return 0


def print_survey(dataset: LabelledDataset, found: list[RecordingFacts]) -> None:
    """Print the table of recordings, the classes, and what is unusual."""
    from tespec.datasets import survey as report

    print(f"{dataset.title} in {dataset.root}")
    for name, text in dataset.describe().items():
        print(f"{name}: {text}")
    print()
    for line in report.table(found):
        print(line)
    print()
    for title, lines in (
        ("classes", report.classes(found)),
        ("depth in m" if not dataset.classes else "sides of boxes in px", report.extents(found)),
        ("note", list(report.remarks(found))),
    ):
        for line in lines:
            print(f"{title}: {line}")


def print_disk(dataset: LabelledDataset, found: list[RecordingFacts]) -> None:
    """Print what packing takes and what the disk has."""
    import shutil

    from tespec.datasets.survey import bytes_in_words
    from tespec.events.packing import disk_needed

    events = [facts.events for facts in found if facts.events]
    needed = sum(disk_needed(each.count, round(1000 * each.seconds) + 2) for each in events)
    free = shutil.disk_usage(dataset.root).free
    print(f"disk: {bytes_in_words(needed)} needed by `prepare`, {bytes_in_words(free)} free")


def prepare(options: argparse.Namespace) -> int:
    """Pack every recording."""
    from tespec.core.progress import progress
    from tespec.datasets.prepare import packings
    from tespec.datasets.prepare import prepare as pack_all

    dataset = find_dataset(options)
    totals = {packing.name: 0 for packing in packings(dataset, options.out)}
    done = dict.fromkeys(totals, 0)
    with progress("packing", "events") as advance:

        def report(name: str, packed: int, count: int) -> None:
            totals[name], done[name] = count, packed
            known = [count for count in totals.values() if count]
            # Recordings that wait are taken to be as long as those begun are on average.
            expected = sum(known) * len(totals) // len(known)
            advance(sum(done.values()), expected, name)

        manifest = pack_all(dataset, options.out, options.processes, report, options.skip_damaged)
    left_out = json.loads(manifest.read_text()).get("left_out", {})
    for problem in left_out.values():
        print(f"left out: {problem}")
    print(f"packed {counted(len(totals) - len(left_out), 'recording')}; manifest: {manifest}")
    return WRONG if left_out else 0


def preview(options: argparse.Namespace) -> int:
    """Draw a few moments."""
    from tespec.datasets.folder import ALL
    from tespec.datasets.preview import choose, draw, look_at

    if options.dataset == RECORDINGS:
        dataset, rule = find_dataset(options), RULE
        recordings = dataset.recordings(ALL)
    else:
        settings, dataset = asked_for(options)
        recordings, rule = dataset.recordings(options.split), settings.rule
    chosen = choose(recordings, options.count, rule)
    path = options.out or unused(f"preview-{options.dataset}")
    shown = [look_at(recording, place, rule, norm_events=NORM_EVENTS) for recording, place in chosen]
    draw(shown, dataset.classes, path)
    print(f"written: {path}")
    return 0


def unused(name: str) -> Path:
    """A PNG of this name, with a number where there is one already."""
    paths = (Path(f"{name}{number}.png") for number in ("", *(f"-{each}" for each in range(2, 10_000))))
    return next(path for path in paths if not path.exists())


def intensity(options: argparse.Namespace) -> int:
    """Draw the intensity at some moments."""
    from tespec.core.settings import Downsample
    from tespec.datasets.folder import fixed_windows
    from tespec.datasets.preview_intensity import busiest_and_quiet, draw_instants, instants, windows_at

    whole = Downsample(factor=1, keep="all")
    recording = fixed_windows(options.recording, options.recording, WINDOW_MS, whole, sensor_given(options))
    if not len(recording):
        raise UserError(options.recording, f"is shorter than a window of {WINDOW_MS:g} ms", "give a longer one")
    crop = cropped(options.crop, recording.region)
    windows = windows_at(recording, options.at) if options.at else busiest_and_quiet(recording)
    shown = instants(recording, windows, options.alpha, options.norm_events)
    path = options.out or unused("intensity")
    draw_instants(shown, path, options.norm_events, crop)
    print(f"written: {path}")
    return 0


def cropped(crop: list[int] | None, region: Region) -> tuple[slice, slice] | None:
    """Rows and columns of a crop (left, top, width, height).

    Raises:
        UserError: it does not lie inside of the image.
    """
    if crop is None:
        return None
    left, top, width, height = crop
    inside = 0 <= left < left + width <= region.width and 0 <= top < top + height <= region.height
    if not inside:
        what = f"does not lie inside of {region.width}x{region.height} px"
        raise UserError(f"--crop {' '.join(map(str, crop))}", what, "give LEFT TOP WIDTH HEIGHT")
    return slice(top, top + height), slice(left, left + width)


def guide(options: argparse.Namespace) -> int:
    """Print where to get a data set."""
    import tespec.datasets  # noqa: F401  # registers them
    from tespec.core.config import dataset_of_task, names
    from tespec.core.registry import DATASETS, find_registered

    if options.dataset not in names("tasks"):
        raise UserError(options.dataset, "no such dataset", f"choose from {', '.join(names('tasks'))}")
    print(find_registered(DATASETS, dataset_of_task(options.dataset), "dataset").guide())
    print("\nNothing is downloaded: the archives are gated or large, and their owners' pages say how to get them.")
    return 0

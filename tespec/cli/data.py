"""Check, pack and preview data sets."""

from __future__ import annotations

import inspect
import shutil
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from cyclopts.types import PositiveFloat

from tespec.cli.main import FOLDER, MISTAKE, PICTURES, examples, new_app, output, refuse
from tespec.cli.options import Plugins, SettingOptions, Task, Words
from tespec.core.errors import require
from tespec.core.settings import RecordingSettings, parse_size
from tespec.registry import DATASETS, find_registered, import_files
from tespec.runs.setup import PositiveInt

if TYPE_CHECKING:
    from tespec.core.settings import Finetuning
    from tespec.datasets.base import LabelledDataset

# instead of a data set: recordings in any supported format, without labels
RECORDINGS = "recordings"
app = new_app(
    "data",
    "Check, pack and preview data sets.",
    help_epilogue=examples("data check dsec /data/dsec", "data prepare 1mpx /data/1mpx"),
)
Dataset = Annotated[
    str, Task(help="gen1, 1mpx, dsec, ddd17, mvsec, FILE.yaml; or recordings: any event files")
]
DataPath = Annotated[Path, Parameter(help="folder of the data set, or a recording")]
Processes = Annotated[PositiveInt, Parameter(help="recordings processed in parallel")]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class DatasetOptions:
    """Options of opening a data set."""

    settings: SettingOptions = SettingOptions()
    plugins: Plugins = ()

    def open(self, name: str, path: Path) -> tuple[LabelledDataset, Finetuning | None]:
        """Open a data set.

        Args:
            name: of the data set, or "recordings".
            path: its folder, or a recording.

        Returns:
            The data set and the settings of its task; recordings have none.
        """
        import_files(self.plugins)
        sensor = self.settings.sensor
        if name == RECORDINGS:
            from tespec.datasets.folder import EventFolder

            refuse(
                bool(self.settings.changes),
                f"--set changes settings of a data set, but {RECORDINGS} have none",
            )
            return EventFolder(path, parse_size(sensor) if sensor else None), None
        from tespec.runs.data import find_data, settings_of
        from tespec.tasks import import_tasks
        from tespec.tasks.base import open_dataset

        import_tasks()
        data = find_data(name, path).generate()
        settings = settings_of(data, name, "recurrent", None, self.settings.all_changes)
        return open_dataset(settings, data.root), settings


@app.command(
    help_epilogue=examples("data check dsec /data/dsec", "data check recordings drive.raw --quick")
)
def check(
    dataset: Dataset,
    path: DataPath,
    /,
    *,
    quick: Annotated[bool, Parameter(help="read only a few labels; trust packed events")] = False,
    out: Annotated[
        Path | None, output(".csv"), Parameter(help="also write all statistics to a CSV file")
    ] = None,
    processes: Processes = 1,
    options: DatasetOptions = DatasetOptions(),
) -> int:
    """Read every file and label, report statistics and problems (exit code 2 for problems).

    Returns:
        Exit code.
    """
    opened, _ = options.open(dataset, path)
    from tqdm import tqdm

    from tespec.core.files import write_all
    from tespec.core.progress import progress
    from tespec.datasets import check as report

    results: list[Any] = []
    count = sum(len(opened.names(split)) for split in opened.splits)
    with progress("checking", "recordings") as advance:
        for result in report.check(opened, quick=quick, processes=processes):
            results.append(result)
            advance(len(results), count, result.name)
    print(f"{opened.title} in {opened.root}")
    for name, text in opened.describe().items():
        print(f"{name}: {text}")
    print(f"\n{report.table(results)}\n")
    packed = sum(result.facts.get("events_packed_bytes", 0) for result in results)
    free = shutil.disk_usage(opened.root).free
    print(
        f"disk: {tqdm.format_sizeof(packed, 'B')} needed by `prepare`, "
        f"{tqdm.format_sizeof(free, 'B')} free"
    )
    if out:
        write_all({out: report.frame(results).to_csv(index=False)})
        print(f"written: {out}")
    problems = report.problems(results)
    for problem in problems:
        print(f"error: {problem}")
    if problems:
        print(f"{_counted(len(problems), 'problem')} in {_counted(len(results), 'recording')}")
        return MISTAKE
    labels = sum(result.facts["labels_count"] for result in results)
    print(f"no problems: {_counted(len(results), 'recording')}, {_counted(labels, 'label')}")
    return 0


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}" + ("" if count == 1 else "s")


@app.command(
    help_epilogue=examples(
        "data prepare 1mpx /data/1mpx --processes 4", "data prepare recordings drives"
    )
)
def prepare(
    dataset: Dataset,
    path: DataPath,
    /,
    *,
    skip_damaged: Annotated[
        bool, Parameter(help="skip recordings that cannot be read, and list them")
    ] = False,
    processes: Processes = 1,
    options: DatasetOptions = DatasetOptions(),
) -> int:
    """Pack the events of each recording next to its file, for fast reading.

    Returns:
        Exit code: 2 if a recording was skipped.
    """
    opened, _ = options.open(dataset, path)
    from tespec.datasets.sources import EventSource, pack_missing

    sources = [files.source for split in opened.splits for files in opened.files(split)]
    require(
        any(isinstance(source, EventSource) for source in sources),
        opened.root,
        "contains histograms, which need no packing",
        "nothing to do",
    )
    problems = pack_missing(
        sources,
        in_place=True,
        processes=processes,
        initializer=partial(import_files, options.plugins),
        skip_damaged=skip_damaged,
    )
    for problem in problems:
        print(f"skipped: {problem}")
    print(f"packed: {_counted(len(sources) - len(problems), 'recording')}")
    return MISTAKE if problems else 0


@app.command(
    help_epilogue=examples(
        "data preview ddd17 /data/ddd17 --out labels.png",
        "data preview recordings drive.raw --at 1.1 2 --high-pass",
    )
)
def preview(
    dataset: Dataset,
    path: DataPath,
    /,
    *,
    out: Annotated[
        Path,
        output(*PICTURES, FOLDER),
        Parameter(help="picture, or folder of preview-<dataset>.png, numbered if it exists"),
    ] = Path(),
    split: Annotated[str, Parameter(help="split of the recordings")] = "test",
    count: Annotated[PositiveInt, Parameter(help="number of moments to show")] = 3,
    at: Annotated[
        tuple[float, ...],
        Words,
        Parameter(help="moments of the first recording in s since its start"),
    ] = (),
    high_pass: Annotated[
        bool, Parameter(help="show the intensity of Eq. 6 instead of the histogram")
    ] = False,
    norm_events: Annotated[
        PositiveFloat, Parameter(help="N of Eq. 7; lower it for bins with fewer events")
    ] = 5000.0,
    options: DatasetOptions = DatasetOptions(),
) -> None:
    """Draw events, histogram, intensity and labels at a few moments."""
    opened, settings = options.open(dataset, path)
    from tespec.datasets.check import choose, draw, moment, windows_at
    from tespec.datasets.folder import ALL
    from tespec.pictures import draw_label
    from tespec.tasks import find_task

    rule = settings.rule if settings else RecordingSettings.rule
    draw_one = find_task(settings).draw if settings else draw_label

    recordings = opened.recordings(ALL if dataset == RECORDINGS else split)
    first = recordings[0]
    if at:
        windows = [(first, window) for window in windows_at(first, at)]
    else:
        windows = choose(recordings, count, rule)
    moments = [moment(recording, window, rule, norm_events) for recording, window in windows]
    name = f"preview-{Path(dataset).stem}"
    print(f"written: {draw(moments, opened.classes, out, name, norm_events, high_pass, draw_one)}")


@app.command(help_epilogue=examples("data cache", "data cache --empty"))
def cache(
    *, empty: Annotated[bool, Parameter(help="remove all but those that are being packed")] = False
) -> None:
    """List the packed recordings in the cache with last use, size and name, oldest use first."""
    from tespec.events.cache import LIMIT, limit_bytes, list_stores, remove, stores_folder

    stores = list_stores()
    for store in stores:
        last_use = datetime.fromtimestamp(store.last_use)
        print(f"{last_use:%Y-%m-%d %H:%M} {store.bytes / 1e6:12,.1f} MB  {store.path.name}")
        if empty:
            remove(store.path)
    total = sum(store.bytes for store in stores) / 1e9
    print(
        f"{'removed' if empty else 'cached'}: {_counted(len(stores), 'recording')}, {total:,.3f} GB"
    )
    print(f"limit: {limit_bytes() / 1e9:,.3f} GB ({LIMIT}) in {stores_folder()}")


@app.command(
    name="download-guide",
    help_epilogue=examples("data download-guide dsec", "data download-guide 1mpx"),
)
def guide(
    dataset: Annotated[str, Parameter(help="gen1, 1mpx, dsec, ddd17 or mvsec")],
    /,
    *,
    plugins: Plugins = (),
) -> None:
    """Print where to get a data set, its licence, size and layout."""
    import_files(plugins)
    import tespec.datasets  # noqa: F401  # registers the data sets
    from tespec.core.config import dataset_and_splits

    print(inspect.getdoc(find_registered(DATASETS, dataset_and_splits(dataset)[0], "dataset")))
    print(
        "\nNothing is downloaded: the archives are gated or large, and their owners' pages explain "
        "how to get them."
    )

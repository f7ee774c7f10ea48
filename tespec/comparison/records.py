"""Records of results: one JSON file per run with its provenance, named before the run."""

from __future__ import annotations

import gzip
import os
import platform
import re
import subprocess
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from datetime import datetime, timezone
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    WrapValidator,
    model_validator,
)
from pydantic_core import to_json

import tespec
from tespec.comparison.cell import DIGITS, Cell, differences, name_prefix, run_name
from tespec.core.errors import UserError, require
from tespec.core.files import atomic_write, regular_file, write_all
from tespec.core.paths import PACKAGES, REPOSITORY, RESULTS
from tespec.metrics import Score

ARCHIVE = "records.jsonl.gz"  # finished records in one file, one per line
NEW_STEM = "new stem"  # mark of a row
REPORTED = "reported"  # folder of records that others sent, a results folder itself

# Losses that gradient accumulation computes on one micro-batch at a time, not on the full batch.
PER_MICRO_BATCH = "batch normalisation, Dice, contrastive losses and their queues"

REMEDY = "remove it, or run again with --overwrite"
NAME = re.compile(rb'\{"format":\d+,"name":"([^"\\]+)"')  # start of a line of the archive
# cell, seed and pre-training of a run, see `Record.pretraining`
Key = tuple[Cell, int, int | str | None]
Numbers = dict[str, float | None]  # None: the number was not finite
_cells: dict[str, Cell] = {}


def _shared(facts: Any, build: Callable[[Any], Cell]) -> Cell:
    # Thousands of records have few cells: each is validated once.
    text = repr(facts)
    if text not in _cells:
        _cells[text] = build(facts)
    return _cells[text]


class Weights(BaseModel):
    """Weights of a record: the initial ones, or those that a pre-training saved; and more facts."""

    model_config = ConfigDict(frozen=True, allow_inf_nan=False, extra="allow")

    source: str = ""  # name of the file
    sha256: str = ""
    data_fingerprint: str = ""  # of the data that the initial weights learned from
    # of a published file, see `tespec.weights.released.CheckpointFormat`
    seen: dict[str, str] = {}
    doubt: str = ""
    # how a first convolution of other input channels was used, "" if they match
    stem: Literal["", "repeated", "new"] = ""

    @property
    def marks(self) -> list[str]:
        """What readers of a result must know of the initial weights, such as "images seen"."""
        stems = {"repeated": "stem repeated", "new": NEW_STEM}
        words = [f"{kind} seen" for kind in self.seen] + [stems.get(self.stem, ""), self.doubt]
        return [*filter(None, words)]


class Environment(BaseModel):
    """Versions and machine of a run, and more facts."""

    model_config = Weights.model_config

    tespec: str = ""
    revision: str = ""
    modified: bool | None = None  # whether the sources differ from the revision
    python: str = ""
    packages: dict[str, str] = {}
    device: str = ""
    cpu: str = ""
    threads: int | None = None
    processes: Annotated[int, Field(ge=1, le=4096)] = 1  # --reproduce starts as many

    @property
    def machine(self) -> str:
        """GPU, or CPU and number of threads."""
        if self.device not in ("", "cpu"):
            return self.device
        return f"{self.cpu}, {self.threads or '?'} threads"

    @property
    def summary(self) -> str:
        """Machine, torch and revision."""
        torch = self.packages.get("torch", "?")
        return f"{self.machine}, torch {torch}, revision {self.revision[:8] or '?'}"


class Record(BaseModel):
    """Finished run."""

    model_config = ConfigDict(frozen=True, allow_inf_nan=False, extra="forbid")

    format: Literal[5] = 5  # version of the file format
    name: str  # of the file and of the run's folder, see `run_name`
    cell: Annotated[Cell, WrapValidator(_shared)]
    seed: int
    # which pre-training the run starts from: its seed, or the hash of an own file of weights
    pretraining: int | str | None = None
    data_fingerprint: str
    # of the initial backbone weights; of a pre-training, of its upstream checkpoint, or ""
    start_sha256: str = ""
    facts: dict[str, str]  # `TableRow` of the method
    config: dict[str, Any]  # all settings
    weights: Weights = Weights()
    protocol: dict[str, str] = {}  # how the scores are computed
    scores: dict[str, Score] = {}  # the first is the main one
    metrics: Numbers  # overall numbers
    # per group of frames; of a pre-training, feature statistics of each stage
    groups: dict[str, Numbers] = {}
    recordings: dict[str, Numbers] = {}  # main numbers per recording
    classes: Numbers = {}  # score per class
    command: str
    written: AwareDatetime
    environment: Environment
    time: dict[str, float]  # durations in s
    # Trained parameters of the backbone and of the rest, in millions, and time of one window in ms;
    # see `runs.train`.
    cost: dict[str, float] = {}
    # mean losses over intervals of steps
    curve: list[dict[str, float]] = Field(default_factory=list)

    @model_validator(mode="after")
    def _check_name(self) -> Record:
        name = run_name(self.cell, self.seed, self.data_fingerprint, self.start_sha256)
        if self.name != name:
            raise ValueError(f"its content belongs to {name}")
        return self

    @property
    def key(self) -> Key:
        """Cell, seed and pre-training: two records with equal keys answer the same question."""
        return self.cell, self.seed, self.pretraining


def new_record(**fields: Any) -> Record:
    """Create the record of a run that has just finished, from all fields but name and date.

    Numbers may be numpy's; those that are not finite become None.
    """
    identity = ("cell", "seed", "data_fingerprint", "start_sha256")
    name = run_name(*(fields.get(field, "") for field in identity))
    written = datetime.now(timezone.utc).replace(microsecond=0)
    facts = fields | {"name": name, "written": written}
    return _validated(to_json(facts, fallback=_plain, inf_nan_mode="null"), name)


def _plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else str(value)


def write_record(record: Record, results: Path) -> Path:
    """Write a record in one step.

    Args:
        record: of a finished run.
        results: results folder.

    Returns:
        Path of the file, `runs/<name>.json` in the folder.
    """
    path = record_path(results, record.name)
    write_all({path: record.model_dump_json(indent=1) + "\n"})
    return path


def record_path(results: Path, name: str) -> Path:
    """Path of a record's file in a results folder."""
    return results / "runs" / f"{name}.json"


def find_record(results: Path, name: str) -> Record | None:
    """Find a record by its name.

    Args:
        results: results folder.
        name: of the record.

    Returns:
        The record; None if it does not exist.

    Raises:
        UserError: the file is not the record of this name.
    """
    path = record_path(results, name)
    if path.is_file():
        return read_record(path)
    return next((read() for read in _archived(results, name.__eq__)), None)


def read_records(
    results: Path, prefixes: Collection[str] | None = None
) -> tuple[list[Record], list[str]]:
    """Read the records of a results folder.

    Args:
        results: results folder.
        prefixes: by `name_prefix`, of the runs whose records are read; None: of all.

    Returns:
        Records by name, and one line for each file or line that is not a record.

    Raises:
        UserError: the folder is not a results folder.
    """
    problems: list[str] = []
    records = iter_records(results, problems, prefixes)
    return sorted(records, key=lambda record: record.name), problems


def iter_records(
    results: Path,
    problems: list[str],
    prefixes: Collection[str] | None = None,
    *,
    repeated: bool = False,
) -> Iterator[Record]:
    """Yield the records in `runs/*.json`, then those in `records.jsonl.gz`, one at a time.

    Args:
        results: results folder.
        problems: gets one line for each file or line that is not a record.
        prefixes: as in `read_records`.
        repeated: yield also a record of the archive that is in `runs/`.

    Raises:
        UserError: the folder is not a results folder.
    """
    require_results_folder(results)

    def matches(name: str) -> bool:
        return prefixes is None or name[:-DIGITS] in prefixes

    paths = [path for path in (results / "runs").glob("*.json") if matches(path.stem)]
    paths.sort(key=str)  # faster than by parts
    readers: list[Callable[[], Record]] = [partial(read_record, path) for path in paths]
    names = set()
    try:
        readers += _archived(results, matches)
    except UserError as error:
        problems.append(str(error))
    for read in readers:
        try:
            record = read()
        except UserError as error:
            problems.append(str(error))
            continue
        if repeated or record.name not in names:
            names.add(record.name)
            yield record


def similar_records(results: Path, cell: Cell, seed: int) -> list[Record]:
    """Find the records with the same kind, method, task, architecture and seed.

    Returns:
        Records, those whose cells differ from `cell` in the fewest facts first.
    """
    records, _ = read_records(results, {name_prefix(cell, seed)}) if results.is_dir() else ([], [])
    return sorted(records, key=lambda record: len(differences(record.cell, cell)))


def require_results_folder(results: Path) -> None:
    """Check that a folder contains results or is empty.

    Raises:
        UserError: the folder does not exist, or contains only other files.
    """
    if results.resolve() == RESULTS.resolve():
        return
    require(
        results.is_dir(),
        f"--results {results}",
        "no such folder",
        "give a folder that contains runs/",
    )
    # Hidden files may be left by a process that was killed.
    names = {path.name for path in results.iterdir() if not path.name.startswith(".")}
    others = names - {"tables", "pictures", "report.html"}
    require(
        not others or names & {"runs", ARCHIVE, REPORTED},
        f"--results {results}",
        "is not a results folder",
        "give an empty one, or one with runs/",
    )


def write_archive(records: Iterable[Record], path: Path) -> Path:
    """Write records without loss curves to one file.

    Args:
        records: in the order of the lines.
        path: of the archive, `records.jsonl.gz` in a results folder.

    Returns:
        `path`. Equal records yield equal bytes.
    """
    lines = [record.model_dump_json(exclude={"curve"}) + "\n" for record in records]
    with atomic_write(path) as temporary:
        temporary.write_bytes(gzip.compress("".join(lines).encode(), mtime=0))
    return path


def environment(device: str = "") -> dict[str, Any]:
    """Return the versions and machine for a record; `device` is the name of the run's device."""
    return {
        "tespec": tespec.__version__,
        **_revision(),
        "python": platform.python_version(),
        "packages": {
            name: version(name) for name in ("torch", "timm", "mmengine", "numpy", "numba")
        },
        "device": device,
        "cpu": _cpu(),
        "cores": os.cpu_count() or 1,
        "platform": platform.platform(),
    }


def read_record(path: Path) -> Record:
    """Read a file of one record.

    Raises:
        UserError: it cannot be read, is no record, or is not named after its content.
    """
    try:
        content = regular_file(path).read_bytes()
    except (OSError, ValueError) as error:
        raise UserError(path, f"cannot be read ({error})", REMEDY) from error
    record = _validated(content, path)
    require(
        record.name == path.stem,
        path,
        f"holds the record {record.name}",
        "rename or remove the file",
    )
    return record


def _archived(results: Path, matches: Callable[[str], bool]) -> list[Callable[[], Record]]:
    """Return functions that read the lines of the archive whose names match."""
    archive = results / ARCHIVE
    if not archive.exists():
        return []
    readers: list[Callable[[], Record]] = []
    try:
        with gzip.open(regular_file(archive)) as lines:
            for number, line in enumerate(lines, start=1):
                start = NAME.match(line)
                # a line without a readable name may be any record
                if line.strip() and (not start or matches(start[1].decode(errors="replace"))):
                    readers.append(partial(_validated, line, f"{archive}, line {number}"))
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(archive, f"cannot be read ({error})", REMEDY) from error
    return readers


def _validated(text: str | bytes, where: object) -> Record:
    try:
        return Record.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(map(str, first["loc"])) or "file"
        if field == "format":
            remedy = "move it out of the results folder, and run again"
            raise UserError(where, "a record of another version", remedy) from error
        raise UserError(where, f"not a record: {field}: {first['msg']}", REMEDY) from error


def _revision() -> dict[str, Any]:
    """Git revision, and whether sources differ from it; "" and None without git."""
    # the repository itself, not one of something else above it
    git = ["git", "-C", str(REPOSITORY), f"--git-dir={REPOSITORY / '.git'}"]
    run = partial(subprocess.check_output, text=True, stderr=subprocess.DEVNULL, timeout=10)
    with suppress(OSError, subprocess.SubprocessError):
        changes = run([*git, "status", "--porcelain", "--", *PACKAGES, "configs"])
        return {"revision": run([*git, "rev-parse", "HEAD"]).strip(), "modified": bool(changes)}
    return {"revision": "", "modified": None}


def _cpu() -> str:
    cpuinfo = Path("/proc/cpuinfo")  # on Linux
    text = cpuinfo.read_text() if cpuinfo.is_file() else ""
    name = re.search(r"^model name\s*:(.*)", text, re.MULTILINE)
    return " ".join(name[1].split()) if name else platform.processor() or platform.machine()

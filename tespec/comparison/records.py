"""Records of results: one JSON file per run with its provenance, named before the run."""

from __future__ import annotations

import gc
import glob
import gzip
import json
import os
import platform
import re
import subprocess
import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, ValidationError, model_validator
from pydantic_core import to_jsonable_python

import tespec
from tespec.comparison.cell import Cell, differences, name_prefix, run_name
from tespec.core.errors import UserError
from tespec.core.files import atomic_write, regular_file, write_all
from tespec.core.paths import PACKAGES, REPOSITORY, RESULTS
from tespec.metrics import Score

ARCHIVE = "records.jsonl.gz"  # finished records in one file, one per line

# Losses that gradient accumulation computes on one micro-batch at a time, not on the full batch.
PER_MICRO_BATCH = "batch normalisation, Dice, contrastive losses and their queues"

REMEDY = "remove it, or run again with --overwrite"
# cell, seed and pre-training of a run, see `Record.pretraining`
Key = tuple[Cell, int, int | str | None]
Numbers = dict[str, float | None]  # None: the number was not finite


class Weights(BaseModel):
    """Weights of a record: the initial ones, or those that a pre-training saved; and more facts."""

    model_config = ConfigDict(frozen=True, allow_inf_nan=False, extra="allow")

    source: str = ""  # name of the file
    sha256: str = ""
    data_fingerprint: str = ""  # of the data that the initial weights learned from


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

    @property
    def machine(self) -> str:
        """GPU, or CPU and number of threads."""
        if self.device not in ("", "cpu"):
            return self.device
        return f"{self.cpu}, {self.threads or '?'} threads"


class Record(BaseModel):
    """Finished run."""

    model_config = ConfigDict(frozen=True, allow_inf_nan=False, extra="forbid")

    format: Literal[5] = 5  # version of the file format
    name: str  # of the file and of the run's folder, see `run_name`
    cell: Cell
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
    curve: list[dict[str, float]] = []  # mean losses over intervals of steps

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


def new_record(*, cell: Cell, seed: int, data_fingerprint: str, **fields: Any) -> Record:
    """Create the record of a run that has just finished, from all fields but name and date."""
    start_sha256 = fields.get("start_sha256", "")
    fields |= {
        "name": run_name(cell, seed, data_fingerprint, start_sha256),
        "cell": cell,
        "seed": seed,
        "data_fingerprint": data_fingerprint,
        "written": datetime.now(timezone.utc).replace(microsecond=0),
    }
    return _validated(json.dumps(to_jsonable_python(fields, fallback=str)), fields["name"])


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
        return _read_record(path)
    archive = results / ARCHIVE
    lines = _read_lines(archive) if archive.is_file() else []
    texts = [line for line in lines if f'"name":"{name}"' in line]
    return _validated(texts[0], archive) if texts else None


def read_records(results: Path) -> tuple[list[Record], list[str]]:
    """Read all records of a results folder.

    Returns:
        Records by name, and one line for each file or line that is not a record.

    Raises:
        UserError: the folder is not a results folder.
    """
    problems: list[str] = []
    was_enabled = gc.isenabled()
    gc.disable()  # parsing makes many objects and no cycles; a quarter less time
    try:
        records = list(iter_records(results, problems))
    finally:
        if was_enabled:
            gc.enable()
    return sorted(records, key=lambda record: record.name), problems


def iter_records(results: Path, problems: list[str]) -> Iterator[Record]:
    """Yield the records in `runs/*.json`, then others in `records.jsonl.gz`, one at a time.

    Args:
        results: results folder.
        problems: gets one line for each file or line that is not a record.

    Raises:
        UserError: the folder is not a results folder.
    """
    require_results_folder(results)
    names = set()
    for path in sorted((results / "runs").glob("*.json")):
        try:
            record = _read_record(path)
        except UserError as error:
            problems.append(str(error))
            continue
        names.add(record.name)
        yield record
    archive = results / ARCHIVE
    lines: list[str] = []
    try:
        lines = _read_lines(archive) if archive.exists() else []
    except UserError as error:
        problems.append(str(error))
    for number, line in enumerate(lines, start=1):
        try:
            record = _validated(line, f"{archive}, line {number}")
        except UserError as error:
            problems.append(str(error))
            continue
        if record.name not in names:
            names.add(record.name)
            yield record


def similar_records(results: Path, cell: Cell, seed: int) -> list[Record]:
    """Find the records in `runs/` with the same kind, method, task, architecture and seed.

    Returns:
        Records, those whose cells differ from `cell` in the fewest facts first.
    """
    similar = []
    for path in sorted((results / "runs").glob(f"{glob.escape(name_prefix(cell, seed))}*.json")):
        with suppress(UserError):
            similar.append(_read_record(path))
    return sorted(similar, key=lambda record: len(differences(record.cell, cell)))


def require_results_folder(results: Path) -> None:
    """Check that a folder contains results or is empty.

    Raises:
        UserError: the folder does not exist, or contains only other files.
    """
    if results.resolve() == RESULTS.resolve():
        return
    if not results.is_dir():
        raise UserError(
            f"--results {results}", "no such folder", "give a folder that contains runs/"
        )
    # Hidden files may be left by a process that was killed.
    names = {path.name for path in results.iterdir() if not path.name.startswith(".")}
    others = names - {"tables", "pictures", "report.html"}
    if others and not names & {"runs", ARCHIVE}:
        raise UserError(
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


def _read_record(path: Path) -> Record:
    try:
        text = regular_file(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise UserError(path, f"cannot be read ({error})", REMEDY) from error
    record = _validated(text, path)
    if record.name != path.stem:
        raise UserError(path, f"holds the record {record.name}", "rename or remove the file")
    return record


def _read_lines(archive: Path) -> list[str]:
    try:
        text = gzip.decompress(regular_file(archive).read_bytes()).decode()
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise UserError(archive, f"cannot be read ({error})", REMEDY) from error
    return [line for line in text.split("\n") if line]


def _validated(text: str, where: object) -> Record:
    try:
        return Record.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(map(str, first["loc"])) or "file"
        raise UserError(where, f"not a record: {field}: {first['msg']}", REMEDY) from error


def _revision() -> dict[str, Any]:
    """Git revision, and whether sources differ from it; "" and None without git."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(REPOSITORY), *arguments]
        return subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=10
        ).stdout.strip()

    state: dict[str, Any] = {"revision": "", "modified": None}
    with suppress(OSError, subprocess.SubprocessError):
        if (REPOSITORY / ".git").exists():  # not a checkout of something else above it
            state["revision"] = git("rev-parse", "HEAD")
            state["modified"] = bool(git("status", "--porcelain", "--", *PACKAGES, "configs"))
    return state


def _cpu() -> str:
    names = []
    with suppress(OSError):  # Linux
        text = Path("/proc/cpuinfo").read_text()
        names = re.findall(r"^model name\s*:(.*)", text, re.MULTILINE)
    return " ".join(names[0].split()) if names else platform.processor() or platform.machine()

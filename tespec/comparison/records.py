"""Records of results: one JSON file per run with its provenance, named before the run."""

import gzip
import hashlib
import inspect
import json
import os
import platform
import re
import subprocess
import zlib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

import tespec
from tespec.core.errors import UserError
from tespec.core.files import atomic_write, regular_file, write_all
from tespec.core.paths import REPOSITORY, RESULTS
from tespec.core.renamed import renamed
from tespec.metrics import Score

# Incremented by hand when the same choices yield different numbers, as golden tests (tests/golden)
# detect. Results of different versions never share a column of a table.
RESULTS_VERSION = 3
ARCHIVE = "records.jsonl.gz"  # finished records in one file, one per line

# Losses that gradient accumulation computes on one micro-batch at a time, not on the full batch.
PER_MICRO_BATCH = "batch normalisation, Dice, contrastive losses and their queues"

PACKAGES = ("tespec", "baselines")
Numbers = dict[str, float | None]  # None: the number was not finite


class Record(BaseModel):
    """Finished run."""

    model_config = ConfigDict(frozen=True, allow_inf_nan=False, extra="forbid")

    format: Literal[4] = 4  # version of the file format
    results_version: int = Field(ge=1)
    name: str  # of the file and of the run's folder
    id: str  # hash of `CHOICES`, see `identity`
    kind: Literal["evaluation", "pretraining", "probe", "reference"]  # of the run
    method: str
    method_version: int = 1
    plugin: str = ""  # hash of the files outside the package that the run uses; "" for none
    # title, group, backbone, pretraining_data, citation and others, for the method's table row
    facts: dict[str, Any]
    task: str
    task_version: int = 1
    arch: Literal["recurrent", "feedforward"]
    profile: str
    split: Literal["test", "val"] = "test"
    seed: int
    variant: str = ""  # ablation row of the run, such as "masking: 25%"; "" for none
    overrides: dict[str, Any] = {}  # settings changed by the user, by dotted name
    config: dict[str, Any]  # all settings
    data: str
    data_fingerprint: str
    # of the initial backbone weights; of a pre-training, of its upstream checkpoint, or ""
    start_sha256: str = ""
    # origin of the weights; `recipe` holds the settings of their pre-training
    weights: dict[str, Any] = {}
    protocol: dict[str, str] = {}  # how the scores are computed
    scores: dict[str, Score] = {}  # the first is the main one
    metrics: Numbers  # overall numbers
    # per group of frames; of a pre-training, feature statistics of each stage
    groups: dict[str, Numbers] = {}
    recordings: dict[str, Numbers] = {}  # main numbers per recording
    classes: Numbers = {}  # score per class
    command: str
    written: datetime
    environment: dict[str, Any]  # versions, git revision, CPU, device, threads
    time: dict[str, float]  # durations in s
    # Trained parameters of the backbone and of the rest, in millions, and time of one window in ms;
    # see `runs.train`.
    cost: dict[str, float] = {}
    curve: list[dict[str, float]] = []  # mean losses over intervals of steps

    @model_validator(mode="before")
    @classmethod
    def _with_present_names(cls, fields: Any) -> Any:
        return renamed(fields) if isinstance(fields, dict) else fields


# Choices of the user, which determine the id. Code, machine and library versions are provenance.
CHOICES = (
    *("kind", "method", "method_version", "plugin", "task", "task_version", "arch", "profile"),
    *("split", "seed", "overrides", "data_fingerprint", "start_sha256"),
)


def identity(choices: Mapping[str, Any]) -> str:
    """Hash the values of `CHOICES` to the first twelve hexadecimal digits of their SHA-256."""
    chosen = {name: choices[name] for name in CHOICES}
    text = json.dumps(chosen, sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def record_name(choices: Mapping[str, Any]) -> str:
    """Name of a record and of its run folder."""
    words = (choices[name] for name in ("kind", "method", "task", "arch"))
    return f"{'-'.join(words)}-s{choices['seed']}-{identity(choices)}"


def new_record(choices: Mapping[str, Any], **fields: Any) -> Record:
    """Create the record of a run that has just finished; `fields` are the other fields."""
    fields |= {
        "name": record_name(choices),
        "id": identity(choices),
        "results_version": RESULTS_VERSION,
        "written": datetime.now(timezone.utc).replace(microsecond=0),
    }
    return _validated(json.dumps({**choices, **fields}, default=str), fields["name"])


def write_record(record: Record, results: Path) -> Path:
    """Write a record in one step.

    Args:
        record: of a finished run.
        results: results folder.

    Returns:
        Path of the file, `runs/<name>.json` in the folder.
    """
    path = results / "runs" / f"{record.name}.json"
    write_all({path: record.model_dump_json(indent=1) + "\n"})
    return path


def find_record(results: Path, name: str) -> Record | None:
    """Find a record by its name.

    Args:
        results: results folder.
        name: of the record.

    Returns:
        The record; None if it does not exist.

    Raises:
        UserError: the file is not a record.
    """
    path = results / "runs" / f"{name}.json"
    if path.is_file():
        texts = _texts(path)
    else:
        texts = [text for text in _texts(results / ARCHIVE) if f'"name":"{name}"' in text[0]]
    return _validated(*texts[0]) if texts else None


def read_records(results: Path) -> tuple[list[Record], list[str]]:
    """Read all records of a results folder.

    Records are in `runs/*.json` and `records.jsonl.gz`; of an id that is in both, the JSON file is
    used.

    Returns:
        Records by name, and one line for each invalid record or file.

    Raises:
        UserError: the folder is not a results folder, or two JSON files have the same id.
    """
    require_results_folder(results)
    records: dict[str, tuple[Record, Path]] = {}
    problems: list[str] = []
    for path in (*sorted((results / "runs").glob("*.json")), results / ARCHIVE):
        try:
            texts = _texts(path)
        except UserError as error:
            problems.append(str(error))
            continue
        for text in texts:
            try:
                record = _validated(*text)
            except UserError as error:
                problems.append(str(error))
                continue
            _, first = records.setdefault(record.id, (record, path))
            if first != path and path.name != ARCHIVE:
                raise UserError(path, f"holds the same result as {first}", "remove one of them")
    valid = [record for record, _ in records.values()]
    return sorted(valid, key=lambda record: record.name), problems


def similar_records(results: Path, choices: Mapping[str, Any]) -> list[Record]:
    """Find the records in `runs/` with the same kind, method, task, architecture and seed.

    Args:
        results: results folder.
        choices: of a run, the values of `CHOICES`.

    Returns:
        Records, those with the fewest differing choices first.
    """
    pattern = f"{record_name(choices).removesuffix(identity(choices))}*.json"
    similar = []
    for path in sorted((results / "runs").glob(pattern)):
        with suppress(UserError):
            similar.append(_validated(*_texts(path)[0]))
    return sorted(similar, key=lambda record: len(differing(record, choices)))


def differing(record: Record, choices: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Compare a record with the choices of another run.

    Args:
        record: of a finished run.
        choices: of the other run, the values of `CHOICES`.

    Returns:
        The record's value and the other one, by name of the choices and overrides that differ.
    """
    old = _flat(record.model_dump(include=set(CHOICES)))
    new = _flat(choices)
    keys = [key for key in {**old, **new} if old.get(key) != new.get(key)]
    return {key: (old.get(key), new.get(key)) for key in keys}


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
    names = {path.name for path in results.iterdir()}
    if not names & {"runs", ARCHIVE} and names - {"tables", "report.html"}:
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


def plugin_sha256(kinds: Iterable[type], files: Iterable[Path] = ()) -> str:
    """Hash the files outside the package that a run uses.

    Args:
        kinds: classes of the run, whose files are hashed if they are outside the package.
        files: config files of the user.

    Returns:
        Twelve hexadecimal digits; "" without such files.
    """
    sources = {
        Path(inspect.getfile(kind))
        for kind in kinds
        if kind.__module__.partition(".")[0] not in PACKAGES
    }
    contents = sorted(path.read_bytes() for path in {*sources, *files})
    return hashlib.sha256(b"\0".join(contents)).hexdigest()[:12] if contents else ""


def _flat(choices: Mapping[str, Any]) -> dict[str, Any]:
    others = {name: choices[name] for name in CHOICES if name != "overrides"}
    return others | {f"--set {key}": value for key, value in choices["overrides"].items()}


def _texts(path: Path) -> list[tuple[str, str]]:
    """Return (text, location) of each record in a file or an archive, which need not exist."""
    try:
        if path.name != ARCHIVE:
            return [(regular_file(path).read_text(encoding="utf-8"), str(path))]
        lines = gzip.decompress(path.read_bytes()).decode().splitlines() if path.is_file() else []
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise UserError(
            path, f"cannot be read ({error})", "remove it, or run again with --overwrite"
        ) from error
    return [(line, f"{path}, line {number}") for number, line in enumerate(lines, start=1)]


def _validated(text: str, where: object) -> Record:
    try:
        return Record.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(map(str, first["loc"])) or "file"
        remedy = "remove it, or run again with --overwrite"
        raise UserError(where, f"not a record: {field}: {first['msg']}", remedy) from error


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

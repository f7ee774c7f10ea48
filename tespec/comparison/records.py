"""One JSON file per result: its name is known before the result is computed, and it appears whole or not at all."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from glob import escape
from pathlib import Path
from typing import Any, TypedDict, cast

from tespec.comparison.archive import archived, place_of
from tespec.comparison.identity import SCHEMA, SPLITS, TEST, code_version, identity, package_code, record_name
from tespec.core.errors import UserError
from tespec.core.files import read_json, write_whole

TEXTS = ("name", "id", "code", "written", "method_name", "task", "profile", "data", "data_fingerprint", "command")
CHOICES = {"kind": ("evaluation", "pretraining", "probe", "reference"), "arch": ("recurrent", "feedforward")}
# Of records that say it; others, which are older, are of the test split, and nothing else is known of their training
# or was measured as a curve.
LATER: dict[str, Any] = {"split": TEST, "training": "", "curves": {}}
MAPPINGS = ("method", "config", "weights", "environment")
LONGEST = 10_000  # letters of a text
NUMBERS = ("metrics", "classes", "time", "resources")
GROUPED_NUMBERS = ("groups", "recordings")
SCORE = {"title", "better", "unit"}
BETTER = ("higher", "lower")
# What tables take from the mappings; None says that there is none.
TEXTS_WITHIN = {"method": ("title", "group", "backbone", "pretraining_data"), "weights": ("sha256",)}


def check_record(content: object, where: object, schema: int) -> None:
    """Refuse what is not a record of layout `schema`.

    Args:
        content: what JSON gave.
        where: file or name for the message.
        schema: the newest layout that can be read.

    Raises:
        UserError: not a record, of a newer layout, or a field is missing, ill-typed or not finite.
    """
    if not isinstance(content, Mapping) or not _whole(content.get("schema")):
        raise UserError(where, "not a record of this harness", "remove it or move it elsewhere")
    if content["schema"] > schema:
        raise UserError(
            where, f"layout {content['schema']} is newer than this version's {schema}", "update the harness"
        )
    wrong = _first_wrong_field(content)
    if wrong:
        raise UserError(where, wrong, "remove it and run again")


def _first_wrong_field(content: Mapping[str, object]) -> str | None:
    for field in ("seed", *CHOICES, *TEXTS, *MAPPINGS, "protocol", *NUMBERS, *GROUPED_NUMBERS, "scores", "curve"):
        if field not in content:
            return f"field {field!r} is missing"
        if not _right(field, content[field]):
            return f"field {field!r} holds {_short(content[field])}"
    for field, default in LATER.items():
        if not _right(field, value := content.get(field, default)):
            return f"field {field!r} holds {_short(value)}"
    for mapping, fields in TEXTS_WITHIN.items():
        for field in fields:
            value = _within(content, mapping, field, None)
            if not (value is None or _text(value)):
                return f"field '{mapping}.{field}' holds {_short(value)}"
    if not _texts(deviations := _within(content, "config", "deviations", ())):
        return f"field 'config.deviations' holds {_short(deviations)}"
    return None if _within(content, "method", "title", "") else "field 'method' has no title"


def _within(content: Mapping[str, object], mapping: str, field: str, default: object) -> object:
    inner = content[mapping]
    return inner.get(field, default) if isinstance(inner, Mapping) else default


def _right(field: str, value: object) -> bool:
    if field == "seed":
        return _whole(value)
    if field == "split":
        return value in SPLITS
    if field in CHOICES:
        return value in CHOICES[field]
    if field in (*TEXTS, "training"):
        return _text(value)
    if field in MAPPINGS:
        return isinstance(value, Mapping)
    if field == "protocol":
        return isinstance(value, Mapping) and _texts(tuple(value.values()))
    if field in NUMBERS:
        return _numbers(value)
    if field == "scores":
        return isinstance(value, Mapping) and all(map(_score, value.values()))
    if field in GROUPED_NUMBERS:
        return isinstance(value, Mapping) and all(map(_numbers, value.values()))
    if field == "curves":
        return isinstance(value, Mapping) and all(map(_points, value.values()))
    return _points(value)


def _points(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str) and all(map(_numbers, value))


def _score(value: object) -> bool:
    return (
        isinstance(value, Mapping) and set(value) == SCORE and _texts([*value.values()]) and value["better"] in BETTER
    )


def _numbers(value: object) -> bool:
    return isinstance(value, Mapping) and all(map(_finite, value.values()))


def _finite(value: object) -> bool:
    # JSON's whole numbers have no bound: one that no float holds is as unusable as infinity.
    largest = sys.float_info.max
    return isinstance(value, int | float) and not isinstance(value, bool) and -largest <= value <= largest


def _texts(value: object) -> bool:
    return isinstance(value, list | tuple) and all(map(_text, value))


def _text(value: object) -> bool:
    # A table repeats the width of its widest cell in every row.
    return isinstance(value, str) and len(value) <= LONGEST


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _short(value: object) -> str:
    text = repr(value[:60] if isinstance(value, str) else value)
    return text if len(text) <= 60 else f"{text[:57]}..."


class Record(TypedDict):
    """What is known of one result.

    Attributes:
        schema: version of this layout.
        name: `record_name`, also the name of the run's folder.
        id: `identity` of what determines the result.
        kind: "evaluation", "pretraining", "probe" or "reference".
        code: `code_version` that computed it; that of plug-ins is in `id` and `environment`.
        written: UTC time, ISO 8601.
        method_name: registered name of the method.
        method: its facts, title and group among them.
        task: task of an evaluation, data of a pre-training.
        arch: "recurrent" or "feedforward".
        profile: name of the profile.
        data: "sample", or name of the data set.
        data_fingerprint: hash of the recordings.
        seed: of everything random.
        split: "test" or "val", that of the scores.
        training: name of what was trained for it; records of one training differ in what they are scored on alone. ""
            where nothing was trained, or nothing is known of it.
        config: resolved settings; of the recordings of each split those that it was trained and scored on.
        protocol: what the numbers mean, in words.
        metrics: overall numbers by name.
        scores: title, better ("higher" or "lower") and unit of the metrics a task is judged by, the main one first;
            empty where nothing is known of them.
        groups: numbers of named groups of frames; of a pre-training, of the features of each stage.
        recordings: numbers of each recording; of a pre-training, how much of it is trained on and held out.
        classes: number of each class.
        weights: what the backbone was started from, or the file a pre-training wrote.
        command: command line that computed it.
        environment: software and machine.
        time: seconds by stage.
        resources: memory and energy taken, by name; empty where nothing was measured.
        curve: points of the training curve.
        curves: points of other curves, by name; see docs/pretraining.md.
    """

    schema: int
    name: str
    id: str
    kind: str
    code: str
    written: str
    method_name: str
    method: dict[str, Any]
    task: str
    arch: str
    profile: str
    data: str
    data_fingerprint: str
    seed: int
    split: str
    training: str
    config: dict[str, Any]
    protocol: dict[str, str]
    metrics: dict[str, float]
    scores: dict[str, dict[str, str]]
    groups: dict[str, dict[str, float]]
    recordings: dict[str, dict[str, float]]
    classes: dict[str, float]
    weights: dict[str, Any]
    command: str
    environment: dict[str, Any]
    time: dict[str, float]
    resources: dict[str, float]
    curve: list[dict[str, float]]
    curves: dict[str, list[dict[str, float]]]


def new_record(
    *,
    kind: str,
    method_name: str,
    method: dict[str, Any],
    task: str,
    arch: str,
    profile: str,
    data: str,
    data_fingerprint: str,
    seed: int,
    config: Mapping[str, Any],
    protocol: Mapping[str, str],
    metrics: Mapping[str, float],
    groups: Mapping[str, Mapping[str, float]],
    recordings: Mapping[str, Mapping[str, float]],
    classes: Mapping[str, float],
    weights: Mapping[str, Any],
    command: str,
    environment: Mapping[str, Any],
    time: Mapping[str, float],
    curve: Sequence[Mapping[str, float]],
    resources: Mapping[str, float] | None = None,
    scores: Mapping[str, Mapping[str, str]] | None = None,
    code: str | None = None,
    split: str = TEST,
    training: str = "",
    curves: Mapping[str, Sequence[Mapping[str, float]]] | None = None,
) -> Record:
    """Record of a finished run; `Record` describes the fields, and `run_code` what `code` is (None: without plug-ins).

    The weights of an evaluation are part of its identity, those a pre-training wrote are not.

    Raises:
        UserError: a field has the wrong type, or a number is not finite.
    """
    id = identity(
        kind=kind,
        method=method_name,
        task=task,
        arch=arch,
        profile=profile,
        seed=seed,
        config=config,
        data_fingerprint=data_fingerprint,
        weights_sha256=weights.get("start_sha256", weights.get("sha256", "")) if kind != "pretraining" else "",
        code=package_code() if code is None else code,
        split=split,
    )
    record = {
        "schema": SCHEMA,
        "name": record_name(kind, method_name, task, arch, seed, id),
        "id": id,
        "kind": kind,
        "code": code_version(),
        "written": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "method_name": method_name,
        "method": method,
        "task": task,
        "arch": arch,
        "profile": profile,
        "data": data,
        "data_fingerprint": data_fingerprint,
        "seed": seed,
        "split": split,
        "training": training,
        "config": config,
        "protocol": protocol,
        "metrics": metrics,
        "scores": scores or {},
        "groups": groups,
        "recordings": recordings,
        "classes": classes,
        "weights": weights,
        "command": command,
        "environment": environment,
        "time": time,
        "resources": resources or {},
        "curve": list(curve),
        "curves": {name: list(points) for name, points in (curves or {}).items()},
    }
    check_record(record, record["name"], SCHEMA)
    return cast("Record", json.loads(json.dumps(record, allow_nan=False)))


def write_record(record: Record, folder: Path) -> Path:
    """Write `folder/<name>.json` in one step and return its path."""
    return write_whole(folder / f"{record['name']}.json", json.dumps(record, indent=1, allow_nan=False) + "\n")


def read_record(path: Path) -> Record:
    """The record in a file.

    Raises:
        UserError: no JSON, missing or ill-typed fields, numbers that are not finite, or a newer layout.
    """
    return _checked(lambda: read_json(path, parse_constant=_refuse, parse_float=_number), path)


def parse_record(text: str, where: Path) -> Record:
    """The record in a text; `where` it stands is named in messages.

    Raises:
        UserError: as of `read_record`.
    """
    return _checked(lambda: json.loads(text, parse_constant=_refuse, parse_float=_number), where)


def _checked(read: Callable[[], object], where: Path) -> Record:
    try:
        content = read()
        # JSON can hold halves of characters, which no file or terminal takes.
        json.dumps(content, ensure_ascii=False).encode("utf-8")
    except OSError as error:
        raise UserError(where, f"cannot be read ({error.strerror or error})", "check the file") from error
    except (ValueError, RecursionError) as error:
        raise UserError(where, f"not a readable JSON file ({error})", "remove it and run again") from error
    content = upgraded(content)
    check_record(content, where, SCHEMA)
    return cast("Record", content)


def upgraded(content: object) -> object:
    """What JSON gave, in the newest layout; what is no record of an older one is returned as it is."""
    # Layout 1 knew nothing of memory and energy, layout 2 nothing of what scores are.
    for older, field in ((1, "resources"), (2, "scores")):
        if isinstance(content, dict) and content.get("schema") == older:
            content = {**content, "schema": older + 1, field: {}}
    return LATER | content if isinstance(content, dict) else content


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no number")


def _number(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(f"{digits} is out of range")
    return number


def find_record(folder: Path, name: str) -> Record | None:
    """The record of that name in a folder or its archive (`tespec.comparison.archive`), None where there is none."""
    path = folder / f"{name}.json"
    if path.is_file():
        return read_record(path)
    text = archived(folder, escape(name))[0].get(name)
    return None if text is None else parse_record(text, _place(folder, name))


def _place(folder: Path, name: str) -> Path:
    """Where an archived record stands, for messages."""
    archive, inner = place_of(folder)
    return archive / f"{inner}{name}.json"


def _fitting(folder: Path, pattern: str) -> list[Record]:
    """Readable records of a folder, and of its archive, whose names fit a pattern of the shell."""
    found = []
    for name in sorted({path.stem for path in folder.glob(f"{pattern}.json")}):
        with suppress(UserError):
            found.append(read_record(folder / f"{name}.json"))
    for name, text in archived(folder, pattern)[0].items():
        if not (folder / f"{name}.json").is_file():
            with suppress(UserError):
                found.append(parse_record(text, _place(folder, name)))
    return found


def code_of(record: Record) -> str:
    """Hash of the code that computed a record."""
    return record["id"].partition("-")[2] or record["code"].partition("+")[2]


def by_other_code(folder: Path, name: str) -> list[Record]:
    """Readable records of what `name` is the name of by other code, oldest first."""
    stem, _, _ = name.rpartition("-")
    found = _fitting(folder, f"{escape(stem)}-*")
    return sorted((each for each in found if each["name"] != name), key=lambda record: record["written"])


def of_different_arithmetic(records: Sequence[Record]) -> str:
    """Words on records that stand side by side and whose sums were rounded differently; "" where none says so.

    Versions of torch round differently, and so do numbers of threads and kinds of processors where a CPU computes.
    """
    torches, threads, processors = set[str](), set[int](), set[str]()
    for record in records:
        environment = record["environment"]
        packages = environment.get("packages")
        if isinstance(packages, Mapping) and (version := packages.get("torch")):
            torches.add(str(version))
        if environment.get("device") in ("", "cpu"):
            number, processor = environment.get("threads"), environment.get("cpu")
            threads |= {number} if isinstance(number, int) else set()
            processors |= {" ".join(processor.split())} if isinstance(processor, str) and processor else set()
    said = [f"torch {' and '.join(sorted(torches))}"] if len(torches) > 1 else []
    said += [f"{' and '.join(map(str, sorted(threads)))} threads"] if len(threads) > 1 else []
    said += [" and ".join(sorted(processors))] if len(processors) > 1 else []
    return f"computed with different arithmetic ({', '.join(said)}), which rounds differently" if said else ""


def of_same_training(folder: Path, training: str, name: str) -> list[Record]:
    """Readable records of a training but the one called `name`, oldest first."""
    stem = training.removeprefix("training-").rpartition("-s")[0]
    found = _fitting(folder, f"*-{escape(stem)}-s*")
    same = [each for each in found if each["training"] == training and each["name"] != name]
    return sorted(same, key=lambda record: record["written"])


def read_records(folder: Path) -> tuple[list[Record], list[str]]:
    """All records of a folder and its archive in order of their names, and one line for each file that is none.

    A file has its record's name: a copy under another name would count twice. Of two of the same name the one in the
    folder counts.
    """
    texts, problems = archived(folder)
    paths = {path.stem: path for path in folder.glob("*.json")}
    records: list[Record] = []
    for name in sorted(paths.keys() | texts.keys(), key=lambda name: f"{name}.json"):
        path = paths.get(name, _place(folder, name))
        try:
            record = read_record(path) if name in paths else parse_record(texts[name], path)
        except UserError as error:
            problems.append(str(error))
            continue
        if name == record["name"]:
            records.append(record)
        else:
            problem = UserError(path, f"holds the record {record['name']}", "give it that name or remove it")
            problems.append(str(problem))
    return records, problems

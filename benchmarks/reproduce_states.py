"""Which pieces of a reproduction have a record, and how long the others will take."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from functools import cache
from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks.reproduction import EVALUATION, PRETRAINING, REFERENCE, Piece, Reproduction, pretrainings

if TYPE_CHECKING:
    from tespec.comparison.records import Record

Fingerprints = Mapping[str, str]


def is_measured(
    piece: Piece, reproduction: Reproduction, records: Iterable[Record], data: Fingerprints, codes: Container[str]
) -> bool:
    """Whether there is a record of a piece under the reproduction's settings.

    Args:
        piece: an evaluation or a reference.
        reproduction: names profile and world.
        records: any.
        data: fingerprint of each task's data, where it is known; records of other data do not count then.
        codes: hashes of the code whose records count.
    """
    from tespec.comparison.basis import agrees, recipe_of
    from tespec.comparison.cells import without_device
    from tespec.comparison.records import code_of

    config, recipe = wanted(piece, reproduction), recipe_behind(piece, reproduction)
    for record in records:
        if code_of(record) not in codes:
            continue
        same = (record["kind"], record["method_name"], record["task"], record["arch"], record["seed"]) == (
            piece.kind,
            piece.method,
            piece.task,
            piece.arch,
            piece.seed,
        )
        if not same or data.get(piece.task, record["data_fingerprint"]) != record["data_fingerprint"]:
            continue
        found = recipe_of(record)
        started = recipe is None if found is None else recipe is not None and agrees(found, recipe)
        if started and without_device(_settings(record, config)) == without_device(config):
            return True
    return False


def _settings(record: Record, config: Mapping[str, Any]) -> dict[str, Any]:
    """A record's settings without what is no setting of a fine-tuning, as a reference's input."""
    return {name: value for name, value in record["config"].items() if name in config}


def wanted(piece: Piece, reproduction: Reproduction) -> dict[str, Any]:
    """Settings of the record of an evaluation or a reference."""
    method = "scratch" if piece.kind == REFERENCE else piece.method
    size, seed = str(reproduction.world["size"]), int(reproduction.world["seed"])
    return _finetuning(method, piece.task, piece.arch, reproduction.profile, size, seed, piece.changes)


def recipe_behind(piece: Piece, reproduction: Reproduction) -> dict[str, Any] | None:
    """Settings of the pre-training that a piece is or starts from; None where there is none."""
    return None if piece.kind == REFERENCE else _pretraining(piece.method, reproduction.profile, piece.changes)


@cache
def _finetuning(
    method: str, task: str, arch: str, profile: str, size: str, seed: int, changes: tuple[str, ...]
) -> dict[str, Any]:
    from tespec.core.config import as_facts, finetuning_settings
    from tespec.pretraining.method import find_method
    from tespec.runs.finetune import with_start
    from tespec.world.make import description

    kind = find_method(method)
    settings = finetuning_settings(task, arch, profile, (), description(size, seed, task).overrides(), kind.network)
    return as_facts(with_start(settings, kind, None, sample=True, changes=changes))


@cache
def _pretraining(method: str, profile: str, changes: tuple[str, ...]) -> dict[str, Any] | None:
    from tespec.core.config import as_facts, pretraining_settings
    from tespec.pretraining.method import find_method

    kind = find_method(method)
    return None if kind.recipe is None else as_facts(pretraining_settings(kind.recipe, profile, changes, kind.network))


def seconds_of(piece: Piece, reproduction: Reproduction, records: Sequence[Record]) -> float | None:
    """What a piece will take: the median of the records like it, else what the config states; None for neither."""
    alike = [
        record["time"]["total"]
        for record in records
        if (record["kind"], record["profile"]) == (piece.kind, reproduction.profile)
        and (
            record["method_name"] == piece.method
            if piece.kind != EVALUATION
            else (record["task"], record["arch"]) == (piece.task, piece.arch)
        )
        and (piece.kind != REFERENCE or record["task"] == piece.task)
    ]
    if alike:
        return float(median(alike))
    part = reproduction.seconds.get(piece.arch if piece.kind == EVALUATION else piece.kind, {})
    stated = part.get(piece.method if piece.kind == PRETRAINING else piece.task) if isinstance(part, Mapping) else None
    return None if stated is None else float(stated)


def jobs_of(missing: Sequence[Piece]) -> list[Piece]:
    """The missing pieces with the pre-trainings that they still need."""
    return [*pretrainings(list(missing)), *missing]

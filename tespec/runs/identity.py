"""Cells of fine-tunings and pre-trainings, which are known before anything is computed."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tespec.comparison.cell import OWN_WEIGHTS, REQUIRED_SHA256, RESULTS_VERSION, Cell, Kind, Start
from tespec.core.config import as_facts, changed_settings, flattened, user_files
from tespec.core.errors import UserError
from tespec.core.files import sha256_of
from tespec.core.settings import Finetuning, Pretraining
from tespec.models.backbone import backbones
from tespec.pretraining.method import Method, find_method, pretrain_method
from tespec.pretraining.teacher import is_timm
from tespec.registry import DATASETS, METHODS, MODELS, TASKS, source_files
from tespec.runs.required import required_network, required_settings


def finetuning_cell(
    kind: Kind,
    name: str,
    method: type[Method],
    settings: Finetuning,
    data: str,
    *,
    of_data: Mapping[str, Any],
    accumulate: int = 1,
    start: Start = "",
    **facts: Any,
) -> Cell:
    """Make the cell of a fine-tuning, a probe or a reference.

    Args:
        kind: of the record.
        name: of the method.
        method: its class.
        settings: resolved, without the precision of a device.
        data: name of the data in records.
        of_data: overrides of the data, see `Description.overrides`.
        start: origin of the initial weights.
        accumulate: number of micro-batches per step.
        facts: further fields of the cell.
    """
    overrides = changed_settings(settings, settings.backbone, of_data)
    overrides.pop("label_fraction", None)  # a field of its own
    if accumulate > 1:
        overrides["accumulate"] = accumulate
    arch: Any = settings.arch
    return Cell(
        kind=kind,
        method=name,
        task=settings.task,
        data=data,
        profile=settings.profile,
        arch=arch,
        overrides=overrides,
        start=start,
        backbone="" if kind == "reference" else settings.backbone,
        label_fraction=settings.label_fraction,
        frozen=settings.frozen,
        method_version=method.version,
        task_version=settings.version,
        plugin=plugin_sha256(method, settings, tasks=settings.task, profiles=settings.profile),
        results_version=RESULTS_VERSION,
        **facts,
    )


def pretraining_cell(settings: Pretraining, data: str, accumulate: int = 1) -> Cell:
    """Make the cell of a pre-training.

    Args:
        settings: resolved, without the precision of a device.
        data: name of the data in records.
        accumulate: number of micro-batches per step.

    Raises:
        UserError: a changed setting has no effect on the method.
    """
    method = find_method(settings.name)
    changed = changed_settings(settings, method.network)
    trained = pretrain_method(settings)
    if unused := [key for key in changed if key.partition(".")[0] in trained.unused]:
        where = "--backbone" if unused[0] == "backbone" else unused[0]
        raise UserError(
            where, f"has no effect on the pre-training of {trained.row.title}", "leave it unchanged"
        )
    changed.pop("backbone", None)
    required, file = required_network(settings)
    start: Start = ""
    if file:
        changed.pop(f"{trained.requires}_weights", None)
        changed[REQUIRED_SHA256] = sha256_of(Path(file))
    if file or is_timm(required):
        start = OWN_WEIGHTS
    elif required:
        start = pretraining_cell(required_settings(settings, required), data, accumulate)
    if accumulate > 1:
        changed["accumulate"] = accumulate
    arch: Any = settings.arch
    return Cell(
        kind="pretraining",
        method=settings.name,
        task=settings.dataset,
        data=data,
        profile=settings.profile,
        arch=arch,
        overrides=changed,
        start=start,
        backbone=settings.backbone,
        method_version=method.version,
        plugin=plugin_sha256(method, settings, profiles=settings.profile),
        results_version=RESULTS_VERSION,
    )


def plugin_sha256(method: type[Method], settings: Finetuning | Pretraining, **configs: str) -> str:
    """Hash the files of the user that a run uses: Python sources and configs.

    Args:
        method: class of the method.
        settings: name the registered parts of the run.
        configs: names of configs by kind, which may be files of the user.

    Returns:
        Twelve hexadecimal digits; "" for no such files.
    """
    facts = flattened(as_facts(settings))
    names = [str(value) for key, value in facts.items() if key.rpartition(".")[2] == "type"]
    parts = [registry.module_dict.get(name) for registry in (METHODS, MODELS) for name in names]
    parts += [
        method,
        TASKS.module_dict.get(str(facts.get("kind"))),
        DATASETS.module_dict.get(str(facts.get("dataset"))),
        backbones().get(settings.backbone),
    ]
    modules = {part.__module__ for part in parts if part is not None}
    paths = {path for module in modules for path in source_files(module)}
    contents = sorted(path.read_bytes() for path in {*paths, *user_files(**configs)})
    return hashlib.sha256(b"\0".join(contents)).hexdigest()[:12] if contents else ""

"""Cells of fine-tunings and pre-trainings, and the network that a method requires.

They are known before anything is computed.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import tespec.core.compat  # noqa: F401  # before timm

import timm

from tespec.comparison.cell import OWN_WEIGHTS, REQUIRED_SHA256, RESULTS_VERSION, Cell, Kind, Start
from tespec.core.config import (
    Settings,
    as_facts,
    changed_settings,
    flattened,
    pretraining_settings,
    user_files,
)
from tespec.core.errors import UserError, require
from tespec.core.files import sha256_of
from tespec.core.settings import Finetuning, Pretraining
from tespec.models.backbone import backbones
from tespec.pretraining.method import (
    ImageMethod,
    Method,
    find_method,
    method_settings,
    objective_class,
)
from tespec.pretraining.teacher import TeacherMethod, is_timm
from tespec.registry import DATASETS, METHODS, MODELS, TASKS, source_files

OBJECTIVE = "objective."  # prefix of `PretrainMethod.requires` if a setting names the network
# settings of data that two methods which learn from the same recordings have in common
DATA_SETTINGS = ("dataset", "bins", "rule", "window_ms", "downsample", "sensor_px")


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
        plugin=plugin_sha256(method, settings),
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
    objective = objective_class(settings)
    if unused := [key for key in changed if key.partition(".")[0] in objective.unused]:
        where = "--backbone" if unused[0] == "backbone" else unused[0]
        raise UserError(
            where,
            f"has no effect on the pre-training of {objective.row.title}",
            "leave it unchanged",
        )
    changed.pop("backbone", None)  # a field of its own
    network, file = required_network(settings)
    start: Start = ""
    if file:  # its content counts, not its path
        changed.pop(f"{objective.requires}_weights", None)
        changed[REQUIRED_SHA256] = sha256_of(Path(file))
    if file or is_timm(network):
        start = OWN_WEIGHTS
    elif network:
        start = pretraining_cell(required_settings(settings, network), data, accumulate)
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
        plugin=plugin_sha256(method, settings),
        results_version=RESULTS_VERSION,
    )


def plugin_sha256(method: type[Method], settings: Settings) -> str:
    """Hash the files of the user that a run uses: Python sources and configs.

    Args:
        method: class of the method.
        settings: of the run, which name its registered parts and its configs.

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
    configs = user_files(tasks=getattr(settings, "task", ""), profiles=settings.profile)
    contents = sorted(path.read_bytes() for path in {*paths, *configs})
    return hashlib.sha256(b"\0".join(contents)).hexdigest()[:12] if contents else ""


def required_network(settings: Pretraining) -> tuple[str, str]:
    """Find the network that the method of the settings requires (`PretrainMethod.requires`).

    Returns:
        Its name, a method here or a timm model, "" if the method requires none; and its weights, if
        the user gave them, else "".

    Raises:
        UserError: if a setting of the method is invalid, or the network or its file does not exist.
    """
    cfg = method_settings(settings.objective)
    requires = objective_class(settings).requires
    if not requires.startswith(OBJECTIVE):
        return requires, ""
    key = requires.removeprefix(OBJECTIVE)
    name = getattr(cfg, key)
    file = getattr(cfg, f"{key}_weights")
    method = METHODS.module_dict.get(name, object)
    require(
        is_timm(name) or (issubclass(method, ImageMethod) and method.recipe),
        f"{requires} {name!r}",
        "is neither a timm network nor a method that learns from images",
        "use a timm network (timm.list_models()), or a method that pre-trains on images",
    )
    require(
        not file or Path(file).is_file(),
        f"{requires}_weights {file!r}",
        "no such file",
        f"set it to the weights of {name}",
    )
    return name, file


def required_settings(settings: Pretraining, name: str) -> Pretraining:
    """Resolve the settings with which the required network is pre-trained.

    Its steps are scaled by the ratio of the method's steps to those of its profile. If both learn
    from the same kind of data, it sees the same data, and its batch size is scaled as well. A
    setting of the method that has the type of the network's settings replaces them.

    Args:
        settings: of the method that requires the network.
        name: of the method that pre-trains it.

    Raises:
        UserError: if `name` is a timm model, which is not pre-trained here.
    """
    if is_timm(name):
        published: Any = timm.get_pretrained_cfg(name)
        source = f"huggingface.co/{published.hf_hub_id or 'timm'}"
        raise UserError(
            f"{OBJECTIVE}teacher_weights",
            "no file is given",
            f"set it to the weights of {name}, from {source}",
        )
    method = objective_class(settings)
    recipe = pretraining_settings(name, settings.profile)
    default = pretraining_settings(settings.name, settings.profile)
    scale = settings.optimisation.steps / default.optimisation.steps
    steps = max(1, round(scale * recipe.optimisation.steps))
    warmup_steps = min(int(scale * recipe.optimisation.warmup_steps), steps - 1)
    optimisation = replace(recipe.optimisation, steps=steps, warmup_steps=warmup_steps)
    changes: dict[str, Any] = {}
    if objective_class(recipe).data_type is method.data_type:
        batch_size = round(recipe.batch_size * settings.batch_size / default.batch_size)
        changes["batch_size"] = max(1, batch_size)
        optimisation = replace(optimisation, precision=settings.optimisation.precision)
        changes |= {key: getattr(settings, key) for key in DATA_SETTINGS}
    if issubclass(method, TeacherMethod) and method.same_backbone:
        changes["backbone"] = settings.backbone
    settings_type = type(METHODS.module_dict[name].recipe.objective)
    for key, value in vars(method_settings(settings.objective)).items():
        if isinstance(value, settings_type):
            changes["objective"] = {"type": name} | settings.objective[key]
    return replace(recipe, optimisation=optimisation, **changes)

"""Cells of fine-tunings and pre-trainings, which are known before anything is computed."""

import ast
import hashlib
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from tespec.comparison.cell import OWN_WEIGHTS, RESULTS_VERSION, Cell, Kind, Start
from tespec.core.config import as_facts, changed_settings, flattened, user_files
from tespec.core.errors import UserError
from tespec.core.files import sha256_of
from tespec.core.settings import Finetuning, Pretraining
from tespec.models.backbone import backbones
from tespec.pretraining.method import Method, find_method, pretrain_method
from tespec.pretraining.teacher import is_timm
from tespec.registry import DATASETS, METHODS, MODELS, TASKS
from tespec.runs.required import required_network, required_settings

PACKAGES = ("tespec", "baselines")
# in the overrides of a pre-training: hash of the user's file of another network
REQUIRED_SHA256 = "required_sha256"
# folders of the standard library and of installed packages
INSTALLED = tuple(map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib")))


def finetuning_cell(
    kind: Kind,
    name: str,
    method: type[Method],
    settings: Finetuning,
    data: str,
    *,
    of_data: Mapping[str, Any],
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
        facts: further fields of the cell, and `accumulate`.
    """
    overrides = changed_settings(settings, method.network, of_data)
    for key in ("backbone", "label_fraction"):  # fields of their own
        overrides.pop(key, None)
    return _cell(
        settings,
        overrides,
        kind=kind,
        method=name,
        task=settings.task,
        data=data,
        start=start,
        backbone="" if kind == "reference" else settings.backbone,
        label_fraction=settings.label_fraction,
        method_version=method.version,
        task_version=settings.version,
        plugin=plugin_sha256(method, settings, tasks=settings.task, profiles=settings.profile),
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
    return _cell(
        settings,
        changed,
        kind="pretraining",
        method=settings.name,
        task=settings.dataset,
        data=data,
        start=start,
        backbone=settings.backbone,
        method_version=method.version,
        plugin=plugin_sha256(method, settings, profiles=settings.profile),
        accumulate=accumulate,
    )


def _cell(
    settings: Finetuning | Pretraining, overrides: dict[str, Any], *, accumulate: int, **facts: Any
) -> Cell:
    if accumulate > 1:
        overrides["accumulate"] = accumulate
    arch: Any = settings.arch
    return Cell(
        arch=arch,
        profile=settings.profile,
        overrides=overrides,
        results_version=RESULTS_VERSION,
        **facts,
    )


def start_of(
    recipe: Mapping[str, Any], sha256: str, where: object
) -> tuple[Start, int | str | None]:
    """Read from the recipe of a weights file which pre-training it is, and of which seed.

    Args:
        recipe: of the file; a file from elsewhere has no cell in it.
        sha256: hash of the file, "" for random initialisation.
        where: file that errors name.

    Returns:
        `Cell.start` and `Record.pretraining`.

    Raises:
        UserError: the recipe's cell is malformed.
    """
    if "cell" not in recipe:
        return (OWN_WEIGHTS, sha256) if sha256 else ("", None)
    try:
        return TypeAdapter(Cell).validate_python(recipe["cell"]), int(recipe["seed"])
    except (ValidationError, LookupError, ValueError, TypeError) as error:
        raise UserError(where, "its recipe is damaged", "copy the file again") from error


def recipe_of(cell: Cell, seed: int) -> dict[str, Any]:
    """Facts of a recipe that `start_of` reads."""
    return {"cell": asdict(cell), "seed": seed}


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


def source_files(module: str) -> set[Path]:
    """Find the source of an imported module and of the modules that it imports.

    Sources of this package, of the standard library and, unless `module` is one, of installed
    packages are left out.

    Args:
        module: name in `sys.modules`.
    """
    files: set[Path] = set()
    names = [module]
    while names:
        name = names.pop()
        source = getattr(sys.modules.get(name), "__file__", None)
        is_installed = source and source.startswith(INSTALLED) and name != module
        if not source or is_installed or name.partition(".")[0] in PACKAGES:
            continue
        path = Path(source)
        if path.suffix == ".py" and path not in files:
            files.add(path)
            names += _imported(path, sys.modules[name].__package__ or "")
    return files


def _imported(path: Path, package: str) -> Iterator[str]:
    """Names of the modules that a source imports anywhere, and of their packages' members."""
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package.rsplit(".", node.level - 1)[0] if node.level else ""
            name = ".".join(filter(None, [base, node.module]))
            yield name
            yield from (f"{name}.{alias.name}" for alias in node.names)

"""Reads settings: facts from configs/, then a profile's differences, then single values set by the user."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic_core import to_jsonable_python

from tespec.core.errors import UserError
from tespec.core.files import UNREADABLE, parse_yaml, read_yaml
from tespec.core.paths import CONFIGS
from tespec.core.registry import METHODS, pretrained_methods
from tespec.core.settings import Finetuning, Pretraining, build, merge, refuse_unknown, require_warmup

NAME = re.compile(r"[\w.-]{1,100}")
KINDS = ("tasks", "profiles", "plans")
PROFILE = ("name", "base", "networks", "deviations", "threads", "finetuning", "tasks", "pretraining")
OFFICIAL_SPLITS = dict.fromkeys(("train", "val", "test"))  # as the data set's class names them
# Of a fine-tuning, what a task's config need not say.
UNSAID: dict[str, Any] = {"label_share": 1.0, "splits": OFFICIAL_SPLITS}
_added: dict[str, dict[str, Path]] = {}  # by kind and name
_UNSET = object()


def add_folder(folder: Path) -> None:
    """Read configs from another folder as well, which is laid out as configs/ is.

    Raises:
        UserError: it is no such folder, or holds a config of a name that there is already.
    """
    found = [(kind, path) for kind in KINDS for path in sorted((folder / kind).glob("*.yaml"))]
    if not found:
        raise UserError(folder, "no folder of configs", f"put YAML files into {folder}/tasks or {folder}/profiles")
    for kind, path in found:
        add_file(kind, path)


def add_file(kind: str, path: Path) -> str:
    """Read one more config, which is known by the name of its file from then on; returns that name.

    Raises:
        UserError: there is no such file, or another config has the name.
    """
    path = path.absolute()
    if path.suffix != ".yaml" or not path.is_file():
        raise UserError(path, "no such config", "give a file that ends in .yaml")
    before = _files(kind).get(path.stem)
    if before is not None and before != path:
        raise UserError(path, f"{before} has the name {path.stem!r} already", "rename one of them")
    _added.setdefault(kind, {})[path.stem] = path
    return path.stem


def _files(kind: str) -> dict[str, Path]:
    """Configs of one kind by name."""
    return {path.stem: path for path in sorted((CONFIGS / kind).glob("*.yaml"))} | _added.get(kind, {})


def names(kind: str) -> list[str]:
    """Names of the configs of one kind, such as "tasks" or "profiles"."""
    return sorted(_files(kind))


def file_of(kind: str, name: str) -> Path | None:
    """The file of a config; None where there is none of that name."""
    return _files(kind).get(name)


def finetuning_settings(
    task: str,
    arch: str,
    profile: str,
    changes: Sequence[str] = (),
    of_data: Mapping[str, Any] | None = None,
    network: str = "swin",
) -> Finetuning:
    """Settings of one cell: task config, then the profile's differences, what follows from the data, and changes.

    Args:
        task: name of the task.
        arch: "recurrent" or "feedforward".
        profile: name of the profile.
        changes: `KEY=VALUE` of the user.
        of_data: what the data says about itself, see `Description.overrides`.
        network: kind of network, whose size the profile names.

    Raises:
        UserError: there is no such task or setting, or a value that it cannot have.
    """
    facts, scale = _task(task), _profile(profile)
    architectures = _part(facts, "architectures", f"task {task}")
    if arch not in architectures:
        remedy = f"choose from {', '.join(map(str, architectures))}"
        raise UserError(f"task {task}", f"no architecture {arch!r}", remedy)
    layers = {
        f"profile {profile}": scale["finetuning"],
        f"profile {profile}, task {task}": scale["tasks"].get(task, {}),
        "dataset.json": of_data or {},
    }
    own: dict[str, Any] = {}  # by source: what it says of this architecture alone
    for source, layer in layers.items():
        facts = merge(facts | {"architectures": dict.fromkeys(architectures)}, layer, source, replaced=("splits",))
        own[source] = _part(facts, "architectures", source)[arch] or {}
    splits = _part(facts, "splits", f"task {task}")
    facts["splits"] = splits | {"val": splits.get("val", [])}
    # What any layer says of an architecture outweighs what all of them say of both.
    facts |= _part(architectures, arch, f"task {task}")
    for source, changed in own.items():
        facts = merge(facts, changed, source)
    facts |= {"sensor_px": None}
    del facts["architectures"]
    facts = _change(facts, changes)
    facts["task"] = facts.pop("name", None)
    settings = build(Finetuning, facts | _scale(scale, network) | {"arch": arch}, f"task {task}")
    require_warmup(settings.optimisation)
    _check_sampling(settings)
    if not settings.recurrent and settings.sampling != "clips":
        what = f"{settings.sampling!r} carries a state, and feed-forward networks have none"
        raise UserError("sampling", what, "set it to clips")
    return settings


def pretraining_settings(
    method: str, profile: str, changes: Sequence[str] = (), network: str | None = None
) -> Pretraining:
    """Settings of one pre-training: the method's recipe, then the profile's differences, then `KEY=VALUE` changes.

    Of a profile, its general values come first, then what the method says of it. `objective=NAME` among the changes
    trains the loss of another method, with that method's own settings.

    Args:
        method: name of the method.
        profile: name of the profile.
        changes: `KEY=VALUE` of the user.
        network: kind of network, whose size the profile names; default: the method's.

    Raises:
        UserError: there is no such method or setting, or a value that it cannot have.
    """
    kind, scale = recipe_of(method), _profile(profile)
    differs = _differences(kind, scale)
    differs.pop("objective", None)
    facts = as_facts(kind.recipe) | {"objective": method}
    facts = merge(facts, scale["pretraining"], f"profile {profile}")
    facts = merge(facts, differs, f"profile {profile}, method {method}")
    swaps = [change for change in changes if change.startswith("objective=")]
    facts = _change(facts, swaps)
    name = str(facts["objective"])
    facts["objective"] = own_facts(name, profile)
    facts = _change(facts, [change for change in changes if change not in swaps])
    facts |= {"name": method} | _scale(scale, network or kind.network)
    facts["deviations"] = [*kind.recipe.deviations, *facts["deviations"], *recipe_of(name).deviations]
    settings = build(Pretraining, facts, f"method {method}")
    require_warmup(settings.optimisation)
    _check_sampling(settings)
    return settings


def recipe_of(method: str) -> Any:
    """The class of a method that is pre-trained here.

    Raises:
        UserError: there is none of that name, or it has no recipe.
    """
    if method not in (known := pretrained_methods()):
        raise UserError(f"method {method[:100]}", "has no pre-training", f"choose from {', '.join(known)}")
    return METHODS.module_dict[method]


def _check_sampling(settings: Finetuning | Pretraining) -> None:
    if settings.sampling == "mixed" and settings.batch_size < 2:
        what = "'mixed' needs a lane of streams and one of clips, and batch_size is 1"
        raise UserError("sampling", what, "give a larger batch_size, or choose streams or clips")


def own_facts(method: str, profile: str) -> dict[str, Any]:
    """A method's own settings under a profile, and its name as "type".

    Raises:
        UserError: there is no such method.
    """
    kind = recipe_of(method)
    own = _differences(kind, _profile(profile)).get("objective", {})
    recipe = as_facts(kind.recipe)["objective"]
    return {"type": method} | merge(recipe, own, f"profile {profile}, {method}")


def _differences(method: Any, profile: Mapping[str, Any]) -> dict[str, Any]:
    """What a method says of a profile, over what it says of the profile's base.

    Raises:
        UserError: it names a profile that does not exist.
    """
    for name in method.profiles:
        if name not in names("profiles"):
            remedy = f"choose from {', '.join(names('profiles'))}"
            raise UserError(f"{method.__name__}.profiles", f"there is no profile {name!r}", remedy)
    base, own = (method.profiles.get(str(profile.get(key)), {}) for key in ("base", "name"))
    return _over(base, own)


def dataset_of_task(task: str) -> str:
    """Registered name of a task's data set.

    Raises:
        UserError: there is no such task.
    """
    return str(_task(task).get("dataset"))


def splits_of_tasks() -> list[tuple[str, dict[str, list[str]]]]:
    """Registered name of the data set of each task, and the splits that its config names in place of the official ones.

    Raises:
        UserError: a config cannot be read.
    """
    read = [(f"task {name}", _task(name)) for name in names("tasks")]
    named = [(str(facts.get("dataset")), _part(facts, "splits", where)) for where, facts in read]
    return [(dataset, {split: each for split, each in splits.items() if each}) for dataset, splits in named]


def _task(name: str) -> dict[str, Any]:
    """A task's config over that of the task it names as its base, if any; another data set has its own protocol."""
    facts = _read("tasks", name)
    if "base" not in facts:
        return UNSAID | facts
    base = UNSAID | _read("tasks", str(facts["base"])) | {"name": name}
    own = {key: value for key, value in facts.items() if key != "base"}
    if "base" in base:
        raise UserError(f"task {name}", "its base has a base itself", "name one that has none")
    if own.get("dataset", base.get("dataset")) != base.get("dataset"):
        base |= {"protocol": own.get("protocol", {}), "splits": OFFICIAL_SPLITS}
    return merge(base, own, f"task {name}", replaced=("splits",))


def threads_of(profile: str) -> int | None:
    """Threads that compute on a CPU under a profile; None where it leaves them to the machine.

    Raises:
        UserError: there is no such profile, or it says something else than a number.
    """
    threads = _profile(profile).get("threads")
    if threads is None or (isinstance(threads, int) and not isinstance(threads, bool) and threads > 0):
        return threads
    raise UserError(f"profile {profile}", f"threads: {threads!r} is no number of threads", "give 1 or more")


def _scale(profile: dict[str, Any], network: str) -> dict[str, Any]:
    # A network that no profile names the size of is an architecture itself, such as that of a plug-in.
    width = profile["networks"].get(network, network)
    return {"profile": profile.get("name"), "width": width, "deviations": profile.get("deviations")}


def _profile(name: str) -> dict[str, Any]:
    """A profile with all its groups; what it does not say is that of the profile it names as its base."""
    facts = _read("profiles", name)
    if "base" in facts:
        base = _read("profiles", str(facts["base"]))
        if "base" in base:
            raise UserError(f"profile {name}", "its base has a base itself", "name one that has none")
        deviations = [*base.get("deviations", ()), *facts.get("deviations", ())]
        facts = _over(base, facts) | {"deviations": deviations}
    for key in facts:
        if key not in PROFILE:
            raise UserError(f"profile {name}", f"unknown group {key!r}", f"choose from {', '.join(PROFILE)}")
    for group in ("networks", "finetuning", "tasks", "pretraining"):
        _part(facts, group, f"profile {name}")
    return facts


def _over(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with nested `changes`, which may add to it: a profile says only what differs."""
    merged = dict(base)
    for key, value in changes.items():
        nested = isinstance(value, Mapping) and isinstance(base.get(key), Mapping)
        merged[key] = _over(base[key], value) if nested else value
    return merged


def _read(kind: str, name: str) -> dict[str, Any]:
    path = _files(kind).get(name)
    if path is None or not NAME.fullmatch(name):
        raise UserError(name[:100], f"no such file in configs/{kind}", f"choose from {', '.join(names(kind))}")
    try:
        facts = copy.deepcopy(_parsed(path, path.stat().st_mtime_ns))
    except UNREADABLE as error:
        raise UserError(path, f"not a readable YAML file ({error})", "mend or restore it") from error
    if not isinstance(facts, dict) or not all(isinstance(key, str) for key in facts):
        raise UserError(path, "holds no settings by name", "mend or restore it")
    return facts


@lru_cache
def _parsed(path: Path, changed: int) -> Any:
    """Content of a config; a changed file is read again."""
    return read_yaml(path)


def _part(facts: Mapping[str, Any], key: str, where: str) -> Any:
    """A group of settings that a config has to have.

    Raises:
        UserError: it has none.
    """
    if not isinstance(facts.get(key), Mapping):
        raise UserError(where, f"has no group of settings {key!r}", "mend or restore it")
    return facts[key]


def _change(facts: dict[str, Any], changes: Sequence[str]) -> dict[str, Any]:
    for change in changes:
        facts = merge(facts, _nested(change), f"--set {change}")
    return facts


def _nested(change: str) -> dict[str, Any]:
    path, equals, text = change.partition("=")
    if not equals:
        raise UserError(f"--set {change}", "no '='", "write --set optimisation.steps=100")
    try:
        nested: Any = parse_yaml(text)
    except UNREADABLE as error:
        raise UserError(f"--set {change}", "the value is not YAML", "quote it") from error
    for key in reversed(path.split(".")):
        nested = {key: nested}
    changes: dict[str, Any] = nested
    return changes


def refuse_unknown_changes(
    task: str | None, arch: str, profile: str | None, changes: Sequence[str], of_pretraining: Sequence[str] = ()
) -> None:
    """Refuse changes of settings that a cell, or a pre-training by whatever method, has not, without torch.

    Raises:
        UserError: names the nearest setting.
    """
    if task in names("tasks"):  # others come with a file that is not imported yet
        _change(as_facts(finetuning_settings(task, arch, profile or "paper")), changes)
    for change in of_pretraining:
        refuse_unknown(Pretraining, _nested(change), f"--set {change}")


def changed_finetuning(settings: Finetuning, of_data: Mapping[str, Any], network: str) -> dict[str, Any]:
    """Settings of a cell that differ from those of its task, architecture and profile, by dotted name.

    Args:
        settings: of the cell.
        of_data: what the data says about itself, as of `finetuning_settings`.
        network: kind of network.
    """
    if settings.task not in names("tasks"):
        return _changed(settings, None)
    default = finetuning_settings(settings.task, settings.arch, settings.profile, (), of_data, network)
    return _changed(settings, default)


def changed_pretraining(settings: Pretraining, network: str) -> dict[str, Any]:
    """Settings of a pre-training that differ from its recipe's, by dotted name; another objective is its type."""
    if settings.name not in pretrained_methods():
        return _changed(settings, None)
    default = pretraining_settings(settings.name, settings.profile, (), network)
    kind = settings.objective["type"]
    if kind == default.objective["type"]:
        return _changed(settings, default)
    swapped = pretraining_settings(settings.name, settings.profile, [f"objective={kind}"], network)
    return {"objective": kind, **_changed(settings, swapped)}


def _changed(settings: Finetuning | Pretraining, default: Finetuning | Pretraining | None) -> dict[str, Any]:
    ours, usual = flattened(as_facts(settings)), flattened(as_facts(default)) if default else {}
    return {key: ours.get(key) for key in sorted({*ours, *usual}) if ours.get(key) != usual.get(key)}


def flattened(facts: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Values of nested dicts by dotted name."""
    found: dict[str, Any] = {}
    for key, value in facts.items():
        nested = isinstance(value, Mapping) and value
        found |= flattened(value, f"{prefix}{key}.") if nested else {f"{prefix}{key}": value}
    return found


def origins_of_cell(
    task: str, arch: str, profile: str, changes: Sequence[str] = (), network: str = "swin"
) -> dict[str, tuple[Any, str]]:
    """Settings of a cell by dotted name, each with the layer that it comes from; see `finetuning_settings`."""
    layers = {f"task {task}": ("paper", ()), f"profile {profile}": (profile, ()), "--set": (profile, changes)}
    return _origins({name: finetuning_settings(task, arch, *with_, network=network) for name, with_ in layers.items()})


def origins_of_pretraining(
    method: str, profile: str, changes: Sequence[str] = (), network: str | None = None
) -> dict[str, tuple[Any, str]]:
    """Settings of a pre-training by dotted name, each with the layer that it comes from; see `pretraining_settings`."""
    layers = {f"recipe of {method}": ("paper", ()), f"profile {profile}": (profile, ()), "--set": (profile, changes)}
    return _origins({name: pretraining_settings(method, *with_, network) for name, with_ in layers.items()})


def _origins(layers: Mapping[str, Finetuning | Pretraining]) -> dict[str, tuple[Any, str]]:
    """The values of the last layer, each with the first layer from which on it stays as it is."""
    kind = type(next(iter(layers.values())))
    usual = {each.name: each.default for each in fields(kind) if each.default is not MISSING}
    found = {key: (value, "default") for key, value in flattened(to_jsonable_python(usual)).items()}
    for source, settings in layers.items():
        values = flattened(as_facts(settings))
        new = {key: (value, source) for key, value in values.items() if found.get(key, (_UNSET,))[0] != value}
        found = {key: new.get(key) or found[key] for key in values}
    of_profile = next(name for name in layers if name.startswith("profile "))
    return found | {key: (found[key][0], of_profile) for key in ("profile", "width")}


def own_files(**named: str) -> list[Path]:
    """Files of the user's own among configs named by kind ("tasks", "profiles")."""
    files = (file_of(kind, name) for kind, name in named.items())
    return [path for path in files if path is not None and not path.is_relative_to(CONFIGS.absolute())]


def as_facts(settings: Finetuning | Pretraining) -> dict[str, Any]:
    """Plain nested dict of lists, numbers and strings: what is hashed and written into records."""
    facts: dict[str, Any] = to_jsonable_python(settings)
    return facts

"""Resolve settings in layers: configs/ and recipes, then a profile's changes, then the user's."""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, reduce
from pathlib import Path
from typing import Any

from pydantic_core import to_jsonable_python

from tespec.core.errors import UserError, require
from tespec.core.files import UNREADABLE, parse_yaml, read_yaml
from tespec.core.paths import CONFIGS
from tespec.core.renamed import VALUES
from tespec.core.settings import (
    ARCHITECTURES,
    INPUTS,
    Facts,
    Finetuning,
    Layer,
    Pretraining,
    Profile,
    build,
    known_settings,
    merge,
    suggest,
)
from tespec.registry import METHODS, pretrained_methods

Settings = Finetuning | Pretraining
# settings that --set does not change
CHOSEN = ("task", "name", "arch", "frozen", "profile", "backbone", "deviations")
# Settings that name a run or affect its speed instead of its result.
NAMES = ("task", "name", "arch", "profile", "title", "version", "deviations", "evaluation_lanes")
PRETRAINING = "pretraining."  # prefix of the changed settings of a cell's pre-training
# the user's config files by kind ("tasks", "profiles") and name
_added: dict[str, dict[str, Path]] = {}


def add_file(kind: str, path: Path) -> str:
    """Add a config file of the user.

    Args:
        kind: folder of configs that it extends, such as "tasks" or "profiles".
        path: a .yaml file.

    Returns:
        Name of the config, the file's stem.

    Raises:
        UserError: the file does not exist, or another config has its name.
    """
    path = path.absolute()
    is_yaml = path.suffix == ".yaml" and path.is_file() and path.stem.isprintable()
    require(is_yaml, path, "not an existing .yaml file with a printable name", "check the path")
    if path.stem not in files(kind):
        _added.setdefault(kind, {})[path.stem] = path
    named = files(kind)[path.stem]
    require(
        named == path, path, f"{named} already has the name {path.stem!r}", "rename one of them"
    )
    return path.stem


def user_files(**configs: str) -> list[Path]:
    """Files of those configs, given as `kind=name`, that the user has added, and of their bases."""
    added = [(kind, name) for kind, name in configs.items() if name in _added.get(kind, {})]
    return [files(kind)[facts["name"]] for kind, name in added for facts in _read(kind, name)]


def files(kind: str) -> dict[str, Path]:
    """Config files of one kind, such as "tasks" or "profiles", by name."""
    return {path.stem: path for path in (CONFIGS / kind).glob("*.yaml")} | _added.get(kind, {})


def names(kind: str) -> list[str]:
    """Sorted names of the configs of one kind."""
    return sorted(files(kind))


@lru_cache
def _parsed(path: Path, modified: int) -> Any:
    """Parse a config once for each of its modification times, in ns."""
    return read_yaml(path)


def _read(kind: str, name: str, based: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Read the bases of a config, a task has at most one, and the config, which takes precedence.

    `based` are the configs that are based on it.
    """
    path = files(kind).get(name)
    if path is None:
        raise UserError(name[:100], f"no such file in configs/{kind}", suggest(name, names(kind)))
    try:
        facts = _parsed(path, path.stat().st_mtime_ns)
    except UNREADABLE as error:
        raise UserError(path, f"not a readable YAML file ({error})", "fix or restore it") from error
    is_mapping = isinstance(facts, dict) and all(isinstance(key, str) for key in facts)
    require(is_mapping, path, "is not a mapping of settings", "fix or restore it")
    require(name not in based, f"base: {name}", "is based on itself", "choose another base")
    if based and kind == "tasks" and "base" in facts:
        raise UserError(f"base: {name}", "has a base itself", "choose a base that has none")
    bases = _read(kind, str(facts["base"]), (*based, name)) if "base" in facts else []
    return [*bases, facts | {"name": name}]


def _group(facts: Facts, key: str, source: str) -> Facts:
    """Return the group of settings `key`, empty if it is missing."""
    group = facts.get(key, {})
    if not isinstance(group, Mapping):
        raise UserError(source, f"{key} is not a mapping of settings", "write nested keys")
    return group


def _without(facts: Facts, *keys: str) -> dict[str, Any]:
    return {key: value for key, value in facts.items() if key not in keys}


def _not_inherited(task: Facts, base: Facts) -> set[str]:
    """Settings of a task's base that another data set, or another kind of task, does not have."""
    groups = {"dataset": {"protocol", "splits"}, "kind": {"head"}}
    changed = [groups[key] for key in groups if task.get(key, base.get(key)) != base.get(key)]
    return set().union(*changed)


def _task_layers(name: str) -> list[Layer]:
    """Return a task's config after the settings that it inherits from its base."""
    *bases, task = _read("tasks", name)
    layers: list[Layer] = []
    for base in bases:
        replaced = _not_inherited(task, base)
        inherited = _without(base, "name", *replaced)
        inherited |= {key: task[key] for key in replaced if key in task}
        layers.append((f"task {base['name']}", inherited))
    return [*layers, (f"task {name}", _without(task, "name"))]


def _profile_layers(profile: str, task: str) -> list[Layer]:
    """Return a profile's settings for all tasks, for the base of `task` if inherited, and for it.

    `downsample` is not inherited by another data set either, whose labels it may not be able to
    scale.
    """
    *bases, config = _read("tasks", task)
    layers: list[Layer] = []
    for part in read_profiles(profile):
        # Also those of the user's own tasks that this run does not read.
        beside = [file.stem for file in files("profiles")[part.name].parent.glob("*.yaml")]
        _refuse_unknown(part, "tasks", [*names("tasks"), *beside])
        layers.append((f"profile {part.name}", part.finetuning))
        for base in bases:
            replaced = _not_inherited(config, base)
            if "protocol" in replaced:
                replaced.add("downsample")
            inherited = _without(part.tasks.get(base["name"], {}), *replaced)
            layers.append((f"profile {part.name}, task {base['name']}", inherited))
        layers.append((f"profile {part.name}, task {task}", part.tasks.get(task, {})))
    return layers


def dataset_and_splits(task: str) -> tuple[str, dict[str, list[str]]]:
    """Name of a task's data set, and the splits by which its config replaces the official ones."""
    config = {key: value for _, layer in _task_layers(task) for key, value in layer.items()}
    splits = _group(config, "splits", f"task {task}")
    return str(config.get("dataset")), {split: names for split, names in splits.items() if names}


def read_profiles(name: str) -> list[Profile]:
    """Read the base of a profile, if it has one, and the profile itself, which takes precedence."""
    return [build(Profile, facts, f"profile {facts['name']}") for facts in _read("profiles", name)]


def _refuse_unknown(profile: Profile, group: str, known: Collection[str]) -> None:
    """Refuse a profile whose group "tasks", "methods" or "backbones" has a name without effect."""
    for name in getattr(profile, group):
        if name not in known:
            where = f"profile {profile.name}, {group}"
            raise UserError(where, f"unknown name {name[:100]!r}", suggest(name, known))


def _scale(profile: str, network: str) -> dict[str, Any]:
    """Profile and backbone of a run; `network` is a kind of network or a registered backbone."""
    backbone = _backbones(profile).get(network, network)
    if backbone in VALUES["backbone"]:
        present = VALUES["backbone"].values()
        raise UserError("backbone", f"unknown value {backbone!r}", suggest(backbone, present))
    return {"profile": profile, "backbone": backbone}


def _backbones(profile: str) -> dict[str, str]:
    """Backbones of a profile by kind of network."""
    paper, *_ = _read("profiles", "paper")
    parts = read_profiles(profile)
    for part in parts:
        _refuse_unknown(part, "backbones", paper["backbones"])
    return {kind: name for part in parts for kind, name in part.backbones.items()}


def differences(used: Facts, paper: Facts, unused: Sequence[str] = ()) -> list[str]:
    """List the settings that differ from the paper's.

    Settings that only one of the two has, such as those of a decoder of another type, are left out,
    since the type is listed.

    Args:
        used: settings of a run, nested.
        paper: the paper's settings.
        unused: settings, or groups of them, without effect on the run.

    Returns:
        Texts "name: value instead of value" with dotted names.
    """
    values = flattened(used)
    return [
        f"{key}: {_shown(values[key])} instead of {_shown(published)}"
        for key, published in flattened(paper).items()
        if values.get(key, published) != published and key.split(".")[0] not in {*NAMES, *unused}
    ]


def _shown(value: Any) -> str:
    """Format a setting's value in at most 40 characters."""
    if isinstance(value, float):
        return f"{value:g}"
    text = value if isinstance(value, str) else json.dumps(value)
    if len(text) <= 40:
        return text
    return f"{len(value)} values" if isinstance(value, list) else f"{text[:37]}..."


def repository_task(task: str) -> str:
    """Return the task of this repository that `task` is or is based on, "" for none."""
    tasks = [str(facts["name"]) for facts in _read("tasks", task)]
    return next((name for name in tasks if name not in _added.get("tasks", {})), "")


def _split_by_arch(source: str, layer: Facts, arch: str, known: Collection[str]) -> list[Layer]:
    """Split a config into its settings for all architectures and those for `arch`."""
    groups = _group(layer, "architectures", source)
    for name in map(str, groups):
        if name not in {*known, *ARCHITECTURES}:
            raise UserError(source, f"unknown architecture {name!r}", suggest(name, known))
    of_all = _without(layer, "architectures", "base")
    if "splits" in of_all:
        splits = _group(of_all, "splits", source)
        of_all["splits"] = {**splits, "val": splits.get("val", [])}
    return [(source, of_all), (source, _group({arch: groups.get(arch) or {}}, arch, source))]


def cell_layers(
    task: str,
    arch: str,
    profile: str,
    changes: Sequence[str] = (),
    of_data: Facts | None = None,
    backbone: str = "",
    *,
    frozen: bool = False,
) -> list[Layer]:
    """List the layers of a cell's settings: of task, profile, data, backbone and user, in order.

    Args:
        task: name of a task config.
        arch: "recurrent" or "feedforward".
        profile: name of a profile.
        changes: the user's changes, as `KEY=VALUE`.
        of_data: overrides of the data, see `Description.overrides`.
        backbone: its name, since that of a published file has its own input.
        frozen: whether only the head is trained.

    Returns:
        Source and settings of each layer. A config gives two layers: its settings for all
        architectures, and those for `arch`; two more if `frozen`, from its group of that name.

    Raises:
        UserError: a config, change or architecture is unknown or malformed.
    """
    configs = [*_task_layers(task), *_profile_layers(profile, task)]
    source, first = configs[0]
    known = list(map(str, _group(first, "architectures", source)))
    require(arch in known, source, f"no architecture {arch!r}", f"choose from {', '.join(known)}")
    layers: list[Layer] = []
    for source, layer in [*configs, ("dataset.json", of_data or {})]:
        layers += _split_by_arch(source, _without(layer, "frozen"), arch, known)
        of_frozen = _group(layer, "frozen", source)
        if frozen:
            layers += _split_by_arch(f"{source}, frozen", of_frozen, arch, known)
    layers.append((f"backbone {backbone}", INPUTS.get(backbone, {})))
    of_user = [parse_change(change) for change in changes]
    values = {key: value for _, layer in of_user for key, value in flattened(layer).items()}
    if "optimisation.peak_lr" in values:  # the user's peak rate also holds after pre-training
        data_sets = [_group(layer, "peak_lr_after", source) for source, layer in layers]
        peaks = dict.fromkeys(set().union(*data_sets), values["optimisation.peak_lr"])
        layers.append(("--set optimisation.peak_lr", {"peak_lr_after": peaks}))
    return [*layers, *of_user]


def pretraining_layers(method: str, profile: str, changes: Sequence[str] = ()) -> list[Layer]:
    """List the layers of a pre-training's settings by recipe, profile and user, in this order.

    A profile's settings for the method override its settings for all; both override its base's.

    Args:
        method: registered name.
        profile: name of a profile.
        changes: the user's changes, as `KEY=VALUE`; `objective=NAME` trains another method's loss.

    Returns:
        Source and settings of each layer: first the recipe, then the loss.

    Raises:
        UserError: the profile or a change is unknown or malformed, or a method has no recipe.
    """
    recipe = recipe_of(method).recipe
    swaps = [change for change in changes if change.startswith("objective=")]
    objective = str(parse_change(swaps[-1])[1]["objective"]) if swaps else method
    loss = as_facts(recipe_of(objective).recipe)["objective"]
    layers: list[Layer] = [
        (f"recipe of {method}", _changeable(recipe)),
        (f"recipe of {objective}", {"objective": {"type": objective, **loss}}),
    ]
    # The data set that a profile sets for all methods is one of recordings, not of images.
    of_images = recipe.dataset not in names("tasks")
    for part in read_profiles(profile):
        _refuse_unknown(part, "methods", pretrained_methods())
        source = f"profile {part.name}, method"
        of_loss = _group(part.methods.get(objective, {}), "objective", f"profile {part.name}")
        of_all = _without(part.pretraining, "dataset") if of_images else part.pretraining
        layers += [
            (f"profile {part.name}", of_all),
            (f"{source} {method}", _without(part.methods.get(method, {}), "objective")),
            (f"{source} {objective}", {"objective": of_loss}),
        ]
    return [*layers, *(parse_change(change) for change in changes if change not in swaps)]


def recipe_of(method: str) -> Any:
    """Return the class of a method with a pre-training recipe; raise `UserError` without one."""
    known = pretrained_methods()
    if method not in known:
        where = f"method {method[:100]}"
        raise UserError(where, "has no pre-training recipe", f"choose from {', '.join(known)}")
    return METHODS.module_dict[method]


def parse_change(change: str) -> Layer:
    """Parse the user's `KEY=VALUE`, with a dotted key; raise `UserError` if it is malformed.

    >>> parse_change("optimisation.steps=100")
    ('--set optimisation.steps=100', {'optimisation': {'steps': 100}})
    """
    path, equals, text = change.partition("=")
    if not equals:
        raise UserError(
            f"--set {change}", "no '='", "write --set KEY=VALUE, e.g. optimisation.steps=100"
        )
    try:
        value = parse_yaml(text)
    except UNREADABLE as error:
        raise UserError(f"--set {change}", "the value is not valid YAML", "quote it") from error
    keys = reversed(path.split("."))
    return f"--set {change}", reduce(lambda nested, key: {key: nested}, keys, value)


def cell_facts(
    task: str,
    arch: str,
    profile: str,
    changes: Sequence[str],
    of_data: Facts | None = None,
    backbone: str = "",
    *,
    frozen: bool = False,
) -> Facts:
    """Merge the layers of a cell, see `cell_layers` for the arguments and errors.

    Returns:
        All settings that `--set` can change. Only the task's config may have settings for which
        there is no default.
    """
    (source, of_all), of_arch, *layers = cell_layers(
        task, arch, profile, changes, of_data, backbone, frozen=frozen
    )
    defaults = build(Finetuning, merge(of_all, of_arch, strict=False), source)
    return reduce(merge, layers, _changeable(defaults))


def finetuning_settings(
    task: str,
    arch: str,
    profile: str,
    changes: Sequence[str] = (),
    of_data: Facts | None = None,
    network: str = "swin",
    *,
    frozen: bool = False,
) -> Finetuning:
    """Resolve the settings of one cell: task config, profile, data, and the user's changes.

    Args:
        task: name of a task config.
        arch: "recurrent" or "feedforward".
        profile: name of a profile.
        changes: the user's changes, as `KEY=VALUE`.
        of_data: overrides of the data, see `Description.overrides`.
        network: kind of network, whose backbone the profile chooses, or a backbone.
        frozen: whether only the head is trained.

    Returns:
        The settings. `deviations` lists the differences from the paper's settings of the same task,
        or of the task's base; a task without either has none.

    Raises:
        UserError: a name is unknown, or a setting is unknown or invalid.
    """
    scale = _scale(profile, network)
    facts = {
        **cell_facts(task, arch, profile, changes, of_data, scale["backbone"], frozen=frozen),
        **scale,
        "task": task,
        "arch": arch,
        "frozen": frozen,
    }
    settings = build(Finetuning, facts, f"task {task}")
    settings.check()
    of_repository = repository_task(task)
    if not of_repository:
        return settings
    # A network that was chosen by name is compared with the one that most methods have.
    kind = network if network in _backbones("paper") else "swin"
    published = cell_facts(of_repository, arch, "paper", (), frozen=frozen)
    paper = {**published, **_scale("paper", kind)}
    return replace(settings, deviations=tuple(differences(as_facts(settings), paper)))


def pretraining_settings(
    method: str, profile: str, changes: Sequence[str] = (), network: str = ""
) -> Pretraining:
    """Resolve the settings of one pre-training: the method's recipe, profile, and user's changes.

    Args:
        method: registered name of a method with a recipe.
        profile: name of a profile.
        changes: the user's changes, as `KEY=VALUE`. `objective=NAME` trains the loss of another
            method, with that method's own settings.
        network: as in `finetuning_settings`, by default the method's kind.

    Returns:
        The settings. `deviations` lists those that the recipe and the method of the loss declare,
        and the settings that differ from the published ones.

    Raises:
        UserError: a name is unknown, or a setting is unknown or invalid.
    """
    kind = recipe_of(method)
    recipe, loss, *layers = pretraining_layers(method, profile, changes)
    published = merge(recipe[1], loss)
    facts = reduce(merge, layers, published) | _scale(profile, network or kind.network)
    settings = build(Pretraining, facts | {"name": method}, f"method {method}")
    settings.check()
    trained = recipe_of(settings.objective["type"])
    paper = published | _scale("paper", kind.network)
    paper["objective"] = paper["objective"] | {"type": method}
    changed = differences(as_facts(settings), paper, trained.unused)
    return replace(settings, deviations=(*kind.recipe.deviations, *trained.deviations, *changed))


def split_changes(changes: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Split the user's changes into those of a cell and, without prefix, of its pre-training."""
    of_pretraining = [change for change in changes if change.startswith(PRETRAINING)]
    of_cell = tuple(change for change in changes if change not in of_pretraining)
    return of_cell, tuple(change.removeprefix(PRETRAINING) for change in of_pretraining)


def refuse_unknown_changes(changes: Sequence[str]) -> None:
    """Refuse changes of settings that no pre-training has; this needs no torch."""
    for change in changes:
        known = {k: v for k, v in known_settings(Pretraining).items() if k != "backbone"}
        merge(known, parse_change(change))


def changed_settings(
    settings: Settings, network: str, of_data: Facts | None = None
) -> dict[str, Any]:
    """Select the settings that differ from the defaults.

    Args:
        settings: of a cell or a pre-training.
        network: kind of network or backbone of the defaults, as in `finetuning_settings`.
        of_data: overrides of the data, which belong to the defaults.

    Returns:
        Values by dotted name. The defaults are those by task, architecture, profile and data, or by
        recipe. For a pre-training, "objective" is the name of another method whose loss is trained,
        "objective_version" that method's version above 1.
    """
    changed: dict[str, Any] = {}
    if isinstance(settings, Finetuning):
        default: Any = finetuning_settings(
            settings.task,
            settings.arch,
            settings.profile,
            (),
            of_data,
            network,
            frozen=settings.frozen,
        )
    else:
        objective = settings.objective["type"]
        default = pretraining_settings(
            settings.name, settings.profile, [f"objective={objective}"], network
        )
        if objective != settings.name:
            version = recipe_of(objective).version
            changed["objective"] = objective
            changed |= {"objective_version": version} if version > 1 else {}
    values = flattened(as_facts(settings))
    defaults = flattened(as_facts(default))
    keys = sorted({*values, *defaults} - {"deviations"})  # they follow from the others
    return changed | {key: values.get(key) for key in keys if values.get(key) != defaults.get(key)}


def flattened(facts: Facts, prefix: str = "") -> dict[str, Any]:
    """Flatten nested mappings.

    Args:
        facts: settings, nested.
        prefix: written before each name.

    Returns:
        Values by dotted name; an empty mapping is a value.

    >>> flattened({"mask": {"unit": 32, "ratio": 0.5}, "bins": 10})
    {'mask.unit': 32, 'mask.ratio': 0.5, 'bins': 10}
    """
    flat: dict[str, Any] = {}
    for key, value in facts.items():
        nested = isinstance(value, Mapping) and value
        flat |= flattened(value, f"{prefix}{key}.") if nested else {f"{prefix}{key}": value}
    return flat


def as_facts(settings: Settings) -> dict[str, Any]:
    """Convert settings to nested dicts of lists, numbers and strings, as in records and hashes."""
    return to_jsonable_python(settings)


def _changeable(settings: Settings) -> dict[str, Any]:
    return _without(as_facts(settings), *CHOSEN)

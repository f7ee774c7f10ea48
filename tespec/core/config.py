"""Resolve settings in layers: configs/ and recipes, then a profile's changes, then values set by the user."""

import json
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache, reduce
from pathlib import Path
from typing import Any

from pydantic_core import to_jsonable_python

from tespec.core.errors import UserError
from tespec.core.files import UNREADABLE, parse_yaml, read_yaml
from tespec.core.paths import CONFIGS
from tespec.core.settings import (
    ARCHITECTURES,
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
# in records and recipes of pre-trainings: hash of the user's file of another network
UPSTREAM = "upstream_sha256"
# settings that --set does not change
CHOSEN = ("task", "name", "arch", "profile", "backbone", "deviations")
# Settings that name a run or affect its speed instead of its result.
NAMES = ("task", "name", "arch", "profile", "title", "version", "deviations", "evaluation_lanes")
# the user's config files by kind ("tasks", "profiles") and name
_added: dict[str, dict[str, Path]] = {}


def add_file(kind: str, path: Path) -> str:
    """Add a config file of the user and return its name, the file's stem, which no other config may have."""
    path = path.absolute()
    if path.suffix != ".yaml" or not path.is_file():
        raise UserError(path, "not an existing .yaml file", "check the path")
    before = files(kind).get(path.stem)
    if before is None:
        _added.setdefault(kind, {})[path.stem] = path
    elif before != path:
        raise UserError(path, f"{before} already has the name {path.stem!r}", "rename one of them")
    return path.stem


def own_files(**named: str) -> list[Path]:
    """Files of those configs, given as `kind=name`, that the user has added."""
    return [_added[kind][name] for kind, name in named.items() if name in _added.get(kind, {})]


def files(kind: str) -> dict[str, Path]:
    """Config files of one kind, such as "tasks" or "profiles", by name."""
    return {path.stem: path for path in (CONFIGS / kind).glob("*.yaml")} | _added.get(kind, {})


def names(kind: str) -> list[str]:
    """Sorted names of the configs of one kind."""
    return sorted(files(kind))


@lru_cache
def _parsed(path: Path, changed: int) -> Any:
    """Parse a config; the modification time `changed` is part of the cache key, so changed files are read again."""
    return read_yaml(path)


def _read(kind: str, name: str, above: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Read the bases of a config, a task has at most one, and the config itself; a later one takes precedence.

    `above` are the configs that are based on it.
    """
    path = files(kind).get(name)
    if path is None:
        raise UserError(name[:100], f"no such file in configs/{kind}", suggest(name, names(kind)))
    try:
        facts = _parsed(path, path.stat().st_mtime_ns)
    except UNREADABLE as error:
        raise UserError(path, f"not a readable YAML file ({error})", "fix or restore it") from error
    if not isinstance(facts, dict) or not all(isinstance(key, str) for key in facts):
        raise UserError(path, "is not a mapping of settings", "fix or restore it")
    if name in above:
        raise UserError(f"base: {name}", "is based on itself", "choose another base")
    if above and kind == "tasks" and "base" in facts:
        raise UserError(f"base: {name}", "has a base itself", "choose a base that has none")
    bases = _read(kind, str(facts["base"]), (*above, name)) if "base" in facts else []
    return [*bases, facts | {"name": name}]


def _group(facts: Facts, key: str, source: str) -> Facts:
    """Return the group of settings `key`, empty if it is missing."""
    group = facts.get(key, {})
    if not isinstance(group, Mapping):
        raise UserError(source, f"{key} is not a mapping of settings", "write nested keys")
    return group


def _not_inherited(task: Facts, base: Facts) -> set[str]:
    """Settings of a task's base that another data set, or another kind of task, does not have."""
    groups = {"dataset": {"protocol", "splits"}, "kind": {"head"}}
    changed = [groups[key] for key in groups if task.get(key, base.get(key)) != base.get(key)]
    return set().union(*changed)


def _task_layers(name: str) -> list[Layer]:
    """Return a task's config after what it inherits of its base."""
    *bases, task = _read("tasks", name)
    layers: list[Layer] = []
    for base in bases:
        lost = _not_inherited(task, base)
        kept = {key: value for key, value in base.items() if key not in {"name", *lost}}
        layers.append(
            (f"task {base['name']}", kept | {key: task[key] for key in lost if key in task})
        )
    return [*layers, (f"task {name}", {key: value for key, value in task.items() if key != "name"})]


def _profile_layers(profile: str, task: str) -> list[Layer]:
    """Return a profile's settings for all tasks, for the base of `task` as far as they are inherited, and for `task`.

    `downsample` is not inherited by another data set either, whose labels it may not be able to
    scale.
    """
    *bases, own = _read("tasks", task)
    layers: list[Layer] = []
    for each in read_profiles(profile):
        layers.append((f"profile {each.name}", each.finetuning))
        for base in bases:
            lost = _not_inherited(own, base)
            lost |= {"downsample"} if "protocol" in lost else set()
            section = each.tasks.get(base["name"], {})
            kept = {key: value for key, value in section.items() if key not in lost}
            layers.append((f"profile {each.name}, task {base['name']}", kept))
        layers.append((f"profile {each.name}, task {task}", each.tasks.get(task, {})))
    return layers


def dataset_and_splits(task: str) -> tuple[str, dict[str, list[str]]]:
    """Registered name of a task's data set, and the splits by which the task's config replaces official ones."""
    config = {key: value for _, layer in _task_layers(task) for key, value in layer.items()}
    splits = _group(config, "splits", f"task {task}")
    return str(config.get("dataset")), {split: names for split, names in splits.items() if names}


def read_profiles(name: str) -> list[Profile]:
    """Read the base of a profile, if it has one, and the profile itself, which takes precedence."""
    return [build(Profile, each, f"profile {each['name']}") for each in _read("profiles", name)]


def _scale(profile: str, network: str) -> dict[str, Any]:
    """Profile and architecture of a run; `network` is a kind of network or a registered architecture."""
    return {"profile": profile, "backbone": _backbones(profile).get(network, network)}


def _backbones(profile: str) -> dict[str, str]:
    """Architectures of a profile by kind of network."""
    return {kind: name for each in read_profiles(profile) for kind, name in each.backbones.items()}


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
    ours, theirs = flattened(used), flattened(paper)
    common = [
        key for key in theirs if key in ours and key.partition(".")[0] not in {*NAMES, *unused}
    ]
    texts = {key: f"{key}: {_shown(ours[key])} instead of {_shown(theirs[key])}" for key in common}
    return [texts[key] for key in common if ours[key] != theirs[key]]


def _shown(value: Any) -> str:
    """Write a setting's value in at most 40 characters."""
    if isinstance(value, float):
        return f"{value:g}"
    text = value if isinstance(value, str) else json.dumps(value)
    if len(text) <= 40:
        return text
    return f"{len(value)} values" if isinstance(value, list) else f"{text[:37]}..."


@cache
def _paper_cell(task: str, arch: str) -> Facts:
    """Settings of a task of this repository in profile `paper`."""
    return cell_facts(task, arch, "paper", ())


def repository_task(task: str) -> str:
    """Return the task of this repository that `task` is or is based on, "" for none."""
    names = [str(each["name"]) for each in _read("tasks", task)]
    return next((name for name in names if name not in _added.get("tasks", {})), "")


def cell_layers(
    task: str, arch: str, profile: str, changes: Sequence[str] = (), of_data: Facts | None = None
) -> list[Layer]:
    """Settings of a cell by task, profile, data and user, in this order; arguments as in `finetuning_settings`.

    Each config gives two layers: its settings for all architectures, and those for this one.
    """
    every = [*_task_layers(task), *_profile_layers(profile, task)]
    source, first = every[0]
    known = _group(first, "architectures", source)
    if arch not in known:
        raise UserError(
            source, f"no architecture {arch!r}", f"choose from {', '.join(map(str, known))}"
        )
    layers: list[Layer] = []
    for source, layer in [*every, ("dataset.json", of_data or {})]:
        groups = _group(layer, "architectures", source)
        if unknown := [str(name) for name in groups if name not in {*known, *ARCHITECTURES}]:
            raise UserError(
                source, f"unknown architecture {unknown[0]!r}", suggest(unknown[0], known)
            )
        of_all = {
            key: value for key, value in layer.items() if key not in ("architectures", "base")
        }
        if "splits" in of_all:
            splits = _group(of_all, "splits", source)
            of_all["splits"] = {**splits, "val": splits.get("val", [])}
        layers += [(source, of_all), (source, _group({arch: groups.get(arch) or {}}, arch, source))]
    of_user = [parse_change(change) for change in changes]
    given = {key: value for _, layer in of_user for key, value in flattened(layer).items()}
    if "optimisation.peak_lr" in given:  # the user's peak rate also holds after pre-training
        after = {
            name for source, layer in layers for name in _group(layer, "peak_lr_after", source)
        }
        peaks = dict.fromkeys(after, given["optimisation.peak_lr"])
        layers.append(("--set optimisation.peak_lr", {"peak_lr_after": peaks}))
    return [*layers, *of_user]


def pretraining_layers(method: str, profile: str, changes: Sequence[str] = ()) -> list[Layer]:
    """Settings of a pre-training by recipe, profile and user, in this order; arguments as in `pretraining_settings`."""
    kind, every = recipe_of(method), read_profiles(profile)
    swaps = [change for change in changes if change.startswith("objective=")]
    objective = str(parse_change(swaps[-1])[1]["objective"]) if swaps else method
    loss = as_facts(recipe_of(objective).recipe)["objective"]
    layers = [
        (f"recipe of {method}", _changeable(kind.recipe)),
        (f"recipe of {objective}", {"objective": {"type": objective, **loss}}),
        *((f"profile {each.name}", each.pretraining) for each in every),
    ]
    # Settings for a method, in the profile or its base, override the profile's settings for all
    # methods.
    for each in every:
        of_method = {
            key: value for key, value in each.methods.get(method, {}).items() if key != "objective"
        }
        of_loss = {
            "objective": _group(
                each.methods.get(objective, {}), "objective", f"profile {each.name}"
            )
        }
        layers += [
            (f"profile {each.name}, method {method}", of_method),
            (f"profile {each.name}, method {objective}", of_loss),
        ]
    return [*layers, *(parse_change(change) for change in changes if change not in swaps)]


def recipe_of(method: str) -> Any:
    """Return the class of a method with a pre-training recipe; raise `UserError` if it has none."""
    if method not in (known := pretrained_methods()):
        raise UserError(
            f"method {method[:100]}",
            "has no pre-training recipe",
            f"choose from {', '.join(known)}",
        )
    return METHODS.module_dict[method]


def parse_change(change: str) -> Layer:
    """Parse the user's `KEY=VALUE`, with a dotted key, into a layer; raise `UserError` if it is malformed."""
    path, equals, text = change.partition("=")
    if not equals:
        raise UserError(
            f"--set {change}", "no '='", "write --set KEY=VALUE, e.g. optimisation.steps=100"
        )
    try:
        value = parse_yaml(text)
    except UNREADABLE as error:
        raise UserError(f"--set {change}", "the value is not valid YAML", "quote it") from error
    return f"--set {change}", reduce(
        lambda nested, key: {key: nested}, reversed(path.split(".")), value
    )


def cell_facts(
    task: str, arch: str, profile: str, changes: Sequence[str], of_data: Facts | None = None
) -> Facts:
    """Merge the layers of a cell; only its task's config may have settings for which there is no default."""
    (source, of_all), of_arch, *layers = cell_layers(task, arch, profile, changes, of_data)
    usual = build(Finetuning, merge(of_all, of_arch, strict=False), source)
    return reduce(merge, layers, _changeable(usual))


def finetuning_settings(
    task: str,
    arch: str,
    profile: str,
    changes: Sequence[str] = (),
    of_data: Facts | None = None,
    network: str = "swin",
) -> Finetuning:
    """Resolve the settings of one cell: task config, profile, overrides of the data, and the user's changes.

    `of_data` are the overrides of the data, see `Description.overrides`; `network` is a kind of
    network, whose architecture the profile chooses, or an architecture. `deviations` of the result
    lists the differences from the paper's settings of the same task, or of the task's base; a task
    without either has none.
    """
    names = {"task": task, "arch": arch, **_scale(profile, network)}
    facts = {**cell_facts(task, arch, profile, changes, of_data), **names}
    settings = build(Finetuning, facts, f"task {task}")
    settings.check()
    if not (of_repository := repository_task(task)):
        return settings
    # A network that was chosen by name is compared with the one that most methods have.
    kind = network if network in _backbones("paper") else "swin"
    paper = {**_paper_cell(of_repository, arch), **_scale("paper", kind)}
    return build(
        Finetuning, facts | {"deviations": differences(as_facts(settings), paper)}, f"task {task}"
    )


def pretraining_settings(
    method: str, profile: str, changes: Sequence[str] = (), network: str = ""
) -> Pretraining:
    """Resolve the settings of one pre-training: the method's recipe, then the profile, then the user's changes.

    The change `objective=NAME` trains the loss of another method, with that method's own settings.
    `network` is as in `finetuning_settings`, by default the method's.
    """
    kind, (usual, loss, *layers) = recipe_of(method), pretraining_layers(method, profile, changes)
    published = merge(usual[1], loss)
    scale = _scale(profile, network or kind.network)
    facts = reduce(merge, layers, published) | scale | {"name": method}
    settings = build(Pretraining, facts, f"method {method}")
    settings.check()
    trained = recipe_of(settings.objective["type"])
    paper = published | _scale("paper", kind.network)
    paper["objective"] = paper["objective"] | {"type": method}
    changed = differences(as_facts(settings), paper, trained.unused)
    deviations = [*kind.recipe.deviations, *trained.deviations, *changed]
    return build(Pretraining, facts | {"deviations": deviations}, f"method {method}")


def refuse_unknown_changes(changes: Sequence[str]) -> None:
    """Refuse changes of settings that a pre-training by any method does not have; needs no torch."""
    for change in changes:
        merge(known_settings(Pretraining), parse_change(change))


def changed_settings(
    settings: Settings, network: str, of_data: Facts | None = None
) -> dict[str, Any]:
    """Settings that differ from the defaults by task, architecture, profile and data, or by recipe, by dotted name.

    For a pre-training, "objective" is the name of another method whose loss is trained,
    "objective_version" that method's version above 1. `network` and `of_data` are as in
    `finetuning_settings`.
    """
    changed: dict[str, Any] = {}
    if isinstance(settings, Finetuning):
        default: Any = finetuning_settings(
            settings.task, settings.arch, settings.profile, (), of_data, network
        )
    else:
        objective = settings.objective["type"]
        default = pretraining_settings(
            settings.name, settings.profile, [f"objective={objective}"], network
        )
        if objective != settings.name:
            version = recipe_of(objective).version
            changed = {"objective": objective} | (
                {"objective_version": version} if version > 1 else {}
            )
    ours, usual = flattened(as_facts(settings)), flattened(as_facts(default))
    names = sorted({*ours, *usual} - {"deviations"})  # follow from the others
    return changed | {key: ours.get(key) for key in names if ours.get(key) != usual.get(key)}


def flattened(facts: Facts, prefix: str = "") -> dict[str, Any]:
    """Flatten nested dicts to values by dotted name."""
    found: dict[str, Any] = {}
    for key, value in facts.items():
        nested = isinstance(value, Mapping) and value
        found |= flattened(value, f"{prefix}{key}.") if nested else {f"{prefix}{key}": value}
    return found


def as_facts(settings: Settings) -> dict[str, Any]:
    """Convert settings to nested dicts of lists, numbers and strings, as hashed and written into records."""
    return to_jsonable_python(settings)


def _changeable(settings: Settings) -> dict[str, Any]:
    return {key: value for key, value in as_facts(settings).items() if key not in CHOSEN}

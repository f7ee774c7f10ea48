"""Resolve settings in layers: configs/ and recipes, then a profile's changes, then values set by the user."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic_core import to_jsonable_python

from tespec.core.errors import UserError
from tespec.core.files import UNREADABLE, parse_yaml, read_yaml
from tespec.core.paths import CONFIGS
from tespec.core.settings import Finetuning, Pretraining, Profile, build, merge, refuse_unknown, suggest
from tespec.registry import METHODS, pretrained_methods

Layer = tuple[str, Mapping[str, Any]]  # source and nested settings
OFFICIAL_SPLITS = dict.fromkeys(("train", "val", "test"))  # None: the recordings listed by the data set's class
# Defaults of fine-tuning, for all task configs.
TASK_DEFAULTS: dict[str, Any] = {
    "splits": OFFICIAL_SPLITS,
    "sensor_px": None,
    "downsample": {"factor": 1, "keep": "nearest", "to_width": None},
    "bins": 10,
    "rule": "edges",  # bins divide the window (Eq. 3); rvt: bins as in RVT's archives
    "head": {},
    "drop_path": 0.0,  # RVT uses none; the paper does not specify it
    "optimisation": {
        "optimizer": "Adam",  # RVT: AdamW without weight decay, which is the same update
        "start_divisor": 25,  # c1 in the paper
        "end_divisor": 1000,  # c2 in the paper
        "clip": {"by": "value", "at": 1.0},  # as in RVT; the paper does not specify it
        "weight_decay": {"start": 0.0, "end": 0.0, "exempt": []},  # 0 in RVT
        "patch_embed_lr": 1.0,
        "precision": "auto",  # RVT: fp16; the paper does not specify it
    },
    "augmentation": {"flip": 0.0, "zoom": 0.0, "zoom_in_share": 0.8, "zoom_in": [1.0, 1.5], "zoom_out": [1.0, 1.2]},
    "peak_lr_after": {},
    # RVT's mixed sampling (data/genx_utils, modules/detection.py). The paper uses RVT's data loading for pre-training
    # and detection; it does not specify the sampling of the other tasks.
    "sampling": "mixed",
    "labels_per_chunk": None,  # labelled segments per lane and step that reach the head; None: all
    "label_share": 1.0,  # fraction of the training labels, spread evenly over each recording; the rest is unused
    "evaluation_lanes": 1,  # recordings evaluated in parallel; affects speed and memory, not predictions
    # "flip": average the logits with those of the mirrored image; "ecddp": also at scales 1.5 and 2, as in ECDDP's
    # published numbers (eval_seg.py). The paper uses none.
    "test_time_augmentation": "none",
}
UPSTREAM = "upstream_sha256"  # in records and recipes of pre-trainings: hash of the user's file of another network
CHOSEN = ("name", "profile", "width", "deviations")  # pre-training fields that --set does not change
_added: dict[str, dict[str, Path]] = {}  # the user's config files by kind ("tasks", "profiles") and name


def add_file(kind: str, path: Path) -> str:
    """Add a config file of the user and return its name, the file's stem.

    Raises:
        UserError: the file does not exist, or another config has the same name.
    """
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


def _read(kind: str, name: str) -> dict[str, Any]:
    path = files(kind).get(name)
    if path is None:
        raise UserError(name[:100], f"no such file in configs/{kind}", f"choose from {', '.join(names(kind))}")
    try:
        facts = _parsed(path, path.stat().st_mtime_ns)
    except UNREADABLE as error:
        raise UserError(path, f"not a readable YAML file ({error})", "fix or restore it") from error
    if not isinstance(facts, dict) or not all(isinstance(key, str) for key in facts):
        raise UserError(path, "is not a mapping of settings", "fix or restore it")
    return facts | {"name": name}


def _with_base(kind: str, name: str) -> list[dict[str, Any]]:
    """Return the base of a config, if it has one, and the config itself, which takes precedence."""
    own = _read(kind, name)
    if "base" not in own:
        return [own]
    base = _read(kind, str(own["base"]))
    if "base" in base:
        raise UserError(f"base: {own['base']}", "has a base itself", "choose a base that has none")
    return [base, own]


def _group(facts: Mapping[str, Any], key: str, source: str) -> Mapping[str, Any]:
    """Return the group of settings `key`, empty if it is missing."""
    group = facts.get(key, {})
    if not isinstance(group, Mapping):
        raise UserError(source, f"{key} is not a mapping of settings", "write nested keys")
    return group


def _task_layers(name: str) -> list[Layer]:
    """Return a task's config after that of its base; protocol and splits are not inherited from another data set."""
    *bases, own = _with_base("tasks", name)
    for base in bases:
        if own.get("dataset", base.get("dataset")) != base.get("dataset"):
            base |= {"protocol": own.get("protocol", {}), "splits": OFFICIAL_SPLITS}
    return [(f"task {each.pop('name')}", each) for each in (*bases, own)]


def _of_task(name: str, key: str) -> Any:
    return next((facts[key] for _, facts in reversed(_task_layers(name)) if key in facts), None)


def dataset_of_task(task: str) -> str:
    """Registered name of a task's data set."""
    return str(_of_task(task, "dataset"))


def splits_of_tasks() -> list[tuple[str, dict[str, list[str]]]]:
    """For each task, the registered name of its data set and the splits by which its config replaces official ones."""
    found = []
    for name in names("tasks"):
        splits = _group({"splits": _of_task(name, "splits") or {}}, "splits", f"task {name}")
        found += [(dataset_of_task(name), {split: each for split, each in splits.items() if each})]
    return found


def read_profiles(name: str) -> list[Profile]:
    """Read the base of a profile, if it has one, and the profile itself, which takes precedence.

    Raises:
        UserError: the profile does not exist, or has an unknown setting.
    """
    return [build(Profile, each, f"profile {each['name']}") for each in _with_base("profiles", name)]


def _scale(profile: str, network: str) -> dict[str, Any]:
    """Profile, architecture and deviations of a run; `network` is a kind of network or a registered architecture."""
    every = read_profiles(profile)
    networks = {kind: width for each in every for kind, width in each.networks.items()}
    deviations = tuple(deviation for each in every for deviation in each.deviations)
    return {"profile": profile, "width": networks.get(network, network), "deviations": deviations}


def cell_layers(
    task: str, arch: str, profile: str, changes: Sequence[str] = (), of_data: Mapping[str, Any] | None = None
) -> list[Layer]:
    """Settings of a cell by task, profile, data and user, in this order; arguments as in `finetuning_settings`."""
    layers = _task_layers(task)
    source, first = layers[0]
    known = _group(first, "architectures", source)
    if arch not in known:
        raise UserError(source, f"no architecture {arch!r}", f"choose from {', '.join(map(str, known))}")
    for each in read_profiles(profile):
        layers += [(f"profile {each.name}", each.finetuning)]
        layers += [(f"profile {each.name}, task {task}", each.tasks.get(task, {}))]
    layers += [("dataset.json", of_data or {})]
    of_arch = [(source, _of_architecture(layer, arch, known, source)) for source, layer in layers]
    of_user = [parse_change(change) for change in changes]
    given = {key: value for _, layer in of_user for key, value in flattened(layer).items()}
    after = {name for source, layer in of_arch for name in _group(layer, "peak_lr_after", source)}
    if after and "optimisation.peak_lr" in given:  # the user's peak rate also holds after pre-training
        peaks = dict.fromkeys(after, given["optimisation.peak_lr"])
        of_arch.append(("--set optimisation.peak_lr", {"peak_lr_after": peaks}))
    return [*of_arch, *of_user]


def _of_architecture(layer: Mapping[str, Any], arch: str, known: Iterable[str], source: str) -> dict[str, Any]:
    """Settings of a layer for one architecture, which override those for all architectures."""
    groups = _group(layer, "architectures", source)
    for name in groups:
        if name not in known:
            raise UserError(source, f"unknown architecture {name!r}", suggest(str(name), known))
    both = {key: value for key, value in layer.items() if key not in ("architectures", "base")}
    if "splits" in both:
        splits = _group(both, "splits", source)
        both["splits"] = {**splits, "val": splits.get("val", [])}
    return merge(both, groups.get(arch) or {}, source, strict=False)


def pretraining_layers(method: str, profile: str, changes: Sequence[str] = ()) -> list[Layer]:
    """Settings of a pre-training by recipe, profile and user, in this order; arguments as in `pretraining_settings`."""
    kind, every = recipe_of(method), read_profiles(profile)
    swaps = [change for change in changes if change.startswith("objective=")]
    objective = str(parse_change(swaps[-1])[1]["objective"]) if swaps else method
    own = recipe_of(objective)
    for name in {*kind.profiles, *own.profiles} - {*names("profiles")}:
        remedy = f"choose from {', '.join(names('profiles'))}"
        raise UserError(f"method {method}", f"changes profile {name!r}, which does not exist", remedy)
    # A method's own settings for a profile, or for its base, override the profile's settings for all methods.
    recipe = {key: value for key, value in as_facts(kind.recipe).items() if key not in CHOSEN}
    layers = [
        (f"recipe of {method}", recipe),
        (f"recipe of {objective}", {"objective": {"type": objective, **as_facts(own.recipe)["objective"]}}),
        *((f"profile {each.name}", each.pretraining) for each in every),
    ]
    for name in (each.name for each in every):
        general = {key: value for key, value in kind.profiles.get(name, {}).items() if key != "objective"}
        loss = {"objective": own.profiles.get(name, {}).get("objective", {})}
        layers += [(f"profile {name}, method {method}", general), (f"profile {name}, method {objective}", loss)]
    return [*layers, *(parse_change(change) for change in changes if change not in swaps)]


def recipe_of(method: str) -> Any:
    """Return the class of a method with a pre-training recipe; raise `UserError` if it has none."""
    if method not in (known := pretrained_methods()):
        raise UserError(f"method {method[:100]}", "has no pre-training recipe", f"choose from {', '.join(known)}")
    return METHODS.module_dict[method]


def parse_change(change: str) -> Layer:
    """Parse the user's `KEY=VALUE`, with a dotted key, into a layer; raise `UserError` if it is malformed."""
    path, equals, text = change.partition("=")
    if not equals:
        raise UserError(f"--set {change}", "no '='", "write --set KEY=VALUE, e.g. optimisation.steps=100")
    try:
        nested: Any = parse_yaml(text)
    except UNREADABLE as error:
        raise UserError(f"--set {change}", "the value is not valid YAML", "quote it") from error
    for key in reversed(path.split(".")):
        nested = {key: nested}
    return f"--set {change}", nested


def _merged(defaults: Mapping[str, Any], layers: Sequence[Layer]) -> dict[str, Any]:
    """Merge layers over the defaults; later layers override earlier ones, and only the first one may add keys."""
    facts = dict(defaults)
    for number, (source, layer) in enumerate(layers):
        replaced = () if source.startswith("--set") else ("splits",)
        facts = merge(facts, layer, source, replaced, strict=number > 0)
    return facts


def origins(settings: Finetuning | Pretraining, layers: Sequence[Layer]) -> dict[str, tuple[Any, str]]:
    """Return the value of each setting by dotted name, with the last layer that sets it."""
    stated: dict[str, str] = {}
    for source, layer in [(f"profile {settings.profile}", {"width": settings.width}), *layers]:
        stated |= dict.fromkeys(flattened(layer), "--set" if source.startswith("--set") else source)
    return {key: (value, stated.get(key, "default")) for key, value in flattened(as_facts(settings)).items()}


def finetuning_settings(
    task: str,
    arch: str,
    profile: str,
    changes: Sequence[str] = (),
    of_data: Mapping[str, Any] | None = None,
    network: str = "swin",
) -> Finetuning:
    """Resolve the settings of one cell: task config, profile, overrides of the data, and the user's changes.

    Args:
        task: name of the task.
        arch: "recurrent" or "feedforward".
        profile: name of the profile.
        changes: the user's `KEY=VALUE` changes.
        of_data: overrides from the data, see `Description.overrides`.
        network: kind of network, whose architecture the profile chooses, or an architecture.

    Raises:
        UserError: the task or a setting is unknown, or a value is invalid.
    """
    facts = _merged(TASK_DEFAULTS, cell_layers(task, arch, profile, changes, of_data))
    facts |= {"task": task, "arch": arch} | _scale(profile, network)
    settings = build(Finetuning, facts, f"task {task}")
    settings.check()
    return settings


def pretraining_settings(
    method: str, profile: str, changes: Sequence[str] = (), network: str | None = None
) -> Pretraining:
    """Resolve the settings of one pre-training: the method's recipe, then the profile, then the user's changes.

    A method's own settings for a profile override the profile's settings for all methods. The change `objective=NAME`
    trains the loss of another method, with that method's own settings.

    Args:
        method: name of the method.
        profile: name of the profile.
        changes: the user's `KEY=VALUE` changes.
        network: kind of network, whose architecture the profile chooses, or an architecture; default: the method's.

    Raises:
        UserError: the method or a setting is unknown, or a value is invalid.
    """
    kind = recipe_of(method)
    facts = _merged({}, pretraining_layers(method, profile, changes))
    scale = _scale(profile, network or kind.network)
    own = recipe_of(str(facts["objective"]["type"])).deviations
    facts |= {"name": method} | scale | {"deviations": [*kind.recipe.deviations, *scale["deviations"], *own]}
    settings = build(Pretraining, facts, f"method {method}")
    settings.check()
    return settings


def refuse_unknown_changes(
    task: str | None, arch: str, profile: str | None, changes: Sequence[str], of_pretraining: Sequence[str] = ()
) -> None:
    """Refuse changes of settings that a cell, or a pre-training by any method, does not have; needs no torch."""
    profile = profile or "paper"
    if task in names("tasks") and profile in names("profiles"):  # unknown ones may come from a plug-in, imported later
        _merged(TASK_DEFAULTS, cell_layers(task, arch, profile, changes))
    for source, layer in map(parse_change, of_pretraining):
        refuse_unknown(Pretraining, layer, source)


def changed_finetuning(settings: Finetuning, of_data: Mapping[str, Any], network: str) -> dict[str, Any]:
    """Settings of a cell that differ from its defaults by task, architecture, profile and data, by dotted name.

    `of_data` and `network` are as in `finetuning_settings`.
    """
    default = finetuning_settings(settings.task, settings.arch, settings.profile, (), of_data, network)
    return _changed(settings, default)


def changed_pretraining(settings: Pretraining, network: str) -> dict[str, Any]:
    """Settings of a pre-training that differ from its recipe, by dotted name.

    "objective" is the name of another method whose loss is trained, "objective_version" that method's version above 1.
    """
    objective, swapped = settings.objective["type"], dict[str, Any]()
    default = pretraining_settings(settings.name, settings.profile, [f"objective={objective}"], network)
    if objective != settings.name:
        version = recipe_of(objective).version
        swapped = {"objective": objective} | ({"objective_version": version} if version > 1 else {})
    return swapped | _changed(settings, default)


def _changed(settings: Finetuning | Pretraining, default: Finetuning | Pretraining) -> dict[str, Any]:
    ours, usual = flattened(as_facts(settings)), flattened(as_facts(default))
    return {key: ours.get(key) for key in sorted({*ours, *usual}) if ours.get(key) != usual.get(key)}


def flattened(facts: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested dicts to values by dotted name."""
    found: dict[str, Any] = {}
    for key, value in facts.items():
        nested = isinstance(value, Mapping) and value
        found |= flattened(value, f"{prefix}{key}.") if nested else {f"{prefix}{key}": value}
    return found


def as_facts(settings: Finetuning | Pretraining) -> dict[str, Any]:
    """Convert settings to nested dicts of lists, numbers and strings, as hashed and written into records."""
    facts: dict[str, Any] = to_jsonable_python(settings)
    return facts

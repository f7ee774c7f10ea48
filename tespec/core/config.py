"""Reads settings: facts from configs/, then a profile's differences, then single values set by the user."""

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

Layer = tuple[str, Mapping[str, Any]]  # who states settings, and the settings
OFFICIAL_SPLITS = dict.fromkeys(("train", "val", "test"))  # as the data set's class names them
# Of a fine-tuning, what a task's config need not say.
TASK_DEFAULTS: dict[str, Any] = {
    "splits": OFFICIAL_SPLITS,
    "sensor_px": None,
    "downsample": {"factor": 1, "keep": "nearest", "to_width": None},
    "bins": 10,
    "rule": "edges",  # bins between the borders of the window, Eq. 3; rvt: as RVT's archives hold them
    "head": {},
    "drop_path": 0.0,  # RVT has none, the paper is silent
    "optimisation": {
        "optimizer": "Adam",  # RVT: AdamW without weight decay, which is the same update
        "start_divisor": 25,  # c1 of the paper
        "end_divisor": 1000,  # c2
        "clip": {"by": "value", "at": 1.0},  # as RVT does; the paper is silent
        "weight_decay": {"start": 0.0, "end": 0.0, "exempt": []},  # RVT's 0
        "patch_embed_lr": 1.0,
        "precision": "auto",  # RVT: fp16; the paper is silent
    },
    "augmentation": {"flip": 0.0, "zoom": 0.0, "zoom_in_share": 0.8, "zoom_in": [1.0, 1.5], "zoom_out": [1.0, 1.2]},
    "peak_lr_after": {},
    # As RVT mixes them (data/genx_utils, modules/detection.py), whose loading the paper takes for pre-training and
    # detection; it is silent on the other tasks.
    "sampling": "mixed",
    "labels_per_chunk": None,  # labelled segments per lane and step that reach the head; None: all
    "label_share": 1.0,  # of the training labels, spread evenly over each recording; the others are never seen
    "evaluation_lanes": 1,  # recordings evaluated side by side: speed and memory, never a prediction
    # "flip": mean of the logits with the mirrored image; "ecddp": also at scales 1.5 and 2, as ECDDP's own numbers were
    # made (eval_seg.py); the paper uses none.
    "test_time_augmentation": "none",
}
CHOSEN = ("name", "profile", "width", "deviations")  # of a pre-training, by other options than --set
_added: dict[str, dict[str, Path]] = {}  # files of the user's own by kind ("tasks", "profiles") and name


def add_file(kind: str, path: Path) -> str:
    """Read one more config, which is known by the name of its file from then on; returns that name.

    Raises:
        UserError: there is no such file, or another config has the name.
    """
    path = path.absolute()
    if path.suffix != ".yaml" or not path.is_file():
        raise UserError(path, "no such config", "give a file that ends in .yaml")
    before = files(kind).get(path.stem)
    if before is None:
        _added.setdefault(kind, {})[path.stem] = path
    elif before != path:
        raise UserError(path, f"{before} has the name {path.stem!r} already", "rename one of them")
    return path.stem


def own_files(**named: str) -> list[Path]:
    """Files of the user's own among configs named by kind ("tasks", "profiles")."""
    return [_added[kind][name] for kind, name in named.items() if name in _added.get(kind, {})]


def files(kind: str) -> dict[str, Path]:
    """Files of the configs of one kind, such as "tasks" or "profiles", by name."""
    return {path.stem: path for path in (CONFIGS / kind).glob("*.yaml")} | _added.get(kind, {})


def names(kind: str) -> list[str]:
    """Names of the configs of one kind."""
    return sorted(files(kind))


@lru_cache
def _parsed(path: Path, changed: int) -> Any:
    """Content of a config; a changed file is read again."""
    return read_yaml(path)


def _read(kind: str, name: str) -> dict[str, Any]:
    path = files(kind).get(name)
    if path is None:
        raise UserError(name[:100], f"no such file in configs/{kind}", f"choose from {', '.join(names(kind))}")
    try:
        facts = _parsed(path, path.stat().st_mtime_ns)
    except UNREADABLE as error:
        raise UserError(path, f"not a readable YAML file ({error})", "mend or restore it") from error
    if not isinstance(facts, dict) or not all(isinstance(key, str) for key in facts):
        raise UserError(path, "holds no settings by name", "mend or restore it")
    return facts | {"name": name}


def _with_base(kind: str, name: str) -> list[dict[str, Any]]:
    """The config that a config names as its base, if any, and the config itself, which wins."""
    own = _read(kind, name)
    if "base" not in own:
        return [own]
    base = _read(kind, str(own["base"]))
    if "base" in base:
        raise UserError(f"base: {own['base']}", "has a base itself", "name one that has none")
    return [base, own]


def _group(facts: Mapping[str, Any], key: str, source: str) -> Mapping[str, Any]:
    """A group of settings, which may be missing."""
    group = facts.get(key, {})
    if not isinstance(group, Mapping):
        raise UserError(source, f"{key} holds no settings by name", "write nested keys")
    return group


def _task_layers(name: str) -> list[Layer]:
    """A task's config behind that of the task it names as its base; another data set has its own protocol."""
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
    """Registered name of the data set of each task, and the splits that its config names in place of official ones."""
    found = []
    for name in names("tasks"):
        splits = _group({"splits": _of_task(name, "splits") or {}}, "splits", f"task {name}")
        found += [(dataset_of_task(name), {split: each for split, each in splits.items() if each})]
    return found


def read_profiles(name: str) -> list[Profile]:
    """The profile that a profile names as its base, if any, and the profile itself, which wins.

    Raises:
        UserError: there is no such profile, or it says something that profiles do not have.
    """
    return [build(Profile, each, f"profile {each['name']}") for each in _with_base("profiles", name)]


def _scale(profile: str, network: str) -> dict[str, Any]:
    """What a profile decides of a run, whose network is of a kind, or an architecture itself such as a plug-in's."""
    every = read_profiles(profile)
    networks = {kind: width for each in every for kind, width in each.networks.items()}
    deviations = tuple(deviation for each in every for deviation in each.deviations)
    return {"profile": profile, "width": networks.get(network, network), "deviations": deviations}


def cell_layers(
    task: str, arch: str, profile: str, changes: Sequence[str] = (), of_data: Mapping[str, Any] | None = None
) -> list[Layer]:
    """What task, profile, data and user state of a cell, in this order; as `finetuning_settings`."""
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
    return [*of_arch, *map(parse_change, changes)]


def _of_architecture(layer: Mapping[str, Any], arch: str, known: Iterable[str], source: str) -> dict[str, Any]:
    """What a layer states of one architecture: over what it states of all, what it states of this one."""
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
    """What recipe, profile and user state of a pre-training, in this order; as `pretraining_settings`."""
    kind, every = recipe_of(method), read_profiles(profile)
    swaps = [change for change in changes if change.startswith("objective=")]
    objective = str(parse_change(swaps[-1])[1]["objective"]) if swaps else method
    own = recipe_of(objective)
    for name in {*kind.profiles, *own.profiles} - {*names("profiles")}:
        remedy = f"choose from {', '.join(names('profiles'))}"
        raise UserError(f"method {method}", f"there is no profile {name!r} for it to change", remedy)
    # What the method says of a profile wins over what the profile says of all methods, that of its base as well.
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
    """The class of a method that is pre-trained here; a `UserError` if it has no recipe."""
    if method not in (known := pretrained_methods()):
        raise UserError(f"method {method[:100]}", "has no pre-training", f"choose from {', '.join(known)}")
    return METHODS.module_dict[method]


def parse_change(change: str) -> Layer:
    """The layer of a `KEY=VALUE` of the user, whose key is a dotted name; a `UserError` if it is none."""
    path, equals, text = change.partition("=")
    if not equals:
        raise UserError(f"--set {change}", "no '='", "write --set optimisation.steps=100")
    try:
        nested: Any = parse_yaml(text)
    except UNREADABLE as error:
        raise UserError(f"--set {change}", "the value is not YAML", "quote it") from error
    for key in reversed(path.split(".")):
        nested = {key: nested}
    return f"--set {change}", nested


def _merged(defaults: Mapping[str, Any], layers: Sequence[Layer]) -> dict[str, Any]:
    """Settings of layers, of which a later one wins; it states nothing that the first one and the defaults have not."""
    facts = dict(defaults)
    for number, (source, layer) in enumerate(layers):
        replaced = () if source.startswith("--set") else ("splits",)
        facts = merge(facts, layer, source, replaced, strict=number > 0)
    return facts


def origins(settings: Finetuning | Pretraining, layers: Sequence[Layer]) -> dict[str, tuple[Any, str]]:
    """Settings by dotted name, each with the last of the layers that states it."""
    stated: dict[str, str] = {}
    for source, layer in [*layers, (f"profile {settings.profile}", {"width": settings.width})]:
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
    facts = _merged(TASK_DEFAULTS, cell_layers(task, arch, profile, changes, of_data))
    facts |= {"task": task, "arch": arch} | _scale(profile, network)
    settings = build(Finetuning, facts, f"task {task}")
    settings.check()
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
    """Refuse changes of settings that a cell, or a pre-training by whatever method, has not, without torch."""
    profile = profile or "paper"
    if task in names("tasks") and profile in names("profiles"):  # others come with a file that is not imported yet
        _merged(TASK_DEFAULTS, cell_layers(task, arch, profile, changes))
    for source, layer in map(parse_change, of_pretraining):
        refuse_unknown(Pretraining, layer, source)


def changed_finetuning(settings: Finetuning, of_data: Mapping[str, Any], network: str) -> dict[str, Any]:
    """Settings of a cell that differ from those of its task, architecture and profile, by dotted name.

    Args:
        settings: of the cell.
        of_data: what the data says about itself, as of `finetuning_settings`.
        network: kind of network.
    """
    default = finetuning_settings(settings.task, settings.arch, settings.profile, (), of_data, network)
    return _changed(settings, default)


def changed_pretraining(settings: Pretraining, network: str) -> dict[str, Any]:
    """Settings of a pre-training that differ from its recipe's, by dotted name; another objective is its type."""
    objective = settings.objective["type"]
    default = pretraining_settings(settings.name, settings.profile, [f"objective={objective}"], network)
    return ({} if objective == settings.name else {"objective": objective}) | _changed(settings, default)


def _changed(settings: Finetuning | Pretraining, default: Finetuning | Pretraining) -> dict[str, Any]:
    ours, usual = flattened(as_facts(settings)), flattened(as_facts(default))
    return {key: ours.get(key) for key in sorted({*ours, *usual}) if ours.get(key) != usual.get(key)}


def flattened(facts: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Values of nested dicts by dotted name."""
    found: dict[str, Any] = {}
    for key, value in facts.items():
        nested = isinstance(value, Mapping) and value
        found |= flattened(value, f"{prefix}{key}.") if nested else {f"{prefix}{key}": value}
    return found


def as_facts(settings: Finetuning | Pretraining) -> dict[str, Any]:
    """Plain nested dict of lists, numbers and strings: what is hashed and written into records."""
    facts: dict[str, Any] = to_jsonable_python(settings)
    return facts

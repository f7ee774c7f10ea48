"""Which records may stand in one column, and which may be averaged."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from statistics import mean, stdev
from typing import Any

from tespec.comparison.identity import TEST, canonical
from tespec.comparison.records import Record, code_of
from tespec.comparison.statistics import Interval, student_interval
from tespec.core.config import as_facts, finetuning_settings, pretraining_settings
from tespec.core.errors import UserError
from tespec.core.settings import Pretraining

AUTO = "auto"
SETTINGS = tuple(field.name for field in fields(Pretraining))
DATA = ("data", "data_fingerprint")  # of a pre-training, in what its weights say of it


def recipe_of(record: Record) -> dict[str, Any] | None:
    """Settings of the pre-training of a record's weights; None for weights that were not made here."""
    recipe = record["weights"].get("recipe")
    if not isinstance(recipe, dict) or not set(SETTINGS) <= set(recipe):
        return None
    return {name: recipe[name] for name in SETTINGS}


def is_older(record: Record) -> bool:
    """Whether its weights were made by a recipe of an older version, which had other settings."""
    recipe = record["weights"].get("recipe")
    # What a network with a head was trained by is no recipe of a pre-training.
    return recipe_of(record) is None and isinstance(recipe, dict) and bool(recipe) and "head" not in recipe


def recipe_key(record: Record) -> str:
    """Equal for records whose weights were made by the same settings, whatever the seed and the data."""
    recipe = record["weights"].get("recipe")
    if recipe_of(record) is not None or not isinstance(recipe, dict):
        return canonical(recipe_of(record))
    return canonical({name: value for name, value in recipe.items() if name not in ("seed", *DATA)})


def weights_key(record: Record) -> str:
    """Equal for records whose weights were made by the same settings from the same data, whatever the seed."""
    recipe = record["weights"].get("recipe")
    made_from = [recipe.get(name) for name in DATA] if isinstance(recipe, dict) else []
    return canonical([recipe_key(record), made_from])


ALL_LABELS = 1.0


def share_of(record: Record) -> float:
    """The share of the training labels that a record's network learned from."""
    return float(record["config"].get("label_share", ALL_LABELS))


def learns_all(record: Record) -> bool:
    """Whether a record's network learned from all labels."""
    return share_of(record) == ALL_LABELS


def is_default(record: Record) -> bool:
    """Whether its weights were made by a method's unchanged recipe, or not here."""
    recipe = recipe_of(record)
    if recipe is None:
        return True
    try:
        default = as_facts(pretraining_settings(str(recipe["name"]), str(recipe["profile"])))
    except (UserError, KeyError):
        return False
    return agrees(recipe, default)


def agrees(recipe: dict[str, Any], wanted: dict[str, Any]) -> bool:
    """Whether a record's pre-training has the settings that are wanted."""
    # The network is the method's, and its size follows from it.
    return _agree(recipe | {"width": ""}, wanted | {"width": ""})


def _agree(recipe: Any, default: Any) -> bool:
    """Whether both have the same values where both have one: another version of the harness may have other settings.

    What a default leaves to the device is whatever it was.
    """
    if isinstance(recipe, dict) and isinstance(default, dict):
        return all(_agree(value, default[key]) for key, value in recipe.items() if key in default)
    return default == AUTO or canonical(recipe) == canonical(default)


# What a task sets for each architecture on its own, and a profile for each kind of network; two of them in one column
# may differ in these alone.
OF_THE_NETWORK: dict[str, tuple[str, ...]] = {
    "config": ("arch", "batch_size", "random_share", "sampling", "segments", "width", "window_ms"),
    "protocol": ("events",),
}
# Budgets may be settled for each architecture as well. Which settings are left out of account, the most first.
LEVELS: tuple[Mapping[str, Sequence[str]], ...] = (
    OF_THE_NETWORK | {"config": (*OF_THE_NETWORK["config"], "optimisation")},
    OF_THE_NETWORK,
    {},
)

BESIDE_SCORES = ("stages",)  # what a protocol says of other measures than the scores, which decides none of them

RowKey = tuple[str, str, str]


@dataclass(frozen=True)
class Basis:
    """Records of one task that were made on the same data, by the same settings and the same rules.

    Attributes:
        task: name of the task.
        data: "sample", or name of the data set.
        profile: name of the profile.
        split: name of the split that was scored.
        records: at most one for each row and seed.
        superseded: older records of the same row and seed.
        variants: records of a row whose weights come from another pre-training: with other settings, as in an ablation,
            or on other data.
        of_other_code: records of a row by other code than its newest, as that of a plug-in that was changed.
        differs: settings in which it differs from other bases of the same task, data and profile, in words.
    """

    task: str
    data: str
    profile: str
    split: str
    records: tuple[Record, ...]
    superseded: tuple[Record, ...] = ()
    variants: tuple[Record, ...] = ()
    of_other_code: tuple[Record, ...] = ()
    differs: str = ""

    @property
    def seeds(self) -> list[int]:
        """All seeds that occur."""
        return sorted({record["seed"] for record in self.records})

    def cells(self) -> dict[RowKey, list[Record]]:
        """Records to be averaged, by row."""
        cells: dict[RowKey, list[Record]] = defaultdict(list)
        for record in self.records:
            cells[row_key(record)].append(record)
        return dict(cells)


def row_key(record: Record) -> RowKey:
    """What the records of one row share: method, architecture and backbone; a reference shares none with a method."""
    kind = "" if record["kind"] == "evaluation" else f"{record['kind']} "
    return kind + record["method_name"], record["arch"], record["method"].get("backbone") or ""


@dataclass(frozen=True)
class Average:
    """Mean over `runs` seeds; sample standard deviation and Student-t interval of the mean are None for one run."""

    value: float
    deviation: float | None
    runs: int
    interval: Interval | None = None


def average(values: Sequence[float | None]) -> Average | None:
    """Average over seeds; None where a seed lacks the number, or there is none."""
    present = [value for value in values if value is not None]
    if not present or len(present) < len(values):
        return None
    deviation = stdev(present) if len(present) > 1 else None
    return Average(mean(present), deviation, len(present), student_interval(present))


def metric(record: Record, name: str, group: str = "") -> float | None:
    """A record's overall number, or that of a group of frames; None where it has none."""
    numbers = record["groups"].get(group, {}) if group else record["metrics"]
    return numbers.get(name)


def bases(records: Sequence[Record]) -> list[Basis]:
    """Sort records into bases: same task, data, fingerprint, profile, split, protocol, settings and code.

    References share a basis with evaluations, but for what their networks see. Architectures and backbones share one
    although each has its own windows, batch, width and optimisation; as soon as one of them was run with more than one
    such setting, they are kept apart: by the optimisation first, and where that does not do, by all of them. Records
    that are all variants (see `Basis`) make no basis.
    """
    divided = _divided(records, LEVELS)
    divided.sort(key=lambda members: _order(members[0]))
    methods = [members for members in divided if any(record["kind"] != "reference" for record in members)]
    return [_basis(members, methods) for members in divided if len(_variants(_of_one_code(members))) < len(members)]


def _divided(records: Sequence[Record], levels: Sequence[Mapping[str, Sequence[str]]]) -> list[list[Record]]:
    """Records that agree but for the settings of the first level at which each network has one setting."""
    shared: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        shared[_key(record, levels[0])].append(record)
    found: list[list[Record]] = []
    for members in shared.values():
        networks: dict[tuple[str, str], set[str]] = defaultdict(set)
        for record in members:
            networks[row_key(record)[1:]].add(_key(record))
        one_each = all(len(keys) == 1 for keys in networks.values())
        found += [members] if one_each else _divided(members, levels[1:])
    return found


def _order(record: Record) -> tuple[bool, str, str, bool, str]:
    where = record["data"] == "sample", record["data"], record["profile"], record["split"] != TEST
    return *where, _key(record)


def _key(record: Record, left_out: Mapping[str, Sequence[str]] = LEVELS[-1]) -> str:
    return canonical(_parts(record, left_out))


# A protocol says of the training recordings how many of their labels are learned from.
LABELS_LEARNED = {"config": ("label_share",), "protocol": ("train",)}


def same_but_for_labels(record: Record, other: Record) -> bool:
    """Whether records of one row differ in nothing but the share of labels that they learn from, and the seed."""
    one, two = ((_key(each, LABELS_LEARNED), weights_key(each), code_of(each)) for each in (record, other))
    return one == two


def _parts(record: Record, left_out: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    protocol = {key: value for key, value in record["protocol"].items() if key not in BESIDE_SCORES}
    contents: dict[str, Mapping[str, Any]] = {"config": record["config"], "protocol": protocol}
    own = ("input",) if record["kind"] == "reference" else ()
    parts: dict[str, Any] = {
        name: {key: value for key, value in content.items() if key not in (*left_out.get(name, ()), *own)}
        for name, content in contents.items()
    }
    if "optimisation" in parts["config"] and rate_of_weights(record):
        others = _rate_of_others(record["task"], record["arch"], record["profile"])
        parts["config"]["optimisation"] = {**parts["config"]["optimisation"], "peak_lr": others}
    return parts | {
        "task": record["task"],
        "data": record["data"],
        "profile": record["profile"],
        "split": record["split"],
        "data_fingerprint": record["data_fingerprint"],
        "code": record["code"],
    }


def rate_of_weights(record: Record) -> float | None:
    """The peak rate of a fine-tuning that its task ties to what the weights are pre-trained on; None: that of all.

    Such records stand beside those of other weights: the task's rule is the same for all of them.
    """
    rates = {str(name).casefold(): rate for name, rate in (record["config"].get("peak_lr_after") or {}).items()}
    recipe = record["weights"].get("recipe")
    made_from = recipe.get("dataset") if isinstance(recipe, dict) and recipe else None
    after = rates.get(str(made_from or record["method"].get("pretraining_data")).casefold())
    used: float | None = record["config"].get("optimisation", {}).get("peak_lr")
    others = _rate_of_others(record["task"], record["arch"], record["profile"]) if used == after else None
    return None if others in (None, used) else used


@cache
def _rate_of_others(task: str, arch: str, profile: str) -> float | None:
    try:
        return finetuning_settings(task, arch, profile).optimisation.peak_lr
    except UserError:
        return None


def _of_one_code(members: Sequence[Record]) -> list[Record]:
    """Records of each row by the code of its newest."""
    newest: dict[RowKey, str] = {}
    for record in sorted(members, key=lambda record: (record["written"], record["name"])):
        newest[row_key(record)] = code_of(record)
    return [record for record in members if code_of(record) == newest[row_key(record)]]


def _basis(every: Sequence[Record], divided: Sequence[Sequence[Record]]) -> Basis:
    newest: dict[tuple[RowKey, int], Record] = {}
    superseded = []
    members = _of_one_code(every)
    variants = _variants(members)
    others = {record["name"] for record in variants}
    plain = [record for record in members if record["name"] not in others]
    for record in sorted(plain, key=lambda record: (record["written"], record["name"])):
        key = row_key(record), record["seed"]
        if key in newest:
            superseded.append(newest[key])
        newest[key] = record
    first = plain[0]
    alike = [others[0] for others in divided if _named(others[0]) == _named(first)]
    kept = sorted(newest.values(), key=lambda record: record["name"])
    return Basis(
        first["task"],
        first["data"],
        first["profile"],
        first["split"],
        tuple(kept),
        tuple(superseded),
        tuple(variants),
        tuple(record for record in every if record not in members),
        _differences(first, alike),
    )


def _variants(members: Sequence[Record]) -> list[Record]:
    """Records of a row that are not of its pre-training: the unchanged recipe's, or the newest where there is none.

    Of several recipes of an older version none can be told to be the unchanged one, so that all of them are left out.
    """
    rows: dict[RowKey, list[Record]] = defaultdict(list)
    for record in members:
        rows[row_key(record)].append(record)
    found = []
    for every in rows.values():
        older = [record for record in every if is_older(record)]
        unclear = older if len({weights_key(record) for record in older}) > 1 else []
        found += unclear
        records = [record for record in every if record not in unclear]
        recipes = {weights_key(record) for record in records}
        if len(recipes) < 2:
            continue
        default = [record for record in records if is_default(record)] or records
        kept = weights_key(max(default, key=lambda record: (record["written"], record["name"])))
        found += [record for record in records if weights_key(record) != kept]
    return sorted(found, key=lambda record: record["name"])


def _differences(record: Record, alike: Sequence[Record]) -> str:
    """Settings of `record` that are not the same in all of `alike`, in words."""
    for left_out in LEVELS:
        theirs = [dotted(_parts(each, left_out)) for each in alike]
        own = dotted(_parts(record, left_out))
        if keys := [key for key in own if any(own[key] != each.get(key) for each in theirs)]:
            return ", ".join(f"{key} = {own[key]}" for key in keys)
    return ""


def _named(record: Record) -> tuple[str, str, str, str]:
    return record["task"], record["data"], record["profile"], record["split"]


def dotted(parts: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested settings as texts by their dotted names."""
    found: dict[str, str] = {}
    for key, value in parts.items():
        path = f"{prefix}.{key}" if prefix else key
        if isinstance(value, Mapping):
            found |= dotted(value, path)
        else:
            found[path.removeprefix("config.")] = str(value)
    return found

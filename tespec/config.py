"""Reads settings: facts from configs/, then a profile's differences, then single values set by the user."""

from __future__ import annotations

import dataclasses
import difflib
import typing
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import yaml
from mmengine.config import Config

from tespec.errors import UserError
from tespec.limits import check_limits
from tespec.paths import CONFIGS
from tespec.settings import Finetuning, Pretraining

T = TypeVar("T")


def names(kind: str) -> list[str]:
    """Names of the configs of one kind ("tasks", "pretraining" or "profiles")."""
    return sorted(path.stem for path in (CONFIGS / kind).glob("*.yaml"))


def finetuning_settings(task: str, arch: str, profile: str, changes: Sequence[str] = ()) -> Finetuning:
    """Settings of one cell: task config, then the profile's differences, then `KEY=VALUE` changes."""
    facts, scale = _read("tasks", task), _read("profiles", profile)
    facts = merge(facts, scale["finetuning"], f"profile {profile}")
    if arch not in facts["architectures"]:
        raise UserError(f"task {task}", f"no architecture {arch!r}", f"choose from {', '.join(facts['architectures'])}")
    facts |= facts.pop("architectures")[arch]
    facts = _change(facts, changes)
    facts["task"] = facts.pop("name")
    settings = build(Finetuning, facts | _scale(scale) | {"arch": arch}, f"task {task}")
    check_limits(as_facts(settings))
    return settings


def pretraining_settings(recipe: str, profile: str, changes: Sequence[str] = ()) -> Pretraining:
    """Settings of one pre-training: recipe, then the profile's differences, then `KEY=VALUE` changes."""
    facts, scale = _read("pretraining", recipe), _read("profiles", profile)
    facts = merge(facts, scale["pretraining"], f"profile {profile}")
    settings = build(Pretraining, _change(facts, changes) | _scale(scale), f"recipe {recipe}")
    check_limits(as_facts(settings))
    return settings


def _scale(profile: dict[str, Any]) -> dict[str, Any]:
    return {"profile": profile["name"], "width": profile["arch"], "deviations": profile["deviations"]}


def _read(kind: str, name: str) -> dict[str, Any]:
    path = CONFIGS / kind / f"{name}.yaml"
    if not path.is_file():
        raise UserError(name, f"no such file in configs/{kind}", f"choose from {', '.join(names(kind))}")
    return typing.cast("dict[str, Any]", Config.fromfile(path).to_dict())


def merge(base: Mapping[str, Any], changes: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Copy of `base` with nested `changes`; a key that `base` lacks is refused.

    A mapping that names a `type` is replaced whole: another type need not have the same keys.
    """
    merged = dict(base)
    for key, value in changes.items():
        if key not in base:
            raise UserError(source, f"unknown setting {key!r}", _suggest(key, base))
        whole = isinstance(value, Mapping) and "type" in value
        if isinstance(value, Mapping) and isinstance(base[key], Mapping) and not whole:
            merged[key] = merge(base[key], value, source)
        else:
            merged[key] = value
    return merged


def _change(facts: dict[str, Any], changes: Sequence[str]) -> dict[str, Any]:
    for change in changes:
        path, equals, text = change.partition("=")
        if not equals:
            raise UserError(f"--set {change}", "no '='", "write --set optimisation.steps=100")
        try:
            nested: Any = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise UserError(f"--set {change}", "the value is not YAML", "quote it") from error
        for key in reversed(path.split(".")):
            nested = {key: nested}
        facts = merge(facts, nested, f"--set {change}")
    return facts


def _suggest(key: str, known: Mapping[str, Any]) -> str:
    close = difflib.get_close_matches(key, list(known), n=1)
    return f"did you mean {close[0]!r}?" if close else f"choose from {', '.join(known)}"


def build(kind: type[T], facts: Mapping[str, Any], source: str) -> T:
    """Dataclass `kind` from nested mappings; missing, unknown and ill-typed values are refused."""
    hints = typing.get_type_hints(kind)
    fields = {field.name: field for field in dataclasses.fields(kind)}  # type: ignore[arg-type]  # T is a dataclass
    for key in facts:
        if key not in fields:
            raise UserError(source, f"unknown setting {key!r}", _suggest(key, fields))
    values: dict[str, Any] = {}
    for name, field in fields.items():
        if name in facts:
            values[name] = _convert(hints[name], facts[name], f"{source}, {name}")
        elif field.default is dataclasses.MISSING:
            raise UserError(source, f"setting {name!r} is missing", "add it to the config")
    return kind(**values)


def _convert(hint: Any, value: Any, source: str) -> Any:
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if dataclasses.is_dataclass(hint):
        if not isinstance(value, Mapping):
            raise UserError(source, f"{value!r} is not a group of settings", "write nested keys")
        return build(typing.cast("type[Any]", hint), value, source)
    if origin is tuple:
        if not isinstance(value, (list, tuple)) or (Ellipsis not in inner and len(value) != len(inner)):
            raise UserError(source, f"{value!r} is not a list of the right length", "write [a, b]")
        return tuple(_convert(inner[0], item, source) for item in value)
    if origin is dict:
        if not isinstance(value, Mapping):
            raise UserError(source, f"{value!r} is not a mapping", "write nested keys")
        return {str(key): _convert(inner[1], item, source) for key, item in value.items()}
    if hint is Any:
        return value
    accepted = inner or (hint,)
    if float in accepted and type(value) is int:
        value = float(value)
    if float in accepted and isinstance(value, str) and str not in accepted:
        with suppress(ValueError):  # YAML 1.1 takes 1e-3 for a text
            value = float(value)
    if isinstance(value, bool) and bool in accepted:
        return value
    if isinstance(value, bool):
        raise UserError(source, f"{value!r} has the wrong type", f"expected {getattr(hint, '__name__', hint)}")
    if not isinstance(value, accepted):
        raise UserError(source, f"{value!r} has the wrong type", f"expected {getattr(hint, '__name__', hint)}")
    if isinstance(value, int) and value < 1 and not source.endswith("warmup_steps"):
        raise UserError(source, f"{value} is too small", "give 1 or more")
    return value


def as_facts(settings: Finetuning | Pretraining) -> dict[str, Any]:
    """Plain nested dict of lists, numbers and strings: what is hashed and written into records."""
    return typing.cast("dict[str, Any]", _plain(dataclasses.asdict(settings)))


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value

"""Typed settings from plain mappings: nothing missing, nothing unknown, nothing of another type."""

from __future__ import annotations

import dataclasses
import difflib
import typing
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from tespec.errors import UserError

T = TypeVar("T")


def merge(
    base: Mapping[str, Any], changes: Mapping[str, Any], source: str, replaced: Sequence[str] = ()
) -> dict[str, Any]:
    """Copy of `base` with nested `changes`; a key that `base` lacks is refused.

    A mapping that names a `type` is replaced whole, since another type need not have the same keys; so are those that
    `replaced` names.
    """
    if not isinstance(base, Mapping) or not isinstance(changes, Mapping):
        raise UserError(source, "holds no settings by name", "write nested keys")
    merged = dict(base)
    for key, value in changes.items():
        if key not in base:
            raise UserError(source, f"unknown setting {key!r}", _suggest(key, base))
        whole = key in replaced or (isinstance(value, Mapping) and "type" in value)
        if isinstance(value, Mapping) and isinstance(base[key], Mapping) and not whole:
            merged[key] = merge(base[key], value, source)
        else:
            merged[key] = value
    return merged


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
        value = _as_float(value, source)
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


def _as_float(value: int, source: str) -> float:
    try:
        return float(value)
    except OverflowError as error:
        raise UserError(source, f"{str(value)[:20]}... is larger than any float", "give a smaller number") from error

"""Whether what was read from a file is a record."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

from tespec.errors import UserError

TEXTS = ("name", "id", "code", "written", "method_name", "task", "profile", "data", "data_fingerprint", "command")
CHOICES = {"kind": ("evaluation", "pretraining", "probe", "reference"), "arch": ("recurrent", "feedforward")}
MAPPINGS = ("method", "config", "weights", "environment")
LONGEST = 10_000  # letters of a text
NUMBERS = ("metrics", "classes", "time", "resources")
GROUPED_NUMBERS = ("groups", "recordings")
# What tables take from the mappings; None says that there is none.
TEXTS_WITHIN = {"method": ("title", "group", "backbone", "pretraining_data"), "weights": ("sha256",)}


def check_record(content: object, where: object, schema: int) -> None:
    """Refuse what is not a record of layout `schema`.

    Args:
        content: what JSON gave.
        where: file or name for the message.
        schema: the newest layout that can be read.

    Raises:
        UserError: not a record, of a newer layout, or a field is missing, ill-typed or not finite.
    """
    if not isinstance(content, Mapping) or not _whole(content.get("schema")):
        raise UserError(where, "not a record of this harness", "remove it or move it elsewhere")
    if content["schema"] > schema:
        raise UserError(
            where, f"layout {content['schema']} is newer than this version's {schema}", "update the harness"
        )
    wrong = _first_wrong_field(content)
    if wrong:
        raise UserError(where, wrong, "remove it and run again")


def _first_wrong_field(content: Mapping[str, object]) -> str | None:
    for field in ("seed", *CHOICES, *TEXTS, *MAPPINGS, "protocol", *NUMBERS, *GROUPED_NUMBERS, "curve"):
        if field not in content:
            return f"field {field!r} is missing"
        if not _right(field, content[field]):
            return f"field {field!r} holds {_short(content[field])}"
    for mapping, fields in TEXTS_WITHIN.items():
        for field in fields:
            value = _within(content, mapping, field, None)
            if not (value is None or _text(value)):
                return f"field '{mapping}.{field}' holds {_short(value)}"
    if not _texts(deviations := _within(content, "config", "deviations", ())):
        return f"field 'config.deviations' holds {_short(deviations)}"
    return None if _within(content, "method", "title", "") else "field 'method' has no title"


def _within(content: Mapping[str, object], mapping: str, field: str, default: object) -> object:
    inner = content[mapping]
    return inner.get(field, default) if isinstance(inner, Mapping) else default


def _right(field: str, value: object) -> bool:
    if field == "seed":
        return _whole(value)
    if field in CHOICES:
        return value in CHOICES[field]
    if field in TEXTS:
        return _text(value)
    if field in MAPPINGS:
        return isinstance(value, Mapping)
    if field == "protocol":
        return isinstance(value, Mapping) and _texts(tuple(value.values()))
    if field in NUMBERS:
        return _numbers(value)
    if field in GROUPED_NUMBERS:
        return isinstance(value, Mapping) and all(map(_numbers, value.values()))
    return isinstance(value, Sequence) and not isinstance(value, str) and all(map(_numbers, value))


def _numbers(value: object) -> bool:
    return isinstance(value, Mapping) and all(map(_finite, value.values()))


def _finite(value: object) -> bool:
    # JSON's whole numbers have no bound: one that no float holds is as unusable as infinity.
    largest = sys.float_info.max
    return isinstance(value, int | float) and not isinstance(value, bool) and -largest <= value <= largest


def _texts(value: object) -> bool:
    return isinstance(value, list | tuple) and all(map(_text, value))


def _text(value: object) -> bool:
    # A table repeats the width of its widest cell in every row.
    return isinstance(value, str) and len(value) <= LONGEST


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _short(value: object) -> str:
    text = repr(value[:60] if isinstance(value, str) else value)
    return text if len(text) <= 60 else f"{text[:57]}..."

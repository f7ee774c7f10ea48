"""Ways to damage what is read: its bytes, or the values of a text that has a structure."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import yaml

Rng = np.random.Generator
HOSTILE: tuple[Any, ...] = (
    None, True, -1, 0, 2**63, 10**400, -1e308, "", "x" * 5000, "../../../etc/passwd", "/etc/passwd", "\x00", "NaN",
    [], {}, [[]], {"": None}, [None] * 50, "<script>alert(1)</script>", "!!python/object/apply:os.system [id]", "1e999",
)  # fmt: skip


LENGTHS = (0, 2**31 - 1, 2**32 - 1, 2**63 - 1, 2**64 - 1)


def damage(path: Path, rng: Rng) -> None:
    """Cut the file off, change or insert bytes, or put a large number where a length may stand."""
    data = bytearray(path.read_bytes())
    if not data:
        return
    kind = rng.integers(0, 8)
    if kind == 0:
        data = data[: rng.integers(0, len(data))]
    elif kind == 1:
        place = int(rng.integers(0, len(data)))
        data[place:place] = rng.bytes(int(rng.integers(1, 40)))
    elif kind == 2 and len(data) > 8:
        place = int(rng.integers(0, len(data) - 8))
        data[place : place + 8] = struct.pack("<Q", LENGTHS[rng.integers(len(LENGTHS))])
    else:
        for place in rng.integers(0, len(data), rng.integers(1, 6)):
            data[place] = rng.integers(0, 256)
    path.write_bytes(bytes(data))


def bytes_of_one(path: Path, rng: Rng) -> None:
    """Damage the bytes of a file, or of one of a folder's."""
    files = [path] if path.is_file() else sorted(each for each in path.rglob("*") if each.is_file())
    damage(files[rng.integers(len(files))], rng)


def structure(load: Callable[[str], Any], dump: Callable[[Any], str]) -> Callable[[Path, Rng], None]:
    """Damage a text that has a structure: mostly its values, sometimes its bytes."""

    def harm(path: Path, rng: Rng) -> None:
        files = [path] if path.is_file() else sorted(each for each in path.rglob("*") if each.is_file())
        file = files[rng.integers(len(files))]
        if rng.random() < 0.25:
            damage(file, rng)
            return
        content = load(file.read_text(encoding="utf-8"))
        for _ in range(int(rng.integers(1, 4))):
            content = changed(content, rng)
        file.write_text(dump(content), encoding="utf-8", errors="replace")

    return harm


def changed(value: Any, rng: Rng) -> Any:
    """`value` with one of its parts replaced, removed, doubled or buried deep."""
    if isinstance(value, dict) and value and rng.random() < 0.85:
        key = list(value)[rng.integers(len(value))]
        if rng.random() < 0.12:
            return {each: kept for each, kept in value.items() if each != key}
        if rng.random() < 0.05:
            return {**value, str(HOSTILE[rng.integers(len(HOSTILE))])[:50]: value[key]}
        return {**value, key: changed(value[key], rng)}
    if isinstance(value, list) and value and rng.random() < 0.85:
        index = int(rng.integers(len(value)))
        if rng.random() < 0.1:
            return value[:index] + value[index + 1 :]
        return [*value[:index], changed(value[index], rng), *value[index + 1 :]]
    if rng.random() < 0.03:
        buried: Any = value
        for _ in range(90):
            buried = [buried]
        return buried
    if isinstance(value, int | float) and not isinstance(value, bool) and rng.random() < 0.3:
        return [float("nan"), float("inf"), -value, value * 10**9, str(value)][rng.integers(5)]
    return HOSTILE[rng.integers(len(HOSTILE))]


def json_text(content: Any) -> str:
    return json.dumps(content)


def yaml_text(content: Any) -> str:
    return yaml.safe_dump(content, allow_unicode=True)

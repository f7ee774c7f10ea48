"""Whether the published numbers are those that were shipped: they are facts, and an edited one misleads."""

from __future__ import annotations

import hashlib
from pathlib import Path

from tespec.comparison.references import PAPER

SUMS = "SHA256SUMS"


def edited(folder: Path = PAPER) -> list[str]:
    """Names of files that differ from the listed sums, are missing, or are not listed."""
    lines = [line.split(maxsplit=1) for line in (folder / SUMS).read_text().splitlines()]
    listed = {name: digest for digest, name in lines}
    there = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.glob("*.yaml")}
    return sorted(name for name in {*listed, *there} if listed.get(name) != there.get(name))

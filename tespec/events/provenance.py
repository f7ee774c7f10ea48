"""What a file was made from: name, size and SHA-256."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from tespec.errors import UserError

BLOCK = 1 << 20  # bytes


def describe(path: Path) -> dict[str, Any]:
    """Name, size in bytes and SHA-256 of a file; of a folder, those of the files directly in it, in order of name.

    Raises:
        UserError: there is no such file or folder.
    """
    if not path.exists():
        raise UserError(path, "no such file or folder", "give what the recording was read from")
    files = sorted(entry for entry in path.iterdir() if entry.is_file()) if path.is_dir() else [path]
    digest = hashlib.sha256()
    for name in files:
        with name.open("rb") as file:
            while block := file.read(BLOCK):
                digest.update(block)
    return {"name": path.name, "bytes": sum(name.stat().st_size for name in files), "sha256": digest.hexdigest()}

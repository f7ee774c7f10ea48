"""What a data set's files are, in twelve hexadecimal digits."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from tespec.datasets.recording import Recording

SAMPLED = 1 << 16  # bytes hashed at the head and at the tail of each file


def fingerprint(recordings: Sequence[Recording]) -> str:
    """Twelve hexadecimal digits of SHA-256 over the recordings' files.

    For each file of a recording, in order of its name: the recording's name, the file's name, its size, and its first
    and last 64 kB. Whole archives are not read, so that it takes milliseconds; a change in the middle of a file that
    keeps its size goes unseen.
    """
    digest = hashlib.sha256()
    for recording in recordings:
        digest.update(f"{recording.name}|{len(recording)}\n".encode())
        for path in _files(recording.path):
            digest.update(f"{path.name}|{path.stat().st_size}\n".encode())
            with path.open("rb") as file:
                digest.update(file.read(SAMPLED))
                file.seek(max(0, path.stat().st_size - SAMPLED))
                digest.update(file.read(SAMPLED))
    return digest.hexdigest()[:12]


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    return sorted(file for file in path.rglob("*") if file.is_file() and "imgs" not in file.parts)

"""A format is one file among the readers."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from tespec.events import opening
from tespec.events.opening import READERS, load_events, readers_in

OWN = """
import numpy as np

from tespec.events.stream import Events, Reader


def open_text(path, height=None, width=None):
    x, y, t, p = np.loadtxt(path, dtype=np.int64).T
    events = Events(x.astype(np.uint16), y.astype(np.uint16), t, p.astype(np.uint8))
    return Reader(path, 8, 8, len(t), lambda: iter([events]))


READS = {".txt": open_text}
"""


def test_the_formats_of_the_harness_are_found() -> None:
    assert set(READERS) == {".dat", ".raw", ".aedat4"}


def test_a_file_among_the_readers_reads_its_suffix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "plain_text.py").write_text(OWN)
    package = ModuleType("own_readers")
    package.__path__ = [str(tmp_path)]
    monkeypatch.setitem(sys.modules, "own_readers", package)
    found = readers_in(package)
    assert list(found) == [".txt"]
    monkeypatch.setitem(opening.READERS, ".txt", found[".txt"])
    monkeypatch.setenv("TESPEC_CACHE", str(tmp_path / "cache"))
    recording = tmp_path / "drive.txt"
    np.savetxt(recording, [[1, 2, 10, 0], [3, 4, 20, 1]], fmt="%d")
    events = load_events(recording)
    assert events.slice(0, 100).x.tolist() == [1, 3]

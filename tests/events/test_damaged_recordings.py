"""Thousands of damaged recordings of each kind: each gives sound events, or is refused in one line.

Each kind has a process of its own, so that a crash or a hang of a library is seen as what it is.
"""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from fuzzing import EVENTS, WRITERS

from tespec.errors import UserError
from tespec.events import ArrayStream, open_events
from tespec.events.store import pack

MUTATIONS = 2_000


@pytest.mark.parametrize("kind", WRITERS)
def test_damage_is_survived_or_named(tmp_path, kind):
    command = [sys.executable, Path(__file__).with_name("fuzzing.py"), kind, tmp_path, str(MUTATIONS)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr[-2_000:]
    assert MUTATIONS / 20 < json.loads(ended.stdout)["refused"] < MUTATIONS


def test_a_store_with_damaged_words_is_noticed_where_they_are_read(tmp_path):
    folder = pack(ArrayStream(*EVENTS, 260, 346), tmp_path / "a")
    words = np.fromfile(folder / "events.u32", "<u4")
    words[30] |= 0x3FF << 22
    words.tofile(folder / "events.u32")
    stream = open_events(folder)
    bad = int(EVENTS.t[30])
    assert len(stream.slice(0, bad // 1000 * 1000).t) == (EVENTS.t < bad // 1000 * 1000).sum()
    with pytest.raises(UserError, match="damaged"):
        stream.slice(bad, bad + 1)
    assert json.loads((folder / "header.json").read_text())["count"] == 60

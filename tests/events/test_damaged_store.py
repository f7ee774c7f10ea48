import json

import numpy as np
import pytest
from fuzzing import EVENTS

from tespec.core.errors import UserError
from tespec.events import ArrayStream, open_events
from tespec.events.packing import pack


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

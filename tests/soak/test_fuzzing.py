from __future__ import annotations

import pytest
from fuzz import fuzz
from targets import TARGETS

# Kinds of recordings are damaged thousands of times in tests/events.
OTHERS = [name for name in TARGETS if name in ("references", "configs", "records")] + [
    "set", "checkpoint", "safetensors", "pth", "zip", "tar", "images", "description"
]  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_what_strangers_give_is_refused_in_one_line_or_read(name: str) -> None:
    found = fuzz([name], 25 if TARGETS[name].weight < 1 else 200, seed=1)[name]
    assert found["failures"] == []
    assert found["refused"]

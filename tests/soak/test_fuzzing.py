from __future__ import annotations

from collections.abc import Iterator

import pytest
from fuzz import fuzz, run_target
from targets import TARGETS

from tespec.core import files as documents

CASES = 40  # of a target
FEWER = {"safetensors": 5, "pth": 5, "tensors": 5, "checkpoint": 5, "task network": 5, "records": 8, "images": 20}


@pytest.fixture(autouse=True)
def _forgetful() -> Iterator[None]:
    parse = documents.parse_yaml
    yield
    documents.parse_yaml = parse


@pytest.mark.parametrize("name", TARGETS)
def test_what_strangers_give_is_refused_in_one_line_or_read(name: str) -> None:
    found = run_target(name, 0, FEWER.get(name, CASES), seed=1)
    assert found["failures"] == []
    assert found["refused"]


def test_a_target_has_a_process_of_its_own() -> None:
    found = fuzz(["description"], 20, seed=2)["description"]
    assert found["failures"] == []
    assert sum(int(str(found[kind])) for kind in ("refused", "accepted")) == 20

"""What tests of several packages share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from tespec.sample import DATASETS, make_world

# How long an example takes says more about what else runs on the machine than about the code.
# The same examples each time: no verdict depends on chance. What searches on and on is `tools/fuzz.py`.
hypothesis.settings.register_profile("tests", deadline=None, derandomize=True)
hypothesis.settings.load_profile("tests")


@pytest.fixture(autouse=True, scope="session")
def cache_of_the_tests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Tests neither read nor fill the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TESPEC_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def without_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in a folder without data, with an empty cache in it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TESPEC_DATA", raising=False)
    monkeypatch.setenv("TESPEC_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="session")
def tiny_world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sample world of size "tiny", seed 0, in all layouts; all test processes of a run share one copy."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    return make_world("tiny", root=shared / "worlds", processes=1, datasets=DATASETS)

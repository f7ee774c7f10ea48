import os
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from tespec.runs import train
from tespec.sample import DATASETS, make_world

# No deadline: the time of an example depends on the machine's load.
# The same examples in every run: no result depends on chance. `tools/fuzz.py` does the open-ended
# search.
hypothesis.settings.register_profile("tests", deadline=None, derandomize=True)
hypothesis.settings.load_profile("tests")


@pytest.fixture(autouse=True, scope="session")
def cache_of_the_tests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Use a temporary cache, so tests neither read nor fill the user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TESPEC_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True, scope="session")
def unchecked_memory() -> Iterator[None]:
    """Skip the estimate of memory before each training, which takes longer than a short training.

    tests/runs/test_memory.py checks it.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train, "require_memory", lambda *_, **__: 0.0)
        yield


@pytest.fixture
def without_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in a folder without data, with an empty cache in it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TESPEC_DATA", raising=False)
    monkeypatch.setenv("TESPEC_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="session")
def tiny_world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The "tiny" sample world, seed 0, with all data sets, shared by the test processes."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    return make_world("tiny", root=shared / "worlds", processes=1, datasets=DATASETS)

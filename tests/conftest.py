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


@pytest.fixture(scope="session")
def tiny_world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sample world of size "tiny", seed 0, in all layouts; all test processes of a run share one copy."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    return make_world("tiny", root=shared / "worlds", processes=1, datasets=DATASETS)


@pytest.fixture(scope="module")
def pretrainings_are_short() -> Iterator[None]:
    """For tests that do not look at pictures."""
    from short_runs import short_pretrainings  # with torch, which tests of tables do without

    with short_pretrainings():
        yield

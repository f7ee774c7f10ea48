"""What holds for all tests of runs."""

import pytest


@pytest.fixture(autouse=True, scope="module")
def every_pretraining_is_short(short_memory: None) -> None:
    """No test of a run looks at what memory is worth."""

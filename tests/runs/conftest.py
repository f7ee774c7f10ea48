"""What holds for all tests of runs."""

import pytest


@pytest.fixture(autouse=True, scope="module")
def every_pretraining_is_short(pretrainings_are_short: None) -> None:
    """No test of a run looks at what memory is worth, nor at pictures."""

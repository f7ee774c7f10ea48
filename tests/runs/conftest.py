from collections.abc import Iterator

import pytest
from short_runs import short_pretrainings


@pytest.fixture(autouse=True, scope="module")
def every_pretraining_is_short() -> Iterator[None]:
    """No test of a run looks at pictures."""
    with short_pretrainings():
        yield

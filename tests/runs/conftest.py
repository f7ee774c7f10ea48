from collections.abc import Iterator

import pytest
from short_runs import short_pretrainings


@pytest.fixture(autouse=True, scope="module")
def every_pretraining_is_short() -> Iterator[None]:
    """Skip pictures, since no test of a run looks at them."""
    with short_pretrainings():
        yield

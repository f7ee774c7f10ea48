import pytest

from tespec.comparison.records import Record, read_records
from tespec.core.paths import REPOSITORY


@pytest.fixture(scope="session")
def records() -> list[Record]:
    """Committed records."""
    found, problems = read_records(REPOSITORY / "results" / "sample")
    assert problems == []
    return found

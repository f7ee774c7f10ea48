import pytest

from tespec.comparison.records import Record, read_records
from tespec.core.paths import REPOSITORY


@pytest.fixture(scope="session")
def records() -> list[Record]:
    """Committed records, with the profile changed to `study`, that of the plan."""
    found, problems = read_records(REPOSITORY / "results" / "sample")
    assert problems == []
    of_profile = []
    for record in found:
        recipe = record.weights.get("recipe")
        weights = record.weights | ({"recipe": recipe | {"profile": "study"}} if recipe else {})
        of_profile.append(record.model_copy(update={"profile": "study", "weights": weights}))
    return of_profile

import pytest

from tespec.comparison.records import RESULTS_VERSION, Record, read_records
from tespec.core.config import finetuning_settings, names
from tespec.core.paths import REPOSITORY
from tespec.registry import METHODS, register_methods


@pytest.fixture(scope="session")
def records() -> list[Record]:
    """Committed records, as if they were of the present versions of results, methods and tasks."""
    records, problems = read_records(REPOSITORY / "results" / "sample")
    assert problems == []
    register_methods()
    tasks = {
        task: finetuning_settings(task, "recurrent", "sample").version for task in names("tasks")
    }
    return [
        record.model_copy(
            update={
                "results_version": RESULTS_VERSION,
                "method_version": getattr(METHODS.module_dict.get(record.method), "version", 1),
                "task_version": tasks.get(record.task, record.task_version),
            }
        )
        for record in records
    ]

from dataclasses import replace

import pytest

from tespec.comparison.cell import RESULTS_VERSION, Cell, run_name
from tespec.comparison.records import Record, read_records
from tespec.core.config import finetuning_settings, names
from tespec.core.paths import REPOSITORY
from tespec.registry import METHODS, register_methods


@pytest.fixture(scope="session")
def records() -> list[Record]:
    """Committed records, as if they were of the present versions of results, methods and tasks."""
    records, problems = read_records(REPOSITORY / "results" / "sample")
    assert problems == []
    register_methods()
    versions = {
        task: finetuning_settings(task, "recurrent", "sample").version for task in names("tasks")
    }

    def current(cell: Cell) -> Cell:
        return replace(
            cell,
            start=current(cell.start) if isinstance(cell.start, Cell) else cell.start,
            results_version=RESULTS_VERSION,
            method_version=getattr(METHODS.module_dict.get(cell.method), "version", 1),
            task_version=1 if cell.kind == "pretraining" else versions[cell.task],
        )

    renewed = []
    for record in records:
        cell = current(record.cell)
        name = run_name(cell, record.seed, record.data_fingerprint, record.start_sha256)
        renewed.append(record.model_copy(update={"cell": cell, "name": name}))
    return renewed

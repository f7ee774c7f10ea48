"""The matrix of runs: which cells there are, which of them are done, and how long the others will take."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from tespec.comparison.records import Record, code_of

DONE, MISSING, RUNNING, FAILED, WAITING = "done", "missing", "running", "failed", "waiting"


@dataclass(frozen=True, order=True)
class GridCell:
    """One run: a pre-training where `task` is empty, else a fine-tuning."""

    method: str
    task: str
    arch: str
    seed: int

    @property
    def name(self) -> str:
        """For people and for files."""
        return (
            "-".join(part for part in (self.method, self.task or "pretraining", self.arch) if part) + f"-s{self.seed}"
        )


def is_done(
    cell: GridCell, config: Mapping[str, Any], records: Iterable[Record], codes: Container[str], data: str = ""
) -> bool:
    """Whether there is a record of a cell under this configuration; what the device decides does not count.

    Args:
        cell: an evaluation.
        config: its resolved settings.
        records: any.
        codes: hashes of the code whose records count.
        data: fingerprint of the data, "" where it is not known.
    """
    wanted = without_device(config)
    return any(
        (record["method_name"], record["task"], record["arch"], record["seed"])
        == (cell.method, cell.task, cell.arch, cell.seed)
        and record["kind"] == "evaluation"
        and code_of(record) in codes
        and data in ("", record["data_fingerprint"])
        and without_device(record["config"]) == wanted
        for record in records
    )


def of_other_code(records: Iterable[Record], codes: Container[str]) -> str:
    """A line on records that do not count since other code computed them, "" where there are none."""
    others = Counter(code_of(record) for record in records if code_of(record) not in codes)
    if not others:
        return ""
    named = ", ".join(f"{count} of {code}" for code, count in sorted(others.items()))
    return f"records of other code do not count: {named}; --accept-code HASH takes those of the same settings"


def without_device(config: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration without the precision, which follows from the device where it is not set."""
    optimisation = {name: value for name, value in config["optimisation"].items() if name != "precision"}
    return {**config, "optimisation": optimisation}


def expected_seconds(cell: GridCell, profile: str, records: Sequence[Record]) -> float | None:
    """What a cell will take in s: the median of the records that are most like it; None where there are none."""
    kind = "evaluation" if cell.task else "pretraining"
    alike = [record for record in records if record["kind"] == kind and record["profile"] == profile]
    for same in (
        lambda record: (record["task"], record["arch"], record["method_name"]) == (cell.task, cell.arch, cell.method),
        lambda record: (record["task"], record["arch"]) == (cell.task, cell.arch),
        lambda record: record["method_name"] == cell.method,
        lambda record: True,
    ):
        found = [record["time"]["total"] for record in alike if same(record)]
        if found:
            return float(median(found))
    return None

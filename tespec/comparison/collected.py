"""All records of a comparison: its own, those of what it starts from, and those of the plans that prepared it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from tespec.comparison.archive import ARCHIVE, archived, write_archive
from tespec.comparison.records import Record, read_records
from tespec.core.errors import UserError

STARTS, CURVES, RATES = "starts", "curves", "rates"


@dataclass(frozen=True)
class Collected:
    """Records, by what they were made for.

    Attributes:
        records: of the comparison itself.
        starts: of networks that others start from.
        curves: of learning curves.
        rates: of the search for learning rates of pre-trainings.
        problems: a line for each file that is no record.
    """

    records: tuple[Record, ...] = ()
    starts: tuple[Record, ...] = ()
    curves: tuple[Record, ...] = ()
    rates: tuple[Record, ...] = ()
    problems: tuple[str, ...] = ()


def collect(results: Path) -> Collected:
    """What lies in `results`, in its folders `starts`, `curves` and `rates`, and in its archive."""
    read = [
        read_records(folder / "runs") for folder in (results, *(results / name for name in (STARTS, CURVES, RATES)))
    ]
    own, starts, curves, rates = (tuple(records) for records, _ in read)
    # An archive that cannot be read is named once.
    problems = dict.fromkeys(problem for _, found in read for problem in found)
    return Collected(own, starts, curves, rates, tuple(problems))


def pack(collected: Collected, folder: Path) -> Path:
    """Write the archive of a folder of results.

    Raises:
        UserError: there is one that holds what cannot be read, which would be lost.
    """
    places = {"runs": collected.records}
    places |= {f"{name}/runs": getattr(collected, name) for name in (STARTS, CURVES, RATES)}
    for place in places:
        if problems := archived(folder / place)[1]:
            raise UserError(folder / ARCHIVE, f"is not replaced, for it is damaged: {problems[0]}", "remove it first")
    texts = {
        f"{place}/{record['name']}.json": json.dumps(record, separators=(",", ":"), ensure_ascii=False)
        for place, records in places.items()
        for record in records
    }
    return write_archive(folder / ARCHIVE, texts)

"""What stands under a table about the measured numbers in it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from tespec.comparison.basis import Basis
from tespec.comparison.lines import made_from
from tespec.comparison.recipes import is_default
from tespec.comparison.records import Record

SAMPLE = (
    "The sample world is a small synthetic driving world. Its numbers compare methods at small scale; they are no "
    "measurement of {title} and not comparable with the paper's."
)

# Code is named by such a version in records that were computed before the corrections; newer ones name it otherwise.
BEFORE_CORRECTIONS = re.compile(r"\d+\.\d+\.\d+\+r[0-3]")


def of_older_code(records: Iterable[Record]) -> str:
    """A sentence on records from before the corrections of the code; empty where there are none."""
    versions = sorted({record["code"] for record in records if BEFORE_CORRECTIONS.fullmatch(record["code"])})
    if not versions:
        return ""
    return (
        f"Results of version {', '.join(versions)}, before the corrections in CHANGELOG.md; they do not describe "
        "today's code."
    )


def basis_notes(basis: Basis, heading: str, title: str) -> list[str]:
    """Notes on the measured columns of one basis.

    Args:
        basis: what was measured.
        heading: of its columns.
        title: of the task's data set.
    """
    seeds = ", ".join(map(str, basis.seeds))
    word, spread = (
        ("seeds", "; mean ± sample standard deviation over seeds (95 % Student-t intervals: the long CSV)")
        if len(basis.seeds) > 1
        else ("seed", "")
    )
    notes = [f"{title}, {heading}; {word} {seeds}{spread}."]
    if basis.differs:
        notes.append(f"{title}, {heading}: {basis.differs}.")
    if basis.data == "sample":
        notes.append(SAMPLE.format(title=title))
    deviations = basis.records[0]["config"].get("deviations") or []
    if deviations:
        notes.append(f"Profile {basis.profile} deviates from the paper: {'; '.join(map(str, deviations))}.")
    if made := _made_here(basis):
        notes.append(f"{title}, {heading}: weights made here: {made}.")
    if names := _names(basis, lambda cell: len({record["weights"].get("sha256") or "" for record in cell}) > 1):
        notes.append(f"{title}, {heading}: the seeds of {names} start from different weights.")
    if names := _names(basis, lambda cell: not is_default(cell[0])):
        notes.append(f"{title}, {heading}: the weights of {names} come from a pre-training with changed settings.")
    if basis.variants:
        count = len(basis.variants)
        notes.append(f"{title}, {heading}: {count} run{'s' if count > 1 else ''} after other pre-trainings left out.")
    if basis.superseded:
        names = ", ".join(record["name"] for record in basis.superseded)
        notes.append(
            f"{title}, {heading}: newer records of the same seed from other weights stand in place of {names}."
        )
    return notes


def _names(basis: Basis, fits: Callable[[list[Record]], bool]) -> str:
    """The cells that fit, as methods with their architectures."""
    cells = (cell for cell in basis.cells().values() if fits(cell))
    return "; ".join(f"{cell[0]['method']['title']}, {cell[0]['arch']}" for cell in cells)


def _made_here(basis: Basis) -> str:
    """Methods whose weights were pre-trained here, and on what."""
    made = {
        f"{' '.join(record['method']['title'].split())} on {source}"
        for record in basis.records
        if (source := made_from(record))
    }
    return ", ".join(sorted(made))

"""What stands under a table about the measured numbers in it."""

from __future__ import annotations

from tespec.comparison.basis import Basis

SAMPLE = (
    "The sample world is a small synthetic driving world. Its numbers compare methods at small scale; they are no "
    "measurement of {title} and not comparable with the paper's."
)


def basis_notes(basis: Basis, heading: str, title: str) -> list[str]:
    """Notes on the measured columns of one basis.

    Args:
        basis: what was measured.
        heading: of its columns.
        title: of the task's data set.
    """
    seeds = ", ".join(map(str, basis.seeds))
    spread = "; mean ± sample standard deviation over seeds" if len(basis.seeds) > 1 else ""
    world = "the sample world in place of" if basis.data == "sample" else "data set"
    word = "seeds" if len(basis.seeds) > 1 else "seed"
    notes = [f"{heading}: {world} {title}, profile {basis.profile}, {word} {seeds}{spread}."]
    if basis.differs:
        notes.append(f"{heading}: {basis.differs}.")
    if basis.data == "sample":
        notes.append(SAMPLE.format(title=title))
    deviations = basis.records[0]["config"].get("deviations") or []
    if deviations:
        notes.append(f"Profile {basis.profile} deviates from the paper: {'; '.join(map(str, deviations))}.")
    if basis.superseded:
        names = ", ".join(record["name"] for record in basis.superseded)
        notes.append(f"{heading}: started from other weights with the same seed and older, so left out: {names}.")
    return notes

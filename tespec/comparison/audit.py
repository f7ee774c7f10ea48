"""Gains that the paper's text names, recomputed from its tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tespec.comparison.ablations import METRICS, read_ablation
from tespec.comparison.published import TABLES
from tespec.comparison.references import PAPER, number, published, read_reference, text
from tespec.errors import UserError


@dataclass(frozen=True)
class Claim:
    """A gain that the text names.

    Attributes:
        where: in the paper.
        says: what it is a gain of.
        gain: as the text has it.
        places: its decimals.
        more: the cell that is better; see `cell`.
        less: the cell it is compared with.
    """

    where: str
    says: str
    gain: float
    places: int
    more: str
    less: str

    @property
    def found(self) -> float:
        """The gain by the tables, with the decimals of the claim."""
        return round(cell(self.more) - cell(self.less), self.places)

    @property
    def holds(self) -> bool:
        """Whether text and tables agree."""
        return self.found == self.gain


def claims() -> tuple[Claim, ...]:
    """All claims of `results/paper/claims.yaml`."""
    with published(PAPER / "claims.yaml") as content:
        return tuple(_claim(facts) for facts in content)


def _claim(facts: Mapping[str, Any]) -> Claim:
    claim = Claim(**facts)
    for each in (claim.where, claim.says, claim.more, claim.less):
        text(each)
    number(claim.gain)
    if isinstance(claim.places, bool) or not isinstance(claim.places, int) or not 0 <= claim.places <= 6:
        raise TypeError(f"{claim.places!r} is no number of decimals")
    return claim


def cell(place: str) -> float:
    """A published number: table/method/arch/task/metric, a row's mark behind its method, or ablation/table/row/metric.

    Raises:
        UserError: there is no such cell, or it is empty.
    """
    parts = place.split("/")
    if parts[0] == "ablation" and len(parts) == 4 and parts[3] in METRICS:
        _, table, name, metric = parts
        for row in read_ablation(table).rows:
            value = row.paper[list(METRICS).index(metric)]
            if row.name == name and value is not None:
                return value
    elif len(parts) == 5 and parts[0] in TABLES:
        table, method, arch, task, metric = parts
        plain, mark = method.rstrip("†‡"), method[len(method.rstrip("†‡")) :]
        for published in read_reference(table).rows:
            same = (published.method, published.mark, published.recurrent) == (plain, mark, arch == "recurrent")
            score = published.scores.get((task, metric))
            if same and score is not None:
                return score
    raise UserError("results/paper/claims.yaml", f"there is no published number {place}", "mend the claim")


def render_audit() -> str:
    """A line for each claim, and how many hold."""
    every = claims()
    lines = []
    for claim in every:
        verdict = "holds" if claim.holds else f"DOES NOT HOLD: the tables give {claim.found:.{claim.places}f}"
        lines.append(f"{claim.where}: {claim.says}, {_short(claim.more)}, {claim.gain:.{claim.places}f}: {verdict}")
    held = sum(claim.holds for claim in every)
    return "\n".join([*lines, f"{held} of {len(every)} claims hold"]) + "\n"


def _short(place: str) -> str:
    parts = place.split("/")
    return " ".join(parts[1:2] + parts[3:]) if parts[0] == "ablation" else " ".join(parts[3:])

"""The paper held against itself: gains that its text names, recomputed from its tables, and places that disagree."""

from __future__ import annotations

from dataclasses import replace

from pydantic import StrictStr
from pydantic.dataclasses import dataclass

from tespec.comparison.ablations import DECIMALS, METRICS, read_ablation
from tespec.comparison.published import PAPER, TABLES, Amount, Places, plain_tables, published, read_published
from tespec.core.errors import UserError


@dataclass(frozen=True)
class Gain:
    """A gain that the text names.

    Attributes:
        where: in the paper.
        says: what it is a gain of.
        gain: as the text has it.
        places: its decimals.
        more: the cell that is better; see `cell`.
        less: the cell it is compared with.
    """

    where: StrictStr
    says: StrictStr
    gain: Amount
    places: Places
    more: StrictStr
    less: StrictStr

    @property
    def found(self) -> float:
        """The gain by the tables, with the decimals of the text."""
        return round(cell(self.more) - cell(self.less), self.places)

    @property
    def agrees(self) -> bool:
        """Whether text and tables agree."""
        return self.found == self.gain


@dataclass(frozen=True)
class Contradiction:
    """Two places of the paper that cannot both be right.

    Attributes:
        where: section, caption or table of the one.
        says: what it says.
        there: that of the other.
        against: what that says.
        cells: the published numbers that it names; see `shown`.
    """

    where: StrictStr
    says: StrictStr
    there: StrictStr
    against: StrictStr
    cells: tuple[StrictStr, ...]


def gains() -> tuple[Gain, ...]:
    """All gains that `results/paper/claims.yaml` names."""
    with published(PAPER / "claims.yaml") as content:
        return tuple(Gain(**facts) for facts in content)


def contradictions() -> tuple[Contradiction, ...]:
    """All contradictions of `results/paper/contradictions.yaml`, the published numbers in them filled in."""
    with published(PAPER / "contradictions.yaml") as content:
        every = [Contradiction(**facts) for facts in content]
        return tuple(replace(each, against=each.against.format(*map(shown, each.cells))) for each in every)


def shown(place: str) -> str:
    """A published number as its table prints it: a place of `cell`, or facts/table/row/column of a table of facts.

    Raises:
        UserError: there is no such cell, or it is empty.
    """
    parts = place.split("/")
    if parts[0] in TABLES:
        return f"{cell(place):.{read_published(parts[0]).decimals}f}"
    if parts[0] == "ablation":
        return f"{cell(place):.{DECIMALS}f}"
    if parts[0] == "facts" and len(parts) == 4 and (table := plain_tables().get(parts[1])) is not None:
        columns = [column.key for column in table.columns]
        for row in table.rows:
            if row.cells[0].text == parts[2] and parts[3] in columns:
                return row.cells[columns.index(parts[3])].text
    raise _nowhere(place)


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
        for published in read_published(table).rows:
            same = (published.method, published.mark, published.recurrent) == (plain, mark, arch == "recurrent")
            score = published.scores.get((task, metric))
            if same and score is not None:
                return score
    raise _nowhere(place)


def _nowhere(place: str) -> UserError:
    return UserError("results/paper", f"there is no published number {place}", "restore claims and contradictions")


def render_audit() -> str:
    """A line for each gain that the text names, how many are those of the tables, and a line for each contradiction."""
    every = gains()
    lines = []
    for gain in every:
        found = "agrees" if gain.agrees else f"DISAGREES: the tables give {gain.found:.{gain.places}f}"
        lines.append(f"{gain.where}: {gain.says}, {_short(gain.more)}, {gain.gain:.{gain.places}f}: {found}")
    agreeing = sum(gain.agrees for gain in every)
    lines += [f"{agreeing} of {len(every)} gains agree with the tables", "", "Where the paper contradicts itself:"]
    lines += [f"{each.where}: {each.says}; {each.there}: {each.against}" for each in contradictions()]
    return "\n".join(lines) + "\n"


def _short(place: str) -> str:
    parts = place.split("/")
    return " ".join(parts[1:2] + parts[3:]) if parts[0] == "ablation" else " ".join(parts[3:])

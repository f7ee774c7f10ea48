"""Which peak learning rate each pre-training takes, from records that differ in it alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import mean
from typing import Any

from tespec.comparison.basis import average
from tespec.comparison.identity import canonical
from tespec.comparison.pretrained import LAST_STAGE, LEAST_RANK, NOISE, healthy, held_out_loss, learned
from tespec.comparison.records import Record, code_of
from tespec.comparison.table import Cell, Column, Group, Row, Table
from tespec.core.errors import UserError

TITLE = "Peak learning rates of pre-trainings"
RULE = (
    "Chosen is the rate with the lowest loss on data held out among those whose features are healthy: the last stage's "
    f"rank above {LEAST_RANK:g}, and at the end no more than {NOISE:.0%} below the highest rank seen before. Where "
    "none is, it is the rate with the highest rank of the last stage. Where a pre-training was searched over more "
    "steps as well, the longest search decides."
)
LOSSES = "Losses of different methods do not compare; that of masked reconstruction is the one with the state carried."
COLUMNS = (
    Column(("Peak rate",), "peak_lr"),
    Column(("Held-out loss",), "loss"),
    Column(("Last-stage rank",), "rank"),
    Column(("Rank over the training",), "ranks", number=False),
    Column(("Seeds",), "seeds"),
    Column(("Healthy",), "healthy", number=False),
    Column(("Chosen",), "chosen", number=False),
    Column(("Reason",), "reason", number=False),
)


@dataclass(frozen=True)
class Tried:
    """A peak rate and what became of it; numbers are means over seeds.

    Attributes:
        rate: peak learning rate.
        loss: on data held out.
        rank: of the last stage's features at the end; None where a record does not say it.
        records: one for each seed.
        healthy: whether the features of all seeds are.
        reason: why, or why not: that of the first seed that is not.
    """

    rate: float
    loss: float
    rank: float | None
    records: tuple[Record, ...]
    healthy: bool
    reason: str

    @property
    def rank_cell(self) -> Cell:
        """The rank as a cell of a table."""
        if self.rank is None:
            return Cell()
        names = tuple(record["name"] for record in self.records)
        return Cell(f"{self.rank:.1f}", self.rank, runs=len(names), sources=names)


@dataclass(frozen=True)
class Search:
    """The rates that were tried of one pre-training, from the highest to the lowest.

    Attributes:
        method: name of the method.
        title: of the method, and what it learns.
        steps: of each training.
        tried: a rate each.
        decides: whether the same pre-training was not searched over more steps as well.
    """

    method: str
    title: str
    steps: int
    tried: tuple[Tried, ...]
    decides: bool = True

    @property
    def name(self) -> str:
        """The title with the number of steps."""
        return f"{self.title}, {self.steps:,} steps"

    @property
    def chosen(self) -> Tried:
        """The rate to take, see `RULE`."""
        accepted = [each for each in self.tried if each.healthy]
        if accepted:
            return min(accepted, key=lambda each: each.loss)
        return max(self.tried, key=lambda each: each.rank or 0.0)

    @property
    def verdict(self) -> str:
        """The choice in words."""
        chosen = self.chosen
        if not self.decides:
            return "searched again over more steps"
        if chosen.healthy:
            return f"{chosen.rate:g}"
        if chosen.rank is None:
            return "none is healthy, and no record says the last stage's rank"
        return f"none is healthy; {chosen.rate:g} has the highest rank of the last stage"


def searches(records: Sequence[Record]) -> list[Search]:
    """What was tried of each pre-training with two rates or more; those that differ in anything else are apart."""
    groups: dict[tuple[str, str], list[Record]] = defaultdict(list)
    for record in records:
        if record["kind"] == "pretraining" and held_out_loss(record) is not None:
            groups[record["method_name"], _but_for_the_rate(record)].append(record)
    found = []
    for (method, _), members in sorted(groups.items()):
        by_rate: dict[float, list[Record]] = defaultdict(list)
        for record in sorted(members, key=lambda each: each["seed"]):
            by_rate[float(record["config"]["optimisation"]["peak_lr"])].append(record)
        if len(by_rate) > 1:
            tried = tuple(_tried(rate, runs) for rate, runs in sorted(by_rate.items(), reverse=True))
            steps = int(members[0]["config"]["optimisation"]["steps"])
            found.append(Search(method, _title(members[0]), steps, tried))
    found.sort(key=lambda each: (each.method, each.title, each.steps))
    longest = {(_place(each), each.title): each.steps for each in found}
    return [replace(each, decides=each.steps == longest[_place(each), each.title]) for each in found]


def _place(search: Search) -> tuple[str, ...]:
    """Where a pre-training was searched: the same one on other data, or under another profile, decides for itself."""
    first = search.tried[0].records[0]
    return search.method, first["profile"], first["data"]


def rates_table(records: Sequence[Record]) -> Table:
    """What was tried and what is chosen of each pre-training.

    Raises:
        UserError: no pre-training was made at two rates.
    """
    found = searches(records)
    if not found:
        remedy = "run the plan `rates` first: python benchmarks/plan.py rates"
        raise UserError("--rates", "no pre-training was made at two peak rates or more", remedy)
    groups = tuple(Group(f"{each.name}: {each.verdict}", tuple(_rows(each))) for each in found)
    lines = tuple(line for each in found for line in _lines(each))
    return Table(TITLE, COLUMNS, groups, notes=(RULE, LOSSES), lines=lines)


def _but_for_the_rate(record: Record) -> str:
    config = record["config"]
    optimisation = {name: value for name, value in config["optimisation"].items() if name != "peak_lr"}
    parts = {**config, "optimisation": optimisation, "profile": record["profile"], "code": code_of(record)}
    return canonical({**parts, "fingerprint": record["data_fingerprint"]})


def _title(record: Record) -> str:
    return f"{' '.join(str(record['method']['title']).split())} ({learned(record)})"


def _tried(rate: float, runs: Sequence[Record]) -> Tried:
    verdicts = [healthy(record) for record in runs]
    refused = [reason for accepted, reason in verdicts if not accepted]
    said = average([record["metrics"].get("last_stage_rank") for record in runs])
    return Tried(
        rate=rate,
        loss=mean(loss for record in runs if (loss := held_out_loss(record)) is not None),
        rank=None if said is None else said.value,
        records=tuple(runs),
        healthy=not refused,
        reason=(refused or [verdicts[0][1]])[0],
    )


def _rows(search: Search) -> list[Row]:
    rows = []
    for each in search.tried:
        chosen = search.decides and each is search.chosen
        ranks = [point["rank"] for point in each.records[0]["curves"].get(LAST_STAGE, ())]
        names = tuple(record["name"] for record in each.records)
        cells = (
            Cell(f"{each.rate:g}", each.rate, bold=chosen),
            Cell(f"{each.loss:.4f}", each.loss, runs=len(names), sources=names, bold=chosen),
            each.rank_cell,
            Cell(" ".join(f"{rank:.1f}" for rank in ranks)) if ranks else Cell(),
            Cell(str(len(names)), len(names)),
            Cell("yes" if each.healthy else "no"),
            Cell("chosen" if chosen else ""),
            Cell(each.reason),
        )
        rows.append(Row(cells, facts={"method": search.method, "title": search.name}))
    return rows


def _lines(search: Search) -> list[dict[str, Any]]:
    """The long CSV: a line for each record."""
    return [
        {"method": search.method, "pretraining": search.name, "peak_lr": each.rate, "seed": record["seed"]}
        | {"loss": held_out_loss(record), "rank": record["metrics"].get("last_stage_rank")}
        | {"healthy": healthy(record)[0], "chosen": search.decides and each is search.chosen}
        | {"reason": healthy(record)[1], "record": record["name"]}
        for each in search.tried
        for record in each.records
    ]

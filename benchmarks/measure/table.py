"""Rows as lines of text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.measure.limits import Limits
from benchmarks.measure.row import Row

WIDE = 50  # signs of the first column
UNITS = ((1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))


def heading() -> str:
    """The line above all rows."""
    return f"{'stage, case, device':{WIDE}}{'ours':>11}{'peers':>11}{'ratio':>8}{'x limit':>9}  rate"


def line(row: Row, limits: Limits | None, judged: bool = True) -> str:
    """A row: its times, its ratio and rate, how far from the machine's limit, targets and remarks below it.

    Args:
        row: measured or not.
        limits: of its device.
        judged: whether its targets are shown, which tiny sizes say nothing about.
    """
    title = f"{row.stage}, {row.case}, {row.device}"
    if row.seconds is None and not row.figures:
        return f"{title:{WIDE}}{row.note}"
    over = row.over_limit(limits)
    cells = (
        f"{duration(row.seconds) if row.seconds else '':>11}",
        f"{duration(row.peer_seconds) if row.peer_seconds else '':>11}",
        f"{f'{row.ratio:.2f}' if row.ratio else '':>8}",
        f"{f'{over:.1f}' if over else '':>9}",
        f"  {si(row.rate)}{row.unit}/s" if row.rate else "",
    )
    below = [row.size + (f"; peers: {row.peers}" if row.peers else "")] if row.size else []
    below += [f"{name} {si(value)}".rstrip() for name, value in row.figures.items()]
    below += [row.note] if row.note else []
    for verdict in row.verdicts() if judged else ():
        below.append(verdict.upper() if "missed" in verdict else verdict)
    return "\n".join([f"{title:{WIDE}}{''.join(cells)}".rstrip(), *(f"    {each}" for each in below)])


def duration(seconds: float) -> str:
    """Seconds in a readable unit."""
    for limit, factor, unit in ((1e-3, 1e6, "us"), (1.0, 1e3, "ms")):
        if seconds < limit:
            return f"{seconds * factor:.2f} {unit}"
    return f"{seconds:.2f} s"


def si(value: float | None) -> str:
    """A number with a prefix, and a space behind it."""
    if value is None:
        return ""
    for size, prefix in UNITS:
        if abs(value) >= size:
            return f"{value / size:.4g} {prefix}"
    return f"{value:.3g} "


def comparison(now: Mapping[str, Any], before: Mapping[str, Any]) -> list[str]:
    """Ratios of both ledgers for the rows that both have; times of two runs are not comparable."""
    old = {_key(row): row["ratio"] for row in before["rows"] if row["ratio"]}
    lines = [f"{'ratio to peers':{WIDE}}{'before':>10}{'now':>10}{'change':>10}"]
    for row in now["rows"]:
        earlier = old.get(_key(row))
        if earlier and row["ratio"]:
            change = f"{row['ratio'] / earlier - 1:+.0%}"
            title = ", ".join(_key(row))
            lines.append(f"{title:{WIDE}}{earlier:10.2f}{row['ratio']:10.2f}{change:>10}")
    return lines


def _key(row: Mapping[str, Any]) -> tuple[str, str, str]:
    return row["stage"], row["case"], row["device"]

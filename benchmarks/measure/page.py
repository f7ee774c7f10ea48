"""A ledger as a page of Markdown, beside its JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.measure.table import duration, si

COLUMNS = ("stage", "what", "ours", "peers", "ratio", "rate", "x limit", "target, remark")


def page(ledger: Mapping[str, Any]) -> str:
    """The rows of a ledger as a table, under what they were measured on."""
    return "\n".join(_lines(ledger)) + "\n"


def _lines(ledger: Mapping[str, Any]) -> Iterator[str]:
    machine = ledger["environment"]
    yield f"# {ledger['part']}: {machine['cpu']}, {machine['cores']} cores\n"
    yield (
        f"Written by `python benchmarks/speed.py`; docs/performance.md explains it. Revision "
        f"{machine['revision'][:12] or 'unknown'}{' with changes' if machine['modified'] else ''}, "
        f"Python {machine['python']}, torch {machine['packages']['torch']}, {ledger['threads']} thread; "
        f"{ledger['load_before']:.1f} other processes wanted a core before.\n"
    )
    for device, limits in ledger["limits"].items():
        bandwidth, flops = limits["bandwidth"] / 1e9, limits["flops"] / 1e9
        yield f"{device}: copies {bandwidth:.1f} GB/s, {limits['dtype']} products {flops:,.0f} GFLOP/s.\n"
    yield f"| {' | '.join(COLUMNS)} |"
    yield "|" + "---|" * len(COLUMNS)
    for row in ledger["rows"]:
        yield f"| {' | '.join(_cells(row))} |"


def _cells(row: Mapping[str, Any]) -> Iterator[str]:
    yield f"{row['stage']}, {row['case']}, {row['device']}"
    yield "; ".join(filter(None, (row["size"], row["peers"] and f"peers: {row['peers']}")))
    yield duration(row["seconds"]) if row["seconds"] else ""
    yield duration(row["peer_seconds"]) if row["peer_seconds"] else ""
    yield f"{row['ratio']:.2f}" if row["ratio"] else ""
    yield f"{si(row['rate'])}{row['unit']}/s" if row["rate"] else ""
    yield f"{row['over_limit']:.1f}" if row["over_limit"] else ""
    figures = [f"{name} {si(value)}".strip() for name, value in row["figures"].items()]
    yield "; ".join([*(f"**{each}**" if "missed" in each else each for each in row["targets"]), *figures,
                     *([row["note"]] if row["note"] else [])])  # fmt: skip

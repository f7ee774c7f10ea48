"""Measure every stage side by side with a plain re-implementation of how peers do it.

    python benchmarks/speed.py                          # all stages; docs/performance.md explains the table
    python benchmarks/speed.py --only detection
    python benchmarks/speed.py --only inference         # likewise growth, switches and scaling, minutes each
    python benchmarks/speed.py --only profile           # where the time of a step goes
    python benchmarks/speed.py --compare results/speed/MACHINE.json

Both ways of a stage are first checked to give the same result, then run in turn; figures are medians on one thread. A
whole part writes its ledger to results/speed/. Exit code 1: the two ways of a stage differ.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if not __package__:
    import installed  # noqa: F401  # before the harness

from tespec.cli.command import Parser, run
from tespec.core.paths import RESULTS

if TYPE_CHECKING:
    import argparse

    import torch

    from benchmarks.measure.rows import Row


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = Parser(description=__doc__)
    parser.add_argument("--only", metavar="STAGE", help="one stage, or inference, growth, switches, scaling or profile")
    parser.add_argument("--runs", type=int, default=9, help="timed runs of each way, fewer where they are long (9)")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: shows that all works, and no speed")
    parser.add_argument("--device", help="cpu, cuda or cuda:N (default: the CPU, and a GPU where there is one)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where the ledger goes (default: results/speed)")
    parser.add_argument("--compare", type=Path, metavar="FILE", help="also print ratios beside those of a ledger")
    options = parser.parse_args()
    if options.runs < 1:
        parser.error("--runs: give 1 or more")
    return options


def main() -> int:
    """Measure, print, write."""
    options = parse()
    os.environ.setdefault("KINETO_LOG_LEVEL", "5")  # torch's profiler reports each start and stop otherwise
    import torch

    from benchmarks.measure.catalogue import STAGES, part_of
    from benchmarks.measure.conditions import Conditions
    from benchmarks.measure.ledger import (
        comparison,
        heading,
        line,
        machine_name,
        make_ledger,
        read_ledger,
        write_ledger,
    )
    from benchmarks.measure.profiling import profile
    from benchmarks.measure.rows import measure_limits

    before = read_ledger(options.compare) if options.compare else None
    load = os.getloadavg()[0]
    torch.set_num_threads(1)
    conditions = Conditions(devices(options.device), options.runs, options.quick)
    if options.only == "profile":
        for text in profile(conditions):
            print(text, flush=True)
        return 0
    part, names = part_of(options.only)
    limits = {device.type: measure_limits(device, options.quick) for device in conditions.devices}
    for name, each in limits.items():
        print(f"{name}: copies {each.bandwidth / 1e9:.1f} GB/s, {each.dtype} products {each.flops / 1e9:,.0f} GFLOP/s")
    print(heading())
    rows: list[Row] = []
    for name in names:
        for row in STAGES[name](conditions):
            rows.append(row)
            print(line(row, limits.get(row.device), not options.quick), flush=True)
    ledger = make_ledger(part or options.only, rows, limits, conditions, load)
    if path := options.json or _default(part, options.quick, machine_name()):
        write_ledger(ledger, path)
        print(f"ledger: {path}, {path.with_suffix('.md')}")
    if before:
        print("\n".join(comparison(ledger, before)))
    return 1 if any(row.failed for row in rows) else 0


def _default(part: str, quick: bool, machine: str) -> Path | None:
    """Where a ledger goes that nobody named a place for: nowhere unless it holds a whole part at full size."""
    if quick or not part:
        return None
    suffix = "" if part == "stages" else f"-{part}"
    return RESULTS / "speed" / f"{machine}{suffix}.json"


def devices(named: str | None) -> tuple[torch.device, ...]:
    """The CPU, and the GPU named or found.

    Raises:
        UserError: the device named is not there.
    """
    import torch

    from tespec.training.device import choose_device

    chosen = choose_device(named)
    return tuple(dict.fromkeys([torch.device("cpu"), chosen]))


if __name__ == "__main__":
    sys.exit(run(main))

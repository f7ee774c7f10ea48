"""Measure the stages that users wait for, each beside a plain implementation of how peers do it.

    python benchmarks/speed.py                 # all stages, minutes; writes results/speed/MACHINE.json
    python benchmarks/speed.py --only metric   # one stage
    python benchmarks/speed.py --quick         # tiny sizes: shows that everything runs

Both ways must give the same result before they are timed, on one thread. Exit code 1: they differ in a stage.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable
from json import dumps
from pathlib import Path
from typing import Annotated, Any

if not __package__:
    import installed  # noqa: F401  # before the harness

import torch
from cyclopts import Parameter
from torch.utils.benchmark import Measurement, Timer

from benchmarks.stages import STAGES, Case
from tespec.cli.main import call, new_app, run
from tespec.comparison.provenance import environment
from tespec.core.errors import UserError
from tespec.core.files import write_whole
from tespec.core.paths import RESULTS
from tespec.core.settings import suggest

ROUNDS = 5
SECONDS = 0.4  # of each way in a round, at least
app = new_app("speed.py", __doc__)


@app.default
def measure_stages(
    *,
    only: Annotated[str | None, Parameter(help=f"one of {', '.join(STAGES)}")] = None,
    quick: Annotated[bool, Parameter(help="tiny sizes: shows that everything runs, not how fast")] = False,
    json: Annotated[Path | None, Parameter(help="where the results go (default: results/speed)")] = None,
) -> int:
    """Measure, print, write."""
    if only is not None and only not in STAGES:
        raise UserError(f"--only {only}", "unknown stage", suggest(only, STAGES))
    torch.set_num_threads(1)
    load, rows = os.getloadavg()[0], []
    print(f"{'stage':10} {'ours, median +-IQR':>20} {'plain':>20} {'ratio':>6} {'rate':>7}")
    for name in [only] if only else STAGES:
        for case in STAGES[name](quick):
            rows.append(measure(case, quick))
            print(line(rows[-1]), flush=True)
    default = None if only or quick else RESULTS / "speed" / f"{machine_name()}.json"
    if path := json or default:
        print(f"written: {save(path, 'cpu', rows, load)}")
    return 1 if any(row["failed"] for row in rows) else 0


def measure(case: Case, quick: bool) -> dict[str, Any]:
    """Check that the two ways of a case agree, then time them; median and interquartile range in seconds."""
    row = {"stage": case.stage, "size": case.size, "plain": case.plain_is, "failed": False}
    if case.plain and not case.same(case.ours(), case.plain()):
        return row | {"failed": True, "note": "the two ways give different results"}
    timers = [Timer("way()", globals={"way": way}) for way in (case.ours, case.plain) if way]
    rounds, seconds = (1, 0.0) if quick else (ROUNDS, SECONDS)
    # In turn, so that a slow phase of the machine affects both.
    taken = [[timer.blocked_autorange(min_run_time=seconds) for timer in timers] for _ in range(rounds)]
    ours, *plain = (Measurement.merge(each)[0] for each in zip(*taken, strict=True))
    row |= {"seconds": ours.median, "iqr": ours.iqr, "runs": len(ours.times)}
    row |= {"rate": case.work / ours.median, "unit": f"{case.unit}/s"}
    for each in plain:
        row |= {"plain_seconds": each.median, "plain_iqr": each.iqr, "ratio": each.median / ours.median}
    return row


def line(row: dict[str, Any]) -> str:
    """A row of the table."""
    if row["failed"]:
        return f"{row['stage']:10} FAILED: {row['note']}: {row['size']}"
    times = [(row["seconds"], row["iqr"]), (row.get("plain_seconds"), row.get("plain_iqr"))]
    ours, plain = (f"{1e3 * median:,.2f} ms +-{iqr / median:.0%}" if median else "" for median, iqr in times)
    ratio = f"{row['ratio']:.2f}" if plain else ""
    what = f"{row['size']}; plain: {row['plain'] or 'none'}"
    return f"{row['stage']:10} {ours:>20} {plain:>20} {ratio:>6} {row['rate']:>7.2g} {row['unit']:12} {what}"


def machine_name(gpu: str = "") -> str:
    """GPU or CPU, and number of cores, as a file name."""
    facts = environment()
    return re.sub(r"[^a-z0-9]+", "-", f"{gpu or facts['cpu']} {facts['cores']} cores".lower()).strip("-")


def save(path: Path, device: str, rows: Iterable[dict[str, Any]], load: float) -> Path:
    """Write rows with machine, versions, git revision, and how many processes wanted a core before."""
    facts = {"threads": 1, "load_before": load, "environment": environment(device), "rows": list(rows)}
    return write_whole(path, dumps(facts, indent=1) + "\n")


def main() -> int | None:
    """Run what the command line says."""
    return call(app, sys.argv[1:])


if __name__ == "__main__":
    sys.exit(run(main))

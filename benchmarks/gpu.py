"""Check and measure the harness on a machine with a GPU, in under ten minutes.

    make gpu                                            # or, where it is installed: python benchmarks/gpu.py
    python benchmarks/gpu.py --only agreement           # one stage
    python benchmarks/gpu.py --device cpu --small       # the same from beginning to end without a GPU, minutes

First it is checked that the GPU computes what a CPU does and that no step waits for it, then speed and memory are
measured; docs/performance.md explains both. Each stage runs in a process of its own, so that one that fails, or takes
longer than the time that is left, is named and the others still run. A whole run writes results/gpu/MACHINE.json and
a page beside it. Exit code 1: a check or a stage failed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

if not __package__:
    import installed  # noqa: F401  # before the harness

from tespec.cli.command import Parser, run
from tespec.core.errors import UserError
from tespec.core.paths import RESULTS

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

MINUTES = 8.5
ENOUGH = 20.0  # s; with less left no stage is begun
# In this order: what tells most comes first.
STAGES = (
    "agreement", "waits", "step", "inference", "resume", "recurrent", "intensity", "input", "evaluation", "histogram",
)  # fmt: skip


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = Parser(description=__doc__)
    parser.add_argument("--device", default="cuda", help="cuda, cuda:N or cpu (default: cuda)")
    parser.add_argument("--small", action="store_true", help="sizes that take no time: shows that all works, no speed")
    parser.add_argument("--only", metavar="STAGE", choices=STAGES, help=f"one of {', '.join(STAGES)}")
    parser.add_argument("--minutes", type=float, default=MINUTES, help=f"that all stages may take ({MINUTES:g})")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where the ledger goes (default: results/gpu)")
    parser.add_argument("--rows", type=Path, help="FILE: measure in this process, and write rows alone (for itself)")
    options = parser.parse_args()
    if not options.minutes > 0:
        parser.error("--minutes: give more than 0")
    return options


def main() -> int:
    """Run all stages, print, write."""
    options = parse()
    # cuBLAS reads it when it is first used, and the check of resumed trainings is one of equality.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    from tespec.training.device import choose_device

    try:
        device = choose_device(options.device)
    except UserError as error:
        raise UserError(error.where, "no GPU is there", "give --device cpu --small to see that all works") from error
    if options.rows:
        return measure(options.only, device, options.small, options.rows)
    return all_stages(options, device)


def measure(stage: str, device: Any, small: bool, out: Path) -> int:
    """Print the rows of one stage as they come, and write them to `out`."""
    import torch

    from benchmarks.measure import checks, events, networks, training
    from benchmarks.measure.conditions import Conditions
    from benchmarks.measure.ledger import line
    from benchmarks.measure.rows import measure_limits

    torch.set_num_threads(1)
    # Stages that build batches, or count events, do so on the CPU.
    both = tuple(dict.fromkeys([torch.device("cpu"), device]))
    ways = {
        "agreement": checks.agreement,
        "waits": checks.waits,
        "step": training.training_step,
        "inference": lambda conditions: networks.latency(conditions, device, conditions.size("paper", "sample")),
        "resume": checks.resume,
        "recurrent": networks.recurrent,
        "intensity": events.intensity,
        "input": training.batches,
        "evaluation": checks.evaluation,
        "histogram": events.histogram,
    }
    conditions = Conditions(both if stage in ("input", "histogram") else (device,), 5, small)
    limits = {each.type: measure_limits(each, small) for each in conditions.devices}
    rows: list[dict[str, Any]] = []
    for row in ways[stage](conditions):
        print(line(row, limits.get(row.device), not small), flush=True)
        rows.append(row.facts(limits.get(row.device)))
        # What is there is kept where a later row ends the process.
        out.write_text(json.dumps({"rows": rows, "limits": {name: each._asdict() for name, each in limits.items()}}))
    return 0


def all_stages(options: argparse.Namespace, device: Any) -> int:
    """Run each stage in a process of its own, and write the ledger of them all."""
    from benchmarks.measure.ledger import GPU, SCHEMA, heading, machine_name, write_ledger
    from tespec.comparison.identity import environment
    from tespec.training.device import describe

    began, load = time.monotonic(), os.getloadavg()[0]
    rows: list[dict[str, Any]] = []
    limits: dict[str, Any] = {}
    unfinished: dict[str, str] = {}
    print(heading(), flush=True)
    with TemporaryDirectory() as folder:
        for stage in [options.only] if options.only else STAGES:
            file, left = Path(folder) / f"{stage}.json", 60 * options.minutes - (time.monotonic() - began)
            if said := _in_a_process(stage, options, file, left):
                unfinished[stage] = said
                print(f"STAGE {stage} DID NOT FINISH: {said}", flush=True)
            found = json.loads(file.read_text()) if file.is_file() else {"rows": [], "limits": {}}
            rows += found["rows"]
            limits |= found["limits"]
    ledger = {
        "schema": SCHEMA,
        "part": GPU,
        "quick": options.small,
        "threads": 1,
        "load_before": load,
        "seconds": time.monotonic() - began,
        "environment": environment(describe(device)),
        "limits": limits,
        "unfinished": unfinished,
        "rows": rows,
    }
    whole = not (options.small or options.only)
    if path := options.json or (RESULTS / "gpu" / f"{machine_name()}.json" if whole else None):
        write_ledger(ledger, path)
        print(f"ledger: {path}, {path.with_suffix('.md')}")
    return summary(rows, unfinished, ledger["seconds"])


def summary(rows: Sequence[dict[str, Any]], unfinished: dict[str, str], seconds: float) -> int:
    """Say in one line how it went; 1 where something failed."""
    failed = [f"{row['stage']} ({row['case']})" for row in rows if row["failed"]]
    wrong = [*failed, *(f"stage {name}" for name in unfinished)]
    print(f"{len(rows)} rows in {seconds:.0f} s; " + (f"FAILED: {', '.join(wrong)}" if wrong else "nothing failed"))
    return 1 if wrong else 0


def _in_a_process(stage: str, options: argparse.Namespace, file: Path, left: float) -> str:
    """Measure a stage in another process; says why it did not finish, "" where it did."""
    if left < ENOUGH:
        return f"not begun: the {options.minutes:g} minutes were over"
    command = [sys.executable, str(Path(__file__).resolve()), "--only", stage, "--rows", str(file)]
    command += ["--device", options.device, *(["--small"] if options.small else [])]
    try:
        code = subprocess.run(command, timeout=left, check=False).returncode
    except subprocess.TimeoutExpired:
        return f"stopped after {left:.0f} s: the {options.minutes:g} minutes were over"
    return "" if code == 0 else f"ended with code {code}; its last lines are on the terminal"


if __name__ == "__main__":
    sys.exit(run(main))

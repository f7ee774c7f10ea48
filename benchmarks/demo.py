"""The main job on the sample world: pre-train, fine-tune four cells of the table two at a time, print the table.

python benchmarks/demo.py
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

if not __package__:
    import installed  # noqa: F401  # before the harness

from benchmarks.grid_jobs import Job, Places, work
from tespec.cli import tables
from tespec.cli.command import Parser, run
from tespec.core.errors import UserError
from tespec.core.paths import RESULTS, RUNS

HERE = Path(__file__).parent
SECONDS_BETWEEN_REPORTS = 10.0
WORLD, PRETRAINING = "sample-world", "pre-training"


def jobs(results: Path, seed: int) -> list[Job]:
    """The demo's command lines, most urgent first."""
    # One thread each, so that the numbers do not depend on how many cores a machine has.
    common = ("--seed", str(seed), "--threads", "1", "--results", str(results))

    def cell(method: str, arch: str, needed: str) -> Job:
        what = ("--method", method, "--task", "ddd17", "--arch", arch)
        return Job(f"{method}-{arch}", (str(HERE / "run.py"), *what, *common), (needed,))

    return [
        Job(WORLD, ("-m", "tespec.world", "--size", "small")),
        Job(PRETRAINING, (str(HERE / "pretrain.py"), "--method", "tespec", *common), (WORLD,)),
        cell("tespec", "recurrent", PRETRAINING),
        cell("scratch", "recurrent", WORLD),
        cell("tespec", "feedforward", PRETRAINING),
        cell("scratch", "feedforward", WORLD),
    ]


def headline(results: Path, seed: int) -> str:
    """What the pre-training learned, from its record."""
    found = sorted((results / "runs").glob(f"pretraining-tespec-*-s{seed}-*.json"), key=os.path.getmtime)
    metrics = json.loads(found[-1].read_text())["metrics"]
    return (
        "Held-out masked loss of the pre-trained model: "
        f"{metrics['loss_masked_carried']:.3f} with its state carried, "
        f"{metrics['loss_masked_zeroed']:.3f} with the state zeroed at each chunk, "
        f"{metrics['loss_zero']:.3f} when predicting zero."
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the demo."""
    parser = Parser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of records, tables and pictures")
    options = parser.parse_args(arguments)
    results = options.results.resolve()
    began = time.monotonic()
    places = Places(RUNS / "demo", at_once=min(2, os.cpu_count() or 1), every=SECONDS_BETWEEN_REPORTS)
    for name, reason in work(jobs(results, options.seed), places).items():
        raise UserError(name, f"failed: {reason}", "read that log; the same command goes on")
    tables.main(["--only", "segmentation", "--results", str(results)])
    print(f"\n{headline(results, options.seed)}")
    print(f"The demo took {time.monotonic() - began:.0f} s. Records, tables and pictures are in {results}.")


if __name__ == "__main__":
    sys.exit(run(main))

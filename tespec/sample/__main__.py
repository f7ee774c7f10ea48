"""`python -m tespec.sample`: make a sample world and print its label priors."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tespec.cli.main import run
from tespec.sample.make import DEFAULT, make_world
from tespec.sample.recordings import CONTENTS, DATASETS


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tespec.sample", description=__doc__)
    parser.add_argument("--size", choices=sorted(CONTENTS), default="small", help="how much to make")
    parser.add_argument("--seed", type=int, default=0, help="streets of different seeds differ")
    parser.add_argument("--root", type=Path, help="folder in which worlds are kept (default: the cache)")
    parser.add_argument("--processes", type=int, help="recordings made at once (default: one per processor)")
    parser.add_argument("--datasets", nargs="+", choices=DATASETS, default=DEFAULT, metavar="NAME",
                        help=f"layouts to make (default: {' '.join(DEFAULT)}; all: {' '.join(DATASETS)})")  # fmt: skip
    chosen = parser.parse_args(arguments)

    def make() -> None:
        made = make_world(**vars(chosen))
        for dataset in chosen.datasets:
            if dataset != "objects":
                sys.stdout.write(f"label prior, {dataset}: {label_prior(made / dataset, dataset)}\n")
        sys.stdout.write(f"{made}\n")

    return run(make)


def label_prior(root: Path, dataset: str) -> str:
    """Scores on the test split of the most frequent labels of the training split, whatever the input."""
    import torch  # here, since each process that makes recordings imports this file

    from tespec.runs.data import SAMPLE, Data, settings_of
    from tespec.runs.references import Constant, prior_of
    from tespec.tasks import build_task

    task = build_task(settings_of(Data(root, SAMPLE), dataset, "feedforward", SAMPLE), root)
    metrics = task.evaluate(Constant(prior_of(task)), torch.device("cpu")).metrics
    return ", ".join(f"{name} {value:.2f}" for name, value in metrics.items())


if __name__ == "__main__":
    sys.exit(main())

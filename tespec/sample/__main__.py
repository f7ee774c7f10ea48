"""`python -m tespec.sample`: make a sample world, or a picture of some of its streets."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tespec.core.errors import UserError
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
    parser.add_argument("--picture", type=Path, metavar="FILE", help="save a picture instead of making a world")
    chosen = parser.parse_args(arguments)
    try:
        if chosen.picture:
            from tespec.sample.picture import draw_streets  # needs matplotlib

            draw_streets(chosen.picture)
            made = chosen.picture
        else:
            made = make_world(chosen.size, chosen.seed, chosen.root, chosen.processes, _show, chosen.datasets)
            for dataset in [each for each in chosen.datasets if each != "objects"]:
                sys.stdout.write(f"label prior, {dataset}: {label_prior(made / dataset, dataset)}\n")
    except UserError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    except OSError as error:
        sys.stderr.write(f"error: {error.filename or 'writing'}: {error.strerror}; name another place with --root\n")
        return 2
    sys.stdout.write(f"{made}\n")
    return 0


def label_prior(root: Path, dataset: str) -> str:
    """Scores on the test split of the most frequent labels of the training split, whatever the input."""
    import torch

    from tespec.runs.data import SAMPLE, Data, settings_of
    from tespec.runs.references import Constant, prior_of
    from tespec.tasks import build_task

    task = build_task(settings_of(Data(root, SAMPLE), dataset, "feedforward", SAMPLE), root)
    metrics = task.evaluate(Constant(prior_of(task)), torch.device("cpu")).metrics
    return ", ".join(f"{name} {value:.2f}" for name, value in metrics.items())


def _show(done: int, total: int) -> None:
    sys.stderr.write(f"\rmaking recordings {done}/{total}" + ("\n" if done == total else ""))
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())

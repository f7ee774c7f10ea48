"""`python -m tespec.sample`: make a sample world, and print its label priors and its folder."""

import sys
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from tespec.cli.main import call, new_app, run
from tespec.runs.setup import NonNegativeInt, PositiveInt
from tespec.sample import DEFAULT, make_world

app = new_app("python -m tespec.sample")


@app.default
def make(
    *,
    size: Annotated[Literal["tiny", "small"], Parameter(help="size of the world")] = "small",
    seed: Annotated[NonNegativeInt, Parameter(help="different seeds have different streets")] = 0,
    root: Annotated[Path | None, Parameter(help="folder that contains the worlds (default: the cache)")] = None,
    processes: Annotated[PositiveInt | None, Parameter(help="worker processes (default: one per core)")] = None,
    datasets: Annotated[tuple[str, ...], Parameter(help="layouts to make", consume_multiple=True)] = DEFAULT,
) -> None:
    """Make a sample world; print the label prior of each data set, a baseline to beat, and the world's folder."""
    made = make_world(size, seed, root, processes, datasets)
    import torch  # imported here because every worker process imports this file

    from tespec.runs.data import SAMPLE, Data, settings_of
    from tespec.runs.references import Constant, prior_of
    from tespec.tasks import build_task

    for dataset in datasets:
        if dataset != "objects":
            data = Data(made / dataset, SAMPLE)
            task = build_task(settings_of(data, dataset, "feedforward", SAMPLE), data.root)
            scores = task.evaluate(Constant(prior_of(task)), torch.device("cpu")).overall().metrics()
            shown = ", ".join(f"{name} {value:.2f}" for name, value in scores.items())
            sys.stdout.write(f"label prior, {dataset}: {shown}\n")
    sys.stdout.write(f"{made}\n")


if __name__ == "__main__":
    sys.exit(run(lambda: call(app, sys.argv[1:])))

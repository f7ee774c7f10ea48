"""`python -m tespec.sample`: make a sample world."""

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
    root: Annotated[
        Path | None, Parameter(help="folder that contains the worlds (default: the cache)")
    ] = None,
    processes: Annotated[
        PositiveInt | None, Parameter(help="worker processes (default: one per core)")
    ] = None,
    datasets: Annotated[
        tuple[str, ...], Parameter(help="layouts to make", consume_multiple=True)
    ] = DEFAULT,
) -> None:
    """Make a sample world, and print its folder."""
    sys.stdout.write(f"{make_world(size, seed, root, processes, datasets)}\n")


if __name__ == "__main__":
    sys.exit(run(lambda: call(app, sys.argv[1:])))

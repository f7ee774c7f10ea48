"""Pre-train a backbone without labels.

python benchmarks/pretrain.py --method tespec --data recording.raw --profile sample
python benchmarks/pretrain.py --method tespec --data /data/1mpx
python benchmarks/pretrain.py --method tespec              # on the sample world
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tespec.cli.command import Parser
from tespec.core.errors import UserError

if TYPE_CHECKING:
    from tespec.core.settings import Pretraining
    from tespec.pretraining.method import Method
    from tespec.runs.data import Data


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    from tespec.cli.options import add_run_options

    parser = Parser(verb="pretrain", description=__doc__)
    what = parser.add_argument_group("what")
    what.add_argument("--method", required=True, help="a method with a recipe")
    what.add_argument(
        "--data", type=Path, metavar="PATH", help="recording, or folder of recordings (.raw, .dat, store)"
    )
    add_run_options(parser)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what the command line says."""
    options = parse(arguments)
    from tespec.cli.cost import scratch_world
    from tespec.cli.options import bring_in
    from tespec.core.config import pretraining_settings
    from tespec.pretraining.method import find_method
    from tespec.training.launch import launched

    bring_in(options)
    method = find_method(options.method)
    if method.recipe is None:
        raise UserError(f"--method {options.method}", "has no pre-training", "choose a method with a recipe")
    if options.dry_run:
        named = pretraining_settings(method.recipe, options.profile or "paper", options.set, method.network)
        with scratch_world(named.dataset) as worlds:
            dry_run(*resolve(options, method.recipe, method.network, worlds), options.device, options.workers)
        return
    with launched(options.launcher, options.device):
        train(options, method)


def train(options: argparse.Namespace, method: Method) -> None:
    """Pre-train, and say what came of it."""
    from tespec.cli.options import setup_of
    from tespec.core.distributed import is_first
    from tespec.runs.pretrain import pretrain

    settings, data = resolve(options, str(method.recipe), method.network)
    result = pretrain(options.method, method, settings, data, options.seed, setup_of(options, "pretrain"))
    if not is_first():
        return
    print("held out: " + ", ".join(f"{name} {value:.4f}" for name, value in result.metrics.items()))
    print(f"weights: {result.weights}" + (f"\npicture: {result.picture}" if result.picture else ""))


def resolve(
    options: argparse.Namespace, recipe: str, network: str, worlds: Path | None = None
) -> tuple[Pretraining, Data]:
    """Settings of the pre-training, and its data; where the sample world is made in `worlds`."""
    from tespec.core.config import pretraining_settings
    from tespec.core.progress import say
    from tespec.pretraining.objective import own_settings
    from tespec.runs.data import find_unlabelled

    # Mistakes in the settings come to light before any data is made.
    named = pretraining_settings(recipe, options.profile or "paper", options.set, network)
    own_settings(named.objective)
    data = find_unlabelled(named.dataset, options.data, worlds)
    if data.notice:
        say(data.notice)
    return pretraining_settings(recipe, options.profile or data.profile, options.set, network), data


def dry_run(settings: Pretraining, data: Data, device_name: str | None, workers: int) -> None:
    """Print the resolved settings and what the run would cost."""
    from tespec.cli.cost import print_cost
    from tespec.core.config import as_facts
    from tespec.pretraining.objective import build_objective
    from tespec.runs.cost import forecast
    from tespec.training.device import choose_device

    device = choose_device(device_name)
    task = build_objective(settings, data.root)
    frames = settings.batch_size * settings.segments
    small, steps = task.small_batch(), task.steps(0)
    cost = forecast(task.network(), small, steps, settings.optimisation, device, frames, workers)
    print_cost(as_facts(settings), task.protocol(), data, cost, frames, device)

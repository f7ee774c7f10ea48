"""Pre-train a backbone without labels.

python benchmarks/pretrain.py --method tespec --data recording.raw --profile sample
python benchmarks/pretrain.py --method tespec --data /data/1mpx
python benchmarks/pretrain.py --method tespec --data sample       # on the sample world
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tespec.cli.command import Parser
from tespec.core.errors import UserError

if TYPE_CHECKING:
    from tespec.core.settings import Pretraining
    from tespec.runs.data import Data


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    from tespec.cli.options import add_run_options, refuse_forecast

    parser = Parser(verb="pretrain", description=__doc__)
    what = parser.add_argument_group("what")
    what.add_argument("--method", required=True, help="a method with a recipe")
    what.add_argument(
        "--data", type=Path, metavar="PATH", help="recording, folder of recordings, or sample: the sample world"
    )
    what.add_argument("--variant", default="", metavar="NAME", help="row of an ablation, for the record")
    what.add_argument("--skip-damaged", action="store_true",
                      help="leave out recordings that cannot be read; the record names them")  # fmt: skip
    add_run_options(parser)
    options = parser.parse_args(arguments)
    refuse_forecast(parser, options)
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what the command line says."""
    options = parse(arguments)
    from tespec.cli.options import load_plugins

    load_plugins(options)
    from tespec.pretraining.method import find_method
    from tespec.training.device import denormals_flushed
    from tespec.training.launch import launched

    method = find_method(options.method)
    if method.recipe is None:
        raise UserError(f"--method {options.method}", "has no pre-training", "choose a method with a recipe")
    if options.dry_run:
        dry_run(options)
        return
    with launched(options.launcher, options.device), denormals_flushed():
        train(options)


def train(options: argparse.Namespace) -> None:
    """Pre-train, and say what came of it."""
    from tespec.cli.options import setup_of
    from tespec.comparison.pretrained import healthy
    from tespec.core.distributed import is_first
    from tespec.pretraining.method import find_method
    from tespec.runs.pretrain import pretrain
    from tespec.runs.setup import check_places

    setup = replace(setup_of(options, "pretrain"), skip_damaged=options.skip_damaged)
    check_places(setup)
    settings, data = resolve(options)
    result = pretrain(options.method, settings, data, options.seed, setup)
    if not is_first():
        return
    print("held out: " + ", ".join(f"{name} {value:.4f}" for name, value in result.metrics.items()))
    if find_method(options.method).architectures:
        accepted, reason = healthy(result.record)
        print(f"features: {'healthy' if accepted else 'not healthy'}, {reason}")
    print(f"weights: {result.weights}" + (f"\npicture: {result.picture}" if result.picture else ""))


def resolve(options: argparse.Namespace) -> tuple[Pretraining, Data]:
    """Settings of the pre-training, and its data."""
    from tespec.cli.options import network_of
    from tespec.core.config import pretraining_settings
    from tespec.core.progress import say
    from tespec.pretraining.method import find_method, own_settings
    from tespec.runs.data import find_unlabelled

    # Mistakes in the settings come to light before any data is made.
    network = network_of(options, find_method(options.method))
    named = pretraining_settings(options.method, options.profile or "paper", options.set, network)
    own_settings(named.objective)
    data = find_unlabelled(named.dataset, options.data, options.profile)
    if data.notice:
        say(data.notice)
    return pretraining_settings(options.method, options.profile or data.profile, options.set, network), data


def dry_run(options: argparse.Namespace) -> None:
    """Print the settings and the cost of the pre-training."""
    from tespec.cli.cost import print_cost
    from tespec.cli.options import network_of
    from tespec.core.config import pretraining_settings
    from tespec.pretraining.method import find_method, pretrain_method
    from tespec.runs.cost import estimate_pretraining, input_of, planned_data

    network = network_of(options, find_method(options.method))
    named = pretraining_settings(options.method, options.profile or "paper", options.set, network)
    data = planned_data(named.dataset, options.data, options.profile, named.sensor)
    settings = pretraining_settings(options.method, data.profile, options.set, network)
    print_cost(estimate_pretraining(settings, input_of(settings, named.dataset, data.sensor)), data.title, options)
    if first := pretrain_method(settings).requires:
        print(f"Before it, {first} is pre-trained: see --method {first} --dry-run.")

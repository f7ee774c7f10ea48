"""Say what trainings would take of a GPU: those of the paper as a page, and what dry runs print of one.

python benchmarks/cost.py                                  # every cell and every pre-training, as a table
python benchmarks/cost.py --only 1mpx tespec --gpu h200
python benchmarks/cost.py --write docs/cost.md             # the whole page

Nothing is allocated, no data is needed, and no GPU.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tespec.cli.command import Parser
from tespec.core.errors import UserError

if TYPE_CHECKING:
    from tespec.runs.cost import Blueprint, Cost, Evaluated, Gpu

GB = 1e9


def add_cost_options(group: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """Add what a forecast is for."""
    group.add_argument("--gpu", metavar="NAME", help="forecast for this GPU (default: all of configs/gpus.yaml)")
    group.add_argument("--share", type=share, metavar="S",
                       help="share of the GPU's peak that is reached, above 0 and up to 1 (default: 0.35)")  # fmt: skip


def share(text: str) -> float:
    """A share above 0, up to 1, from the command line."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 1:
        raise UserError(f"--share {text}", "no share of a GPU's peak", "give a number above 0, 1 at most")
    return value


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table, or write the page."""
    from tespec.cli.options import add_own, bring_in

    parser = Parser(verb="cost", description=__doc__)
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="these tasks and methods")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the page into this file")
    add_cost_options(parser)
    add_own(parser)
    options = parser.parse_args(arguments)
    bring_in(options)
    from tespec.core.files import write_whole
    from tespec.core.progress import progress
    from tespec.runs.cost import SHARE, USUAL, find_gpu
    from tespec.runs.cost_page import page, rows_of_paper, table

    gpu, reached = find_gpu(options.gpu or USUAL), options.share or SHARE
    with progress("counting", "trainings") as advance:
        rows = rows_of_paper(gpu, reached, options.only, lambda done, total: advance(done, total, ""))
    if options.write is None:
        print("\n".join(table(rows)))
        return
    if options.only:
        raise UserError("--only", "the page holds all trainings", "leave --only out, or print the table")
    write_whole(options.write, page(rows, gpu, reached))
    print(f"Written: {options.write}")


def print_cost(
    facts: dict[str, Any],
    source: str,
    make: Callable[[], Blueprint],
    options: argparse.Namespace,
    evaluated: Evaluated | None = None,
) -> None:
    """Print resolved settings, and what a training by them would take.

    Args:
        facts: the settings.
        source: where the size of what the network sees is from, in words.
        make: gives the training on the `meta` device.
        options: of the command line.
        evaluated: what its evaluation plays, where that is known.
    """
    import yaml

    from tespec.runs.cost import SHARE, Way, find_gpu, gpus

    known = [find_gpu(options.gpu)] if options.gpu else list(gpus().values())
    reached = options.share or SHARE
    blueprint = make()
    fused = not options.deterministic if options.fused_attention is None else options.fused_attention
    half = blueprint.settings.optimisation.precision != "fp32"
    asked = Way(options.gpus, options.accumulate, options.recompute, half, fused)
    cost, other = blueprint.cost(asked), blueprint.cost(replace(asked, half=not asked.half))
    print(yaml.safe_dump({"settings": facts}, sort_keys=False, width=116, default_flow_style=True))
    height, width = blueprint.size
    print(f"input       {height} x {width} px ({source})")
    print("parameters  " + ", ".join(f"{count:,} {part}" for part, count in blueprint.parameters.items()))
    each = f" on each of {asked.gpus} GPUs" if asked.gpus > 1 else ""
    print(f"a step      {blueprint.frames} segments, {cost.flops / 1e12:.3g} TFLOP{each}; {cost.steps:,} steps")
    for one in (cost, other):
        print(f"memory      {in_gb(one.training)} at most in {name_of(one)}: {in_gb(one.kept)} kept for the backward "
              f"pass, {in_gb(one.fixed)} weights, gradients and optimizer")  # fmt: skip
    print(
        f"            {in_gb(cost.evaluation)} in the evaluation; a checkpoint takes {in_gb(cost.checkpoint)} on disk"
    )
    print(f"\n{number(asked.gpus)} at {100 * reached:.0f} % of the peak in {name_of(cost)}:")
    for gpu in known:
        after = (
            ""
            if evaluated is None
            else f"; evaluation {blueprint.evaluation_hours(evaluated, asked, gpu, reached):.2g} h"
        )
        print(f"  {gpu.title:16} {gpu.memory / GB:4.0f} GB  {verdict(blueprint, cost, gpu, reached)}{after}")
    if evaluated is not None:
        print(
            f"The evaluation plays {evaluated.windows:,} windows with {evaluated.labels:,} labels ({evaluated.source})."
        )
    print("The hours are those of the steps alone. Nothing was read, allocated or written.")


def number(gpus: int) -> str:
    """So many GPUs, in words."""
    return "1 GPU" if gpus == 1 else f"{gpus} GPUs"


def name_of(cost: Cost) -> str:
    """The precision that a cost is for."""
    return "bf16" if cost.way.half else "fp32"


def in_gb(size: float) -> str:
    """Bytes in GB, three digits."""
    return f"{size / GB:.3g} GB" if size < 999.5 * GB else f"{size / GB:,.0f} GB"


def verdict(blueprint: Blueprint, cost: Cost, gpu: Gpu, reached: float) -> str:
    """Hours of a cost on a GPU, or the switches that make it fit."""
    if cost.fits(gpu):
        return f"{cost.hours(gpu, reached):7.1f} h, fits"
    fitting = blueprint.fitting(gpu, cost.way)
    if fitting is None:
        return "does not fit even with --recompute and --accumulate; use more GPUs"
    return f"{fitting.hours(gpu, reached):7.1f} h with {fitting.way.switches}: {in_gb(fitting.memory)}"

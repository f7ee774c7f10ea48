"""`--dry-run` of run.py and pretrain.py: settings, and what the training would take of a GPU."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from tespec.core.errors import UserError

if TYPE_CHECKING:
    from tespec.runs.cost import TrainingEstimate


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


def print_cost(estimate: TrainingEstimate, data: str, options: argparse.Namespace) -> None:
    """Print resolved settings and the cost of a training.

    Args:
        estimate: of the training.
        data: which data it is for.
        options: of the command line.
    """
    import torch
    import yaml

    from tespec.core.config import as_facts
    from tespec.core.progress import say
    from tespec.runs.cost import MFU, ExecutionConfig, gpus, memory_warning

    known, settings, mfu = gpus(options.gpu), estimate.settings, options.share or MFU
    fused = not options.deterministic if options.fused_attention is None else options.fused_attention
    half = settings.optimisation.precision != "fp32"
    config = ExecutionConfig(options.gpus, options.accumulate, options.recompute, half, fused)
    cost = estimate.cost(config)
    facts = {name: value for name, value in as_facts(settings).items() if name != "deviations"}
    print(yaml.safe_dump({"settings": facts}, sort_keys=False, width=116, default_flow_style=True))
    print(f"data        {data}\nprofile     {settings.profile}")
    print(f"input       {estimate.size[0]} x {estimate.size[1]} px, {settings.batch_size} x {settings.segments} a step")
    print("parameters  " + ", ".join(f"{count:,} {part}" for part, count in estimate.parameters.items()))
    each = f" on each of {config.gpus} GPUs" if config.gpus > 1 else ""
    print(f"a step      {cost.flops / 1e12:.3g} TFLOP{each}; {cost.steps:,} steps")
    print(f"memory      {cost.memory / 1e9:.3g} GB in {'bf16' if half else 'fp32'}: {cost.kept / 1e9:.3g} GB kept for "
          f"the backward pass, {cost.fixed / 1e9:.3g} GB weights, gradients, optimizer")  # fmt: skip
    for gpu in known:
        fitting = estimate.fitting(gpu.memory_gb * 1e9, config)
        verdict = "does not fit even with --recompute and --accumulate; use more GPUs"
        if fitting is not None:
            hours, added = fitting.hours(gpu, mfu), fitting.config != config
            verdict = f"{hours:,.1f} h" if hours >= 0.1 else "under 0.1 h"
            verdict += f" with {fitting.config.options}" if added else ", fits"
        print(f"  {gpu.title:16} {gpu.memory_gb:4.0f} GB  {verdict}")
    print(f"Hours are those of the steps at {100 * mfu:.0f} % of the peak; data and evaluation come on top.")
    if torch.cuda.is_available() and (warning := memory_warning(estimate, config, torch.device("cuda", 0))):
        say(warning)

"""`--dry-run` of run.py and pretrain.py: settings, and what the training would take of a GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tespec.runs.cost import TrainingEstimate
    from tespec.runs.setup import Setup


def print_cost(estimate: TrainingEstimate, data: str, gpus: int, setup: Setup) -> None:
    """Print resolved settings and the cost of a training, whose data is described by `data`, on so many GPUs."""
    import torch
    import yaml

    from tespec.core.config import as_facts
    from tespec.core.progress import say
    from tespec.runs.cost import MFU, ExecutionConfig, known_gpus, memory_warning

    settings = estimate.settings
    half = settings.optimisation.precision != "fp32"
    config = ExecutionConfig(gpus, setup.accumulate, setup.recompute, half, not setup.deterministic)
    cost = estimate.cost(config)
    facts = {name: value for name, value in as_facts(settings).items() if name != "deviations"}
    print(yaml.safe_dump({"settings": facts}, sort_keys=False, width=116, default_flow_style=True))
    print(f"data        {data}\nprofile     {settings.profile}")
    print(f"input       {estimate.size[0]} x {estimate.size[1]} px, {settings.batch_size} x {settings.segments} a step")
    print("parameters  " + ", ".join(f"{count:,} {part}" for part, count in estimate.parameters.items()))
    each = f" on each of {gpus} GPUs" if gpus > 1 else ""
    print(f"a step      {cost.flops / 1e12:.3g} TFLOP{each}; {cost.steps:,} steps")
    print(f"memory      {cost.memory / 1e9:.3g} GB in {'bf16' if half else 'fp32'}: {cost.kept / 1e9:.3g} GB kept for "
          f"the backward pass, {cost.fixed / 1e9:.3g} GB weights, gradients, optimizer")  # fmt: skip
    for gpu in known_gpus():
        fitting = estimate.fitting(gpu.memory_gb * 1e9, config)
        verdict = "does not fit even with --recompute and --accumulate; use more GPUs"
        if fitting is not None:
            hours, added = fitting.hours(gpu), fitting.config != config
            verdict = f"{hours:,.1f} h" if hours >= 0.1 else "under 0.1 h"
            verdict += f" with {fitting.config.options}" if added else ", fits"
        print(f"  {gpu.title:16} {gpu.memory_gb:4.0f} GB  {verdict}")
    print(f"Hours are those of the steps at {100 * MFU:.0f} % of the peak; data and evaluation come on top.")
    if torch.cuda.is_available() and (warning := memory_warning(estimate, config, torch.device("cuda", 0))):
        say(warning)

"""Print which parts of a network a training step's operations, FLOPs and bytes belong to.

    python benchmarks/parts.py tespec
    python benchmarks/parts.py gen1 --profile sample

A step at the profile's size is run on torch's `meta` device, in bf16 as on a GPU, without data and
without a GPU. Each operation belongs to the innermost module that runs it, in the forward or the
backward pass; those of no module belong to the loss. Bytes are those of an operation's inputs and
outputs, without a view's. `bound` is the least time of a part on an H100, one kernel after another,
and what limits it: tensor cores (compute), memory, or starting kernels (launch). Fusing kernels, as
by `--compile`, saves memory and launches only.
"""

import re
import sys
from bisect import bisect_right
from collections import defaultdict
from dataclasses import astuple, dataclass
from typing import Annotated, Any

if not __package__:
    import installed  # noqa: F401  # before the harness

import tespec.core.compat  # noqa: F401  # before timm

import torch
from cyclopts import Parameter
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry
from torch.utils.module_tracker import ModuleTracker

from benchmarks.gpu import paper_training
from tespec.cli.main import call, new_app, run
from tespec.core.config import names
from tespec.models.backbone import execute
from tespec.models.layers import AUTOCAST_ON_META
from tespec.runs.cost import TrainingEstimate
from tespec.training.device import peak_throughput
from tespec.training.step_cost import CudaSemantics, backward

GPU = "H100 SXM"
BANDWIDTH = 3.35e12  # bytes/s, from its datasheet
LAUNCH = 3e-6  # s; a kernel's start, when the CPU is ahead
ROOT = "loss and target"
OPTIMIZER = "optimizer"
# per weight: weight, gradient and two moments are read, all but the gradient written
ADAM_BYTES = 28
app = new_app("parts.py", __doc__)


@dataclass
class Part:
    """Operations of a part of a network in one step."""

    operations: int = 0
    flops: int = 0
    bytes: int = 0

    def bound(self) -> tuple[float, str]:
        """Least time of these operations on a GPU in s, and what limits it."""
        return max(
            (self.flops / peak_throughput(GPU, "bf16"), "compute"),
            (self.bytes / BANDWIDTH, "memory"),
            (self.operations * LAUNCH, "launch"),
        )

    def row(self, name: str, seconds: float) -> str:
        """Format a row of the table, with the part's name and its least time."""
        numbers = f"{self.operations:11,}{self.flops / 1e9:10,.1f}{self.bytes / 1e9:9.2f}"
        return f"{name:34}{numbers}{1000 * seconds:10.2f} ms"


class PartCounter(TorchDispatchMode):
    """Count operations, FLOPs and bytes by the innermost module that is running.

    A backward operation belongs to the part of the forward one whose autograd node runs: both have
    the same sequence number, as in torch's profiler.

    Attributes:
        parts: by name, in the order in which they first run.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.parts: defaultdict[str, Part] = defaultdict(Part)
        self.tracker = ModuleTracker()
        # Stages are called one by one, not through the network, which would name its modules.
        self.tracker._get_mod_name(model)
        self._numbers: list[int] = []  # of forward operations, ascending
        self._names: list[str] = []  # of the parts of these

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = self._name()
        out = func(*args, **(kwargs or {}))
        if not func.is_view:
            leaves = tree_leaves((args, kwargs, out))
            part = self.parts[name]
            part.operations += 1
            part.bytes += sum(leaf.nbytes for leaf in leaves if isinstance(leaf, Tensor))
            if formula := flop_registry.get(func._overloadpacket):
                part.flops += formula(*args, **(kwargs or {}), out_val=out)
        return out

    def _name(self) -> str:
        node: Any = torch._C._current_autograd_node()
        if node is not None:
            return self._names[max(0, bisect_right(self._numbers, node._sequence_nr()) - 1)]
        name = name_of(max(self.tracker.parents, key=len))
        # The operation's node was made before it came here.
        self._numbers.append(torch._C._autograd._get_sequence_nr() - 1)
        self._names.append(name)
        return name


def name_of(module: str) -> str:
    """Name the part of a module, such as "swin.layers_2.attn" for all blocks of a stage.

    Args:
        module: its qualified name behind the network's class, or "Global" outside of all modules.
    """
    first, *names = re.sub(r"\.blocks\.\d+", "", module).split(".")[1:] or [ROOT]
    return ".".join(names[:4]) if first == "backbone" else first


def parts_of(estimate: TrainingEstimate) -> dict[str, Part]:
    """Count the parts of one training step.

    Args:
        estimate: the training, on `meta`.
    """
    model = estimate.model.train()
    execute(model, fast=True)
    batch = estimate.batch(estimate.settings.batch_size)
    counter = PartCounter(model)
    with counter.tracker, counter, CudaSemantics():
        with torch.autocast(AUTOCAST_ON_META, torch.bfloat16):
            losses, _ = model.loss(batch, None)
        backward(losses["loss"])
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    return counter.parts | {OPTIMIZER: Part(1, 0, ADAM_BYTES * trained)}


@app.default
def print_parts(
    training: Annotated[str, Parameter(help=f"tespec, or a task: {', '.join(names('tasks'))}")],
    /,
    *,
    profile: Annotated[str, Parameter(help="of the settings")] = "paper",
) -> int:
    """Print a table of the parts of one step, in the order in which they first run."""
    parts = parts_of(paper_training(training, profile))
    print(f"{'part':34}{'operations':>11}{'GFLOP':>10}{'GB':>9}  bound on one {GPU}")
    total = 0.0
    for name, part in parts.items():
        seconds, limit = part.bound()
        total += seconds
        print(part.row(name, seconds), limit)
    counts = zip(*map(astuple, parts.values()), strict=True)
    print(Part(*map(sum, counts)).row("sum", total))
    return 0


if __name__ == "__main__":
    sys.exit(run(lambda: call(app, sys.argv[1:])))

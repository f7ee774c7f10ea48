"""Measure other ways to compute the backbone on a GPU, each by turns with `--compile`.

    python benchmarks/candidates.py                                  # all: an hour or more
    python benchmarks/candidates.py --training tespec --only grouped --only grouped+scan
    python benchmarks/candidates.py --device cpu --small             # without GPU, not compiled

A candidate changes how a network is computed, in place; `a+b` applies both. It computes the same
function up to rounding: the gradients of the first step must agree. `compiled` is the baseline
itself: its ratio shows the noise. Rows have the time of the first step, which compiles, median and
interquartile range of a step at the paper's size in bf16, the fraction of peak throughput (mfu),
the peak of GPU memory with the baseline's weights, and `ratio`: the baseline's time, measured by
turns, divided by the candidate's. They are written to results/gpu/candidates/MACHINE.json after
each candidate, unless an option selects some of them.
Exit code 1: a candidate failed.
"""

import sys
import time
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from itertools import product
from math import prod
from typing import Annotated, Any

if not __package__:
    import installed  # noqa: F401  # before the harness

import tespec.core.compat  # noqa: F401  # before timm

import torch
from cyclopts import Parameter
from timm.models.swin_transformer import SwinTransformerBlock, WindowAttention
from torch import Tensor
from torch.nn.attention.flex_attention import flex_attention
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.gpu import SMALL, Device, PaperStep, paper_step
from benchmarks.speed import ROUNDS, Output, Row, Tiny, measure_rows, results_file, time_alternately
from tespec.cli.main import call, new_app, run
from tespec.models.backbone import execute, lstm_cell
from tespec.training.device import choose_device, describe

TRAININGS = ("tespec", "ddd17", "gen1")
BASELINE = "compiled"
PRECISION = {"cuda": "bf16", "cpu": "fp32"}
# Maximum relative difference of the gradients. In bf16 only gross mistakes are found: a gradient of
# zero has the difference 1, and rounding made up to 0.35 (results/gpu).
ALLOWED = {"cuda": 0.5, "cpu": 1e-4}
WARM_UP = 20  # steps
SECONDS = 2.0  # least time of a turn
app = new_app("candidates.py", __doc__)


class GroupedAttention(WindowAttention):
    """Window attention with the windows of a frame as heads.

    The bias then has no axis of frames, so no copy of it is made for each frame.
    """

    def forward(self, x: Tensor, mask: Any = None) -> Tensor:
        """Compute attention for windows (B * windows, N, C), with a mask (windows, N, N)."""
        shape = (-1, len(mask), self.window_area, 3, self.num_heads, x.shape[-1] // self.num_heads)
        qkv = self.qkv(x).view(shape).permute(3, 0, 1, 4, 2, 5).flatten(2, 3)
        bias = (self._get_rel_pos_bias() + mask.unsqueeze(1)).flatten(0, 1)  # (windows * heads, ..)
        query, key, value = qkv.unbind(0)  # (B, windows * heads, N, d)
        out = self.attend(query, key, value, bias)
        out = out.unflatten(1, (len(mask), self.num_heads)).transpose(2, 3).reshape(x.shape)
        return self.proj_drop(self.proj(out))

    def attend(self, query: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> Tensor:
        """Attend within each of the heads (B, heads, N, d), with a bias (heads, N, N)."""
        return scaled_dot_product_attention(query, key, value, attn_mask=bias.unsqueeze(0))


class FlexAttention(GroupedAttention):
    """The same by torch's flex attention, which adds the bias inside its kernel."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> Tensor:
        """Attend as `GroupedAttention`."""

        def add_bias(score: Tensor, frame: Any, head: Any, row: Any, column: Any) -> Tensor:
            return score + bias[head, row, column]

        return flex_attention(query, key, value, score_mod=add_bias)


def attend_unfused(backbone: Any) -> None:
    """Compute attention as plain operations, which compiling fuses."""
    for block in blocks_of(backbone):
        block.attn.fused_attn = False


def group_windows(backbone: Any, kind: type[GroupedAttention]) -> None:
    """Replace the attention of all blocks, and give each block a mask.

    Args:
        backbone: changed in place.
        kind: of attention.
    """
    for block in blocks_of(backbone):
        if block.attn_mask is None:
            sides = zip(block.input_resolution, block.window_size, strict=True)
            windows = prod(-(-side // window) for side, window in sides)
            block.attn_mask = torch.zeros(windows, block.window_area, block.window_area)
        block.attn.__class__ = kind


def compile_scan(backbone: Any) -> None:
    """Compile ConvLSTMs over all segments, instead of cell by cell."""
    for lstm in backbone.lstms:
        lstm.step_cell = lstm_cell
        lstm.compile(dynamic=False)


def compile_stages(backbone: Any, mode: str) -> None:
    """Compile stages in another mode of `torch.compile`.

    Args:
        backbone: changed in place.
        mode: of `torch.compile`.
    """
    for stage in backbone.stage_modules():
        stage.compile(dynamic=False, mode=mode)


def blocks_of(backbone: Any) -> list[Any]:
    """List the Swin blocks of a backbone."""
    return [module for module in backbone.modules() if isinstance(module, SwinTransformerBlock)]


CANDIDATES: dict[str, Callable[[Any], object]] = {
    BASELINE: lambda backbone: None,
    "unfused": attend_unfused,
    "grouped": partial(group_windows, kind=GroupedAttention),
    "flex": partial(group_windows, kind=FlexAttention),
    "scan": compile_scan,
    "autotuned": partial(compile_stages, mode="max-autotune-no-cudagraphs"),
    "graphs": partial(compile_stages, mode="reduce-overhead"),
}


def change_network(network: Any, candidate: str, fast: bool) -> None:
    """Compile a network as `--compile` does, then apply candidates in their order.

    Args:
        network: changed in place.
        candidate: keys of `CANDIDATES`, joined by "+".
        fast: as in `execute`.
    """
    execute(network, compiled=True, fast=fast)
    for name in candidate.split("+"):
        CANDIDATES[name](network.backbone)


def do_step(measured: PaperStep) -> Tensor:
    """Do a step and return its loss; CUDA graphs may overwrite tensors of the step before."""
    torch.compiler.cudagraph_mark_step_begin()
    return measured.trainer.train_step(measured.batch)["loss"]


def start(
    training: str, candidate: str, device: torch.device, small: bool
) -> tuple[PaperStep, float, Tensor]:
    """Build a training step and do its first steps; the arguments are those of `compare`.

    Returns:
        The step, the time of the first one in s, and its gradients as one vector, in the scale of
        Adam's first moments.
    """
    change = partial(change_network, candidate=candidate, fast=device.type == "cuda")
    measured = paper_step(training, PRECISION[device.type], device, small, change)
    begin = time.perf_counter()
    do_step(measured).item()
    seconds = time.perf_counter() - begin
    moments = measured.trainer.optimizer.state.values()
    gradients = torch.cat([moment["exp_avg"].flatten() for moment in moments])
    for _ in range(0 if small else WARM_UP):
        do_step(measured)
    return measured, seconds, gradients


@lru_cache(maxsize=1)
def baseline_of(
    training: str, device: torch.device, small: bool
) -> tuple[PaperStep, float, Tensor]:
    """Start the baseline of a training; the arguments are those of `compare`."""
    torch.compiler.reset()  # what was compiled for the training before
    return start(training, BASELINE, device, small)


def compare(training: str, candidate: str, device: torch.device, small: bool) -> Row:
    """Measure a candidate and the baseline by turns.

    Args:
        training: a task or "tespec".
        candidate: keys of `CANDIDATES`, joined by "+".
        device: the device to measure.
        small: use the sample's size and few steps.

    Returns:
        Row of results.
    """
    if device.type == "cpu" and "flex" in candidate:
        return {"note": "not measured: on a CPU, torch has no backward pass of flex attention"}
    baseline, _, expected = baseline_of(training, device, small)
    measured, first_step_seconds, gradients = start(training, candidate, device, small)
    rounds, seconds = (1, 0.0) if small else (ROUNDS, SECONDS)
    works = (partial(do_step, measured), partial(do_step, baseline))
    ours, plain = time_alternately(*works, rounds, seconds)
    error = float((gradients - expected).norm() / expected.norm())
    return measured.row(ours) | {
        "first_step_seconds": first_step_seconds,
        "baseline_seconds": plain.median,
        "baseline_iqr": plain.iqr,
        "ratio": plain.median / ours.median,
        "gradient_error": error,
        "failed": not error <= ALLOWED[device.type],
    }


@app.default
def measure_candidates(
    *,
    only: Annotated[
        Sequence[str], Parameter(help=f"{', '.join(CANDIDATES)}, or several joined by +")
    ] = (),
    training: Annotated[Sequence[str], Parameter(help="a task or tespec")] = (),
    device: Device = "cuda",
    small: Tiny = False,
    path: Output = None,
) -> int:
    """Measure candidates, print their rows and write them to a file."""
    chosen = choose_device(device)
    partly = only or training or small
    default = None if partly else results_file("gpu/candidates", describe(chosen))
    cases = [
        ("candidates", ", ".join(case), partial(compare, *case, chosen, small))
        for case in product(training or (SMALL if small else TRAININGS), only or CANDIDATES)
    ]
    with (
        # Compiling on a CPU takes minutes.
        torch.compiler.set_stance("force_eager" if chosen.type == "cpu" else "default"),
        # Beyond 8 versions of a function, torch would stop compiling it.
        torch._dynamo.config.patch(recompile_limit=1000),
    ):
        return measure_rows(cases, describe(chosen), path or default)


if __name__ == "__main__":
    sys.exit(run(lambda: call(app, sys.argv[1:])))

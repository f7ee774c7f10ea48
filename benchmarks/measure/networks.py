"""The stages of networks: recurrence, inference, and what the switches of execution change."""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple, cast

import tespec.core.compat  # noqa: F401  # before timm

import torch
from timm.models.swin_transformer import SwinTransformer
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.measure.conditions import Conditions
from benchmarks.measure.rows import Row, seconds_of
from tespec.core.config import finetuning_settings, pretraining_settings
from tespec.core.errors import one_line
from tespec.core.settings import Finetuning, Pretraining
from tespec.models import EventSwin
from tespec.models.event_swin import ARCHITECTURES, PATCH, WINDOW
from tespec.models.execution import Execution, execute
from tespec.models.layers import pad_to, padded_size
from tespec.pretraining.objective import own_settings
from tespec.pretraining.tespec import MaskedReconstruction
from tespec.runs.meta import bytes_saved_for_backward
from tespec.tasks import find_task
from tespec.tasks.base import fresh_backbone

# (H, W) in px of the histograms that each task's network sees: rows of the labels, and 1Mpx at half size.
SIZES = {"dsec": (440, 640), "ddd17": (200, 346), "mvsec": (260, 346), "gen1": (240, 304), "1mpx": (360, 640)}
COUNT = 0.05  # events of a cell of a histogram, on average


def task_network(task: str, profile: str) -> tuple[Any, Finetuning]:
    """A task's untrained recurrent network at its own size, in evaluation mode, and its settings."""
    settings = finetuning_settings(task, "recurrent", profile)
    network = find_task(settings).network(settings, fresh_backbone(settings, SIZES[task]))
    return network.eval(), settings


def objective_network(profile: str, size: tuple[int, int]) -> tuple[MaskedReconstruction, Pretraining]:
    """TESPEC's untrained objective for histograms of `size` (H, W), and its settings."""
    settings = pretraining_settings("tespec", profile)
    backbone = EventSwin(settings.width, settings.recurrent, settings.bins, padded_size(*size))
    seconds = settings.window_ms / 1000 / settings.bins
    network = MaskedReconstruction(own_settings(settings.objective), backbone, seconds)
    return network, settings


def histograms(*shape: int, device: torch.device | None = None) -> Tensor:
    """Random counts (..., 2 * bins, H, W) uint8."""
    generator = torch.Generator().manual_seed(0)
    drawn = torch.empty(shape, dtype=torch.uint8)
    for each in drawn.flatten(0, -3):
        each.copy_(torch.poisson(torch.full(each.shape, COUNT), generator=generator))
    return drawn.to(device or "cpu")


def objective_batch(
    network: MaskedReconstruction, lanes: int, segments: int, size: tuple[int, int], device: torch.device
) -> dict[str, Tensor]:
    """A batch of the objective, half of each image hidden."""
    channels = 2 * network.backbone.bins
    units = [-(-side // network.own.mask.unit) for side in size]
    checks = (torch.arange(units[0])[:, None] + torch.arange(units[1])) % 2 == 0
    return {
        "histograms": histograms(lanes, segments, channels, *size, device=device),
        "fresh": torch.zeros(lanes, dtype=torch.bool, device=device),
        "mask": checks.expand(lanes, -1, -1).to(device),
    }


class PlainNetwork(nn.Module):
    """An `EventSwin` with the same weights; takes frames of its `img_size`."""

    def __init__(self, backbone: EventSwin) -> None:
        super().__init__()
        width, depths, heads = ARCHITECTURES[backbone.arch]
        self.swin = SwinTransformer(
            img_size=backbone.img_size,
            patch_size=PATCH,
            in_chans=backbone.in_channels,
            num_classes=0,
            embed_dim=width,
            depths=depths,
            num_heads=heads,
            window_size=WINDOW,
            drop_path_rate=0.0,
        )
        self.swin.norm = nn.Identity()
        self.swin.load_state_dict(backbone.swin.state_dict())
        self.gates = nn.ModuleList()
        for channels, lstm in zip(backbone.channels, backbone.lstms, strict=True):
            gates = nn.Conv2d(2 * channels, 4 * channels, kernel_size=1)
            gates.load_state_dict(cast("nn.Module", lstm.gates).state_dict())
            self.gates.append(gates)

    def forward(self, histograms: Tensor) -> list[Tensor]:
        """Features (B, T, C, h, w) of the four stages, of histograms (B, T, 2 * bins, H, W) as bytes."""
        states: list[tuple[Tensor, Tensor] | None] = [None] * len(self.gates)
        frames: list[list[Tensor]] = [[] for _ in self.gates]
        for segment in range(histograms.shape[1]):
            maps = self.swin.patch_embed(histograms[:, segment].float())
            for index, (stage, gates) in enumerate(zip(self.swin.layers, self.gates, strict=True)):
                state = _lstm(gates, stage(maps).permute(0, 3, 1, 2), states[index])
                states[index] = state
                frames[index].append(state[0])
                maps = state[0].permute(0, 2, 3, 1)
        return [torch.stack(each, dim=1) for each in frames]


def _lstm(gates: nn.Module, maps: Tensor, state: tuple[Tensor, Tensor] | None) -> tuple[Tensor, Tensor]:
    hidden, cell = state or (torch.zeros_like(maps), torch.zeros_like(maps))
    sums = gates(torch.cat((maps, hidden), dim=1))
    forget, write, output, candidate = sums.chunk(4, dim=1)
    cell = forget.sigmoid() * cell + write.sigmoid() * candidate.tanh()
    return output.sigmoid() * cell.tanh(), cell


class Case(NamedTuple):
    """Backbone and batch of one row."""

    name: str
    arch: str
    lanes: int
    segments: int
    size: tuple[int, int]


# The sample profile's pre-training batch, and of the paper's (8 x 15 frames) what a CPU does in seconds.
SAMPLE = Case("sample profile", "micro", 4, 6, (96, 160))
PAPER = {
    "cpu": Case("paper profile", "tiny", 1, 3, (360, 640)),
    "cuda": Case("paper profile", "tiny", 8, 15, (360, 640)),
}
QUICK = Case("sample profile", "micro", 1, 2, (32, 32))


def recurrent(conditions: Conditions) -> Iterator[Row]:
    """Both profiles, as far as the device can take them."""
    for device in conditions.devices:
        for case in conditions.size((SAMPLE, PAPER[device.type]), (QUICK,)):
            yield _measured(conditions, case, device)
    yield from conditions.without_gpu("recurrent", SAMPLE.name, PAPER["cuda"].name)


def _measured(conditions: Conditions, case: Case, device: torch.device) -> Row:
    torch.manual_seed(0)
    backbone = EventSwin(arch=case.arch, img_size=padded_size(*case.size)).to(device)
    counts = histograms(case.lanes, case.segments, 20, *case.size, device=device)
    plain = PlainNetwork(backbone).to(device)
    padded = pad_to(counts, backbone.img_size)
    # What training uses there.
    precision = torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda")

    def step(features: list[Tensor]) -> Any:
        backbone.zero_grad()
        plain.zero_grad()
        sum((feature.float().square().mean() for feature in features), torch.zeros((), device=device)).backward()
        return features[-1].detach().float()

    def stage_major() -> Any:
        with precision:
            features = backbone(counts)[0]
        return step(features)

    def frame_by_frame() -> Any:
        with precision:
            features = plain(padded)
        return step(features)

    with FlopCounterMode(display=False) as flops:
        stage_major()
    frames, size = case.lanes * case.segments, case.size
    row = Row(
        "recurrent", case.name, device.type,
        f"{case.lanes} x {case.segments} frames of {size[0]}x{size[1]} px, Swin {case.arch}, forward and backward",
        "frame by frame", work=frames, unit="frames", computed=flops.get_total_flops(),
    )  # fmt: skip
    # bf16 keeps 8 bits; sums in another order differ by what rounding leaves.
    tolerance = 1e-5 if device.type == "cpu" else 5e-2
    return conditions.compare(
        row, stage_major, frame_by_frame, lambda a, b: torch.allclose(a, b, atol=tolerance), budget=30.0
    )


# Of the recurrent model on an RTX 6000, with its head (paper, appendix table "Training and inference time").
PAPER_SECONDS = {"dsec": 14.6e-3, "ddd17": 14.0e-3, "mvsec": 13.8e-3, "gen1": 20.4e-3, "1mpx": 20.9e-3}
PROFILES = ("paper", "sample")
THREADS = {"cpu": (1, 2), "cuda": (1,)}
COMPILED = ("paper", "gen1")  # what is compiled: each network takes the compiler a minute or more
BUDGET = 4.0  # s of the runs of one row
FEWEST = 5  # runs
WARM = 2  # steps before
QUICK_TASKS = ("mvsec",)


def inference(conditions: Conditions) -> Iterator[Row]:
    """Every task's network in both profiles."""
    for device in conditions.devices:
        for profile in conditions.size(PROFILES, PROFILES[1:]):
            yield from latency(conditions, device, profile)
    yield from conditions.without_gpu("inference", *(f"{profile}, {task}" for profile in PROFILES for task in SIZES))


def latency(conditions: Conditions, device: torch.device, profile: str) -> Iterator[Row]:
    """Every task's network in one profile on one device."""
    for task in conditions.size(tuple(SIZES), QUICK_TASKS):
        yield from _task(conditions, device, profile, task)


def _task(conditions: Conditions, device: torch.device, profile: str, task: str) -> Iterator[Row]:
    network, settings = task_network(task, profile)
    network.to(device)
    frame = histograms(1, 2 * settings.bins, *SIZES[task], device=device)
    precision = torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda")
    steps: dict[str, Callable[[Tensor, Any], Any]] = {"backbone": network.backbone.step, "with head": network.step}
    height, width = SIZES[task]
    with torch.no_grad(), precision:
        for threads in THREADS[device.type]:
            for name, step in steps.items():
                case = f"{profile}, {task}, {name}, {threads} thread{'s' * (threads > 1)}"
                row = Row("inference", case, device.type, f"one segment of {height}x{width} px, eager")
                yield _streamed(conditions, row, step, frame, threads, task)
        if (profile, task) in conditions.size((COMPILED,), ()):
            row = Row("inference", f"{profile}, {task}, backbone, compiled", device.type, f"{height}x{width} px")
            yield _compiled(conditions, row, network.backbone.step, frame, task)


def _streamed(
    conditions: Conditions, row: Row, step: Callable[[Tensor, Any], Any], frame: Tensor, threads: int, task: str
) -> Row:
    """Median and 95th percentile of steps one after the other, the state carried."""
    state: Any = None

    def stream() -> None:
        nonlocal state
        state = step(frame, state)[1]

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for _ in range(WARM):
            stream()
        times: list[float] = []
        fewest, most = conditions.size((FEWEST, 20 * conditions.runs), (2, 2))
        began = time.perf_counter()
        while len(times) < fewest or (len(times) < most and time.perf_counter() - began < BUDGET):
            times.append(seconds_of(stream, frame.device))
    finally:
        torch.set_num_threads(before)
    figures = {"p95_seconds": statistics.quantiles(times, n=20, method="inclusive")[-1]}
    if row.case.startswith("paper") and "with head" in row.case:
        figures["paper_seconds"] = PAPER_SECONDS[task]
    return replace(
        row, seconds=statistics.median(times), runs=len(times), work=1, unit="frames", figures=row.figures | figures
    )


def _compiled(conditions: Conditions, row: Row, step: Callable[[Tensor, Any], Any], frame: Tensor, task: str) -> Row:
    """The same compiled by torch, which needs a C++ compiler on a CPU; the row says why where it fails."""
    compiled = torch.compile(step, dynamic=False)
    began = time.perf_counter()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the compiler, about code that is not the harness's
            state = step(frame, None)[1]  # with a state from the start: without one is another function to compile
            eager, outputs = step(frame, state)[0], compiled(frame, state)[0]
    # Whatever goes wrong in the compiler is what the row has to say.
    except Exception as error:
        return replace(row, note=f"not measured: torch.compile fails ({one_line(str(error))[:160]})")
    took = time.perf_counter() - began
    if not all(torch.allclose(a.float(), b.float(), atol=1e-3) for a, b in zip(eager, outputs, strict=True)):
        return replace(row, failed=True, note="compiled and eager give different features")
    timed = replace(row, figures={"compile_seconds": took})
    return _streamed(conditions, timed, lambda given, before: compiled(given, before or state), frame, 1, task)


SWITCHES = {
    "recompute": Execution(recompute=True),
    "fused attention": Execution(fused_attention=True),
    "compiled": Execution(compiled=True),
}


def switches(conditions: Conditions) -> Iterator[Row]:
    """Each of them, on the sample profile's network on a CPU and on the paper's on a GPU."""
    for device in conditions.devices:
        case = conditions.size(SAMPLE if device.type == "cpu" else PAPER["cuda"], QUICK)
        for name, execution in SWITCHES.items():
            if conditions.quick and execution.compiled:
                yield Row("switches", name, device.type, note="not measured: compiling takes longer than --quick has")
            else:
                yield _with_switches(conditions, case, device, name, execution)
    yield from conditions.without_gpu("switches", *SWITCHES)


def _with_switches(conditions: Conditions, case: Case, device: torch.device, name: str, execution: Execution) -> Row:
    counts = histograms(case.lanes, case.segments, 20, *case.size, device=device)
    precision = torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda")
    networks = []
    for chosen in (execution, Execution()):
        torch.manual_seed(0)
        networks.append(EventSwin(arch=case.arch, img_size=padded_size(*case.size)).to(device))
        execute(networks[-1], chosen)

    def step(backbone: EventSwin) -> Any:
        backbone.zero_grad()
        with precision:
            features = backbone(counts)[0]
        sum((feature.float().square().mean() for feature in features), torch.zeros((), device=device)).backward()
        return features[-1].detach().float()

    frames = case.lanes * case.segments
    row = Row(
        "switches", name, device.type,
        f"{case.lanes} x {case.segments} frames of {case.size[0]}x{case.size[1]} px, Swin {case.arch}, "
        "forward and backward",
        "switched off", work=frames, unit="frames",
    )  # fmt: skip
    tolerance = 1e-4 if device.type == "cpu" else 5e-2
    on, off = networks
    try:
        row = conditions.compare(
            row, lambda: step(on), lambda: step(off), lambda a, b: torch.allclose(a, b, atol=tolerance), budget=30.0
        )
    except RuntimeError as error:
        if not execution.compiled:
            raise
        return replace(row, note=f"not measured: no compiler works here ({type(error).__name__})")
    kept = {
        figure: float(bytes_saved_for_backward(lambda network=network: step(network)))  # type: ignore[misc]
        for figure, network in (("kept_bytes", on), ("kept_bytes_off", off))
        if not execution.compiled
    }
    return replace(row, figures=kept)

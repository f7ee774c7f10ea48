"""Which part of a network each operator of a profile belongs to, forward and backward alike."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn

# What modules are called, by the name of their class or of their place in the network; the innermost one counts.
BY_CLASS = {
    "WindowAttention": "attention",
    "Mlp": "MLP",
    "PatchMerging": "patch merging",
    "LayerNorm": "layer norm",
    "ConvLstm": "ConvLSTM",
    "SwinTransformerBlock": "windows: shift, cut, join",
}
BY_NAME = {
    "decoder": "decoder",
    "neck": "head",
    "head": "head",
    "backbone.swin.patch_embed.proj": "patch embedding",
}
MARK = "part: "
REST = "target, loss, other"
BACKWARD = "autograd::engine::evaluate_function"
STEP = "Optimizer.step"


@contextmanager
def marked(network: nn.Module) -> Iterator[None]:
    """Within, the profiler sees under which part of `network` each operator runs."""
    ranges: list[Any] = []

    def enter(part: str) -> Any:
        def hook(*_: Any) -> None:
            ranges.append(torch.profiler.record_function(MARK + part))
            ranges[-1].__enter__()

        return hook

    def leave(*_: Any) -> None:
        ranges.pop().__exit__(None, None, None)

    with ExitStack() as hooks:
        for name, module in network.named_modules():
            part = BY_NAME.get(name) or BY_CLASS.get(type(module).__name__)
            if part:
                for handle in (module.register_forward_pre_hook(enter(part)), module.register_forward_hook(leave)):
                    hooks.callback(handle.remove)
        yield


def shares(events: Iterable[Any]) -> dict[str, float]:
    """Share of the operators' own time by part, largest first; `events` are a profile's of the CPU."""
    events = list(events)
    part_of = {id(event): _part(event) for event in events}
    of_number: dict[int, str] = {}
    for event in events:
        if event.sequence_nr >= 0 and part_of[id(event)] and not event.name.startswith(BACKWARD):
            of_number.setdefault(event.sequence_nr, part_of[id(event)])
    times: dict[str, float] = defaultdict(float)
    for event in events:
        if event.name.startswith(MARK):
            continue
        part = part_of[id(event)] or of_number.get(_backward_number(event), "") or REST
        times[part] += event.self_cpu_time_total
    total = sum(times.values())
    return {part: time / total for part, time in sorted(times.items(), key=lambda item: -item[1])}


def _part(event: Any) -> str:
    """The innermost part around an event; "" if there is none."""
    while event is not None:
        if event.name.startswith(MARK):
            return str(event.name).removeprefix(MARK)
        if event.name.startswith(STEP):
            return "optimizer"
        event = event.cpu_parent
    return ""


def _backward_number(event: Any) -> int:
    """Sequence number of the forward operator whose backward pass an event belongs to; -1 if to none."""
    while event is not None:
        if event.name.startswith(BACKWARD):
            return int(event.sequence_nr)
        event = event.cpu_parent
    return -1

"""Scaling: two processes against one on the same batch, and what they exchange in a step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from math import isclose
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import distributed

from benchmarks.measure.conditions import Conditions
from benchmarks.measure.networks import PAPER, QUICK, SAMPLE, Case, objective_batch, objective_network
from benchmarks.measure.processes import answers, processes, questions
from benchmarks.measure.rows import Row, synchronise
from tespec.core.distributed import close_group, open_group
from tespec.training.loading import MicroBatches
from tespec.training.loop import Loop
from tespec.training.replicas import Exchanges

STAGE, CASE = "scaling", "two processes"
RANKS = 2
STEP, COUNT = "step", "count"
BACKENDS = {"cpu": "gloo", "cuda": "nccl"}


def scaling(conditions: Conditions) -> Iterator[Row]:
    """A pre-training step of a batch by two processes and by one, on a CPU each of them on one thread."""
    for device in conditions.devices:
        if device.type == "cuda" and torch.cuda.device_count() < RANKS:
            yield Row(STAGE, CASE, "cuda", note="not measured: a single GPU")
            continue
        case = conditions.size(PAPER["cuda"] if device.type == "cuda" else SAMPLE, QUICK._replace(lanes=RANKS))
        profile = case.name.partition(" ")[0]
        with ExitStack() as stack:
            meet = Path(stack.enter_context(TemporaryDirectory())) / "meet"
            alone, several = (
                stack.enter_context(
                    processes(_work, ((rank, ranks, device.type, case, profile, meet) for rank in range(ranks)))
                )
                for ranks in (1, RANKS)
            )
            calls, handed = answers(several, COUNT)[0]
            row = Row(
                STAGE, CASE, device.type, f"{case.lanes} x {case.segments} frames, {case.name}", "one process",
                work=case.lanes * case.segments, unit="frames",
                figures={"exchanges": calls, "exchanged_bytes": handed},
            )  # fmt: skip
            answers(alone, COUNT)
            yield conditions.compare(
                row,
                lambda: answers(several, STEP)[0],  # noqa: B023  # called at once
                lambda: answers(alone, STEP)[0],  # noqa: B023
                lambda ours, theirs: isclose(ours, theirs, rel_tol=1e-3),
            )
    yield from conditions.without_gpu(STAGE, CASE)


def _work(rank: int, ranks: int, kind: str, case: Case, profile: str, meet: Path, pipe: Connection) -> None:
    torch.set_num_threads(1)
    device = torch.device(kind, rank) if kind == "cuda" else torch.device(kind)
    if ranks > 1:
        if kind == "cuda":
            torch.cuda.set_device(device)
        distributed.init_process_group(BACKENDS[kind], f"file://{meet}", rank=rank, world_size=ranks)
        open_group()
    torch.manual_seed(0)
    network, settings = objective_network(profile, case.size)
    batch = objective_batch(network, case.lanes, case.segments, case.size, device)
    own = {name: value.chunk(ranks)[rank] for name, value in batch.items()}
    optimisation = replace(settings.optimisation, warmup_steps=0)
    loop = Loop(network, MicroBatches([[own]]), optimisation, seed=0, device=device)
    loop.model.train()
    for wanted in questions(pipe):
        exchanges = Exchanges()
        with exchanges if wanted == COUNT else nullcontext():
            losses = loop.train_step(own)
            synchronise(device)
        counts = (sum(exchanges.calls.values()), sum(exchanges.bytes.values()))
        pipe.send(counts if wanted == COUNT else losses["loss"].item())
    if ranks > 1:
        close_group()
        distributed.destroy_process_group()

"""Under what a stage is measured, and the measurement that most of them share."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch

from benchmarks.measure.rows import Row, alternate, spread

BUDGET = 15.0  # s that the timed runs of one row may take, beyond the fewest
NO_GPU = "not measured: no CUDA device"
Size = TypeVar("Size")


@dataclass(frozen=True)
class Conditions:
    """What a stage needs to know.

    Attributes:
        devices: on which it is measured: the CPU, and a GPU where there is one.
        runs: of each way.
        quick: sizes that take no time, to see that everything works.
    """

    devices: tuple[torch.device, ...]
    runs: int
    quick: bool = False

    @property
    def gpu(self) -> torch.device | None:
        """The device that is not the CPU."""
        return next((device for device in self.devices if device.type != "cpu"), None)

    def size(self, full: Size, small: Size) -> Size:
        """The size to measure at."""
        return small if self.quick else full

    def without_gpu(self, stage: str, *cases: str) -> Iterator[Row]:
        """Rows that say so where there is no GPU to measure these cases on."""
        if self.gpu is None:
            for case in cases:
                yield Row(stage, case, "cuda", note=NO_GPU)

    def compare(
        self,
        row: Row,
        ours: Callable[[], Any],
        peers: Callable[[], Any] | None = None,
        same: Callable[[Any, Any], bool] | None = None,
        budget: float = BUDGET,
    ) -> Row:
        """`row` with the times of both ways, which are first checked to agree; the check warms both up.

        Args:
            row: what is known before.
            ours: the harness's way.
            peers: the other one, if there is one.
            same: whether their results are the same; given together with `peers`.
            budget: see `alternate`.
        """
        if peers is None or same is None:
            ways = [ours]
            ours()
        else:
            ways = [ours, peers]
            if not same(ours(), peers()):
                return replace(row, failed=True, note="the two ways give different results")
        device = next(device for device in self.devices if device.type == row.device)
        taken = alternate(ways, device, self.runs, budget)
        medians = [statistics.median(times) for times in taken]
        return replace(
            row,
            seconds=medians[0],
            peer_seconds=medians[1] if len(ways) > 1 else None,
            runs=len(taken[0]),
            spread=spread(taken[0]),
        )

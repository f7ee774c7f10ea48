"""What the machine can do at best, measured in the run whose rows are compared with it."""

from __future__ import annotations

from typing import NamedTuple

import torch

from benchmarks.measure.timing import alternate

COPIED = {"cpu": 1 << 28, "cuda": 1 << 31}  # bytes, far more than any cache
SIDE = {"cpu": 2048, "cuda": 8192}  # of the matrices
DTYPE = {"cpu": torch.float32, "cuda": torch.bfloat16}  # what the harness computes in there
RUNS = 7
BUDGET = 10.0  # s


class Limits(NamedTuple):
    """Peaks of one device.

    Attributes:
        bandwidth: bytes per second of a large copy, read and written bytes both counted.
        flops: floating-point operations per second of a large matrix product.
        dtype: of its numbers.
    """

    bandwidth: float
    flops: float
    dtype: str

    def seconds(self, moved: float, computed: float) -> float:
        """The least time for so many bytes moved and operations computed, if both overlap."""
        return max(moved / self.bandwidth, computed / self.flops)


def measure_limits(device: torch.device, quick: bool = False) -> Limits:
    """Bandwidth and peak of a device, on the threads torch has now; `quick` uses small operands."""
    shrink = 16 if quick else 1
    numbers = torch.ones(COPIED[device.type] // 4 // shrink, device=device)
    target = torch.empty_like(numbers)
    side, dtype = SIDE[device.type] // shrink, DTYPE[device.type]
    left, right = torch.rand(2, side, side, device=device).to(dtype)

    def copy() -> None:
        target.copy_(numbers)

    def product() -> None:
        torch.mm(left, right)

    for way in (copy, product):
        way()
    copying, computing = alternate([copy, product], device, RUNS, BUDGET)
    moved, computed = 2 * numbers.nbytes, 2 * side**3
    name = str(dtype).removeprefix("torch.")
    # The best of the runs: whatever slows one down is not the machine's limit.
    return Limits(moved / min(copying), computed / min(computing), name)

"""What each stage is to reach, how it is timed beside its peers, and the row that says so."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import torch

FEWEST = 3  # runs, however long they take

Way = Callable[[], Any]


def synchronise(device: torch.device) -> None:
    """Wait until the device has done what it was told."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds_of(way: Way, device: torch.device) -> float:
    """Seconds of one run, with everything that the device still has to do for it."""
    synchronise(device)
    began = time.perf_counter()
    way()
    synchronise(device)
    return time.perf_counter() - began


def alternate(ways: Sequence[Way], device: torch.device, runs: int, budget: float) -> list[list[float]]:
    """Seconds of each way, run in turn, so that a slower spell of the machine meets all of them.

    Args:
        ways: already warm.
        device: waited for.
        runs: of each way.
        budget: seconds after which no further round begins; `FEWEST` rounds are run in any case.
    """
    taken: list[list[float]] = [[] for _ in ways]
    began = time.perf_counter()
    for done in range(runs):
        if done >= FEWEST and time.perf_counter() - began > budget:
            break
        for times, way in zip(taken, ways, strict=True):
            times.append(seconds_of(way, device))
    return taken


def spread(seconds: Sequence[float]) -> float:
    """Distance between the quartiles as a share of the median."""
    if len(seconds) < 2:
        return 0.0
    low, middle, high = statistics.quantiles(seconds, n=4, method="inclusive")
    return (high - low) / middle


class Target(NamedTuple):
    """One thing a row is to reach on one type of device.

    Attributes:
        quantity: a key of `Row.quantities`.
        value: at least this much, or at most.
        most: whether `value` must not be exceeded.
        shown: in words.
    """

    quantity: str
    value: float
    most: bool
    shown: str

    def verdict(self, measured: float) -> str:
        """Words for a measured quantity: met, or by how much it is missed."""
        if measured <= self.value if self.most else measured >= self.value:
            return f"{self.shown}: met"
        short = measured / self.value - 1 if self.most else 1 - measured / self.value
        return f"{self.shown}: missed by {short:.0%}"


def at_least(quantity: str, value: float, shown: str) -> Target:
    """A quantity that is to be `value` or more."""
    return Target(quantity, value, False, shown)


def at_most(quantity: str, value: float, shown: str) -> Target:
    """A quantity that is to be `value` or less."""
    return Target(quantity, value, True, shown)


# By stage and case, then by type of device.
TARGETS: dict[tuple[str, str], dict[str, tuple[Target, ...]]] = {
    ("histogram", "window"): {
        "cpu": (at_least("ratio", 8, ">= 8x put_"), at_least("rate", 250e6, ">= 250 M events/s"))
    },
    ("store", "slice and histogram"): {"cpu": (at_least("rate", 150e6, ">= 150 M events/s"),)},
    ("prepare", "from .dat"): {
        "cpu": (at_least("rate", 40e6, ">= 40 M events/s"), at_most("resident_bytes", 1e9, "< 1 GB resident"))
    },
    ("intensity", "step"): {
        "cpu": (at_least("ratio", 5, ">= 5x per-bin loop"),),
        "cuda": (at_most("seconds", 0.3e-3, "< 0.3 ms"),),
    },
    ("recurrent", "sample profile"): {"cpu": (at_least("ratio", 1.5, ">= 1.5x frame by frame"),)},
    ("recurrent", "paper profile"): {
        "cpu": (at_least("ratio", 1.5, ">= 1.5x frame by frame"),),
        "cuda": (at_least("ratio", 2, ">= 2x frame by frame"),),
    },
    **{
        ("input", case): {"cpu": (at_most("cores_at_goal", 4, "<= 4 cores feed 1,100 frames/s"),)}
        for case in ("augmented batch", "batch for the device")
    },
    ("input", "waiting"): {
        "cpu": (at_most("wait_share", 0.05, "<= 5 % waiting"),),
        "cuda": (at_most("wait_share", 0.05, "<= 5 % waiting"),),
    },
    ("training step", "paper profile"): {"cuda": (at_least("rate", 1_100, ">= 1,100 frames/s"),)},
    **{
        ("inference", f"paper, {task}, with head, 1 thread"): {"cuda": (at_most("seconds", 2e-3, "<= 2 ms a segment"),)}
        for task in ("dsec", "ddd17", "mvsec", "gen1", "1mpx")
    },
    ("detection", "one test set"): {"cpu": (at_least("ratio", 5, ">= 5x pycocotools"),)},
    **{
        ("growth", series): {
            "cpu": (
                at_most("exponent", 1.1, "time no faster than the work"),
                at_most("memory_exponent", 1.1, "nor memory"),
            )
        }
        for series in ("resolution", "sequence length", "batch", "event rate", "recordings, opening")
    },
    # What a step plays is the same work however many recordings there are.
    ("growth", "recordings, a step"): {"cpu": (at_most("exponent", 0.2, "time does not grow with their number"),)},
    ("tables", "all tables"): {"cpu": (at_most("seconds", 2, "< 2 s"),)},
}


def targets_of(stage: str, case: str, device_type: str) -> tuple[Target, ...]:
    """Targets of a row; none where nothing is asked of it."""
    return TARGETS.get((stage, case), {}).get(device_type, ())


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


@dataclass(frozen=True)
class Row:
    """A stage on one input.

    Attributes:
        stage: name of the stage.
        case: what was run, a key of `TARGETS` together with the stage.
        device: type of the device, "cpu" or "cuda".
        size: of the input, in words.
        peers: what the harness's way is compared with, in words; "" if with nothing.
        seconds: median of the harness's way; None where it was not measured.
        peer_seconds: median of the peers' way.
        runs: of each way.
        spread: distance between the quartiles of the harness's way, as a share of its median.
        work: done in one run, in `unit`.
        unit: "events", "frames" ...
        moved: bytes that any way has to move at least.
        computed: floating-point operations that any way has to compute.
        figures: what else was measured, by name, in SI units.
        note: why it was not measured, or what a reader has to know.
        failed: whether the two ways gave different results.
    """

    stage: str
    case: str
    device: str
    size: str = ""
    peers: str = ""
    seconds: float | None = None
    peer_seconds: float | None = None
    runs: int = 0
    spread: float = 0.0
    work: float = 0.0
    unit: str = ""
    moved: float = 0.0
    computed: float = 0.0
    figures: dict[str, float] = field(default_factory=dict)
    note: str = ""
    failed: bool = False

    @property
    def ratio(self) -> float | None:
        """How many times faster the harness's way is than the peers'."""
        return self.peer_seconds / self.seconds if self.seconds and self.peer_seconds else None

    @property
    def rate(self) -> float | None:
        """Work per second."""
        return self.work / self.seconds if self.seconds and self.work else None

    @property
    def quantities(self) -> dict[str, float]:
        """All that was measured, by name."""
        named = {"seconds": self.seconds, "ratio": self.ratio, "rate": self.rate, **self.figures}
        return {name: value for name, value in named.items() if value is not None}

    def over_limit(self, limits: Limits | None) -> float | None:
        """How many times longer it took than the machine's bandwidth and peak allow; None where neither says."""
        least = limits.seconds(self.moved, self.computed) if limits else 0.0
        return self.seconds / least if self.seconds and least else None

    def verdicts(self) -> list[str]:
        """Of each target in words, as far as it was measured."""
        measured = self.quantities
        return [
            target.verdict(measured[target.quantity])
            for target in targets_of(self.stage, self.case, self.device)
            if target.quantity in measured
        ]

    def facts(self, limits: Limits | None) -> dict[str, Any]:
        """The row for the ledger, with what follows from it."""
        derived = {"ratio": self.ratio, "rate": self.rate, "over_limit": self.over_limit(limits)}
        return asdict(self) | derived | {"targets": self.verdicts()}

"""One line of the ledger: a stage on one input, its time, and what it is compared with."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks.measure.limits import Limits
from benchmarks.measure.targets import targets_of


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

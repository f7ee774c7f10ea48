"""What each stage is to reach. Facts alone; a row's verdict is made of them and of what was measured."""

from __future__ import annotations

from typing import NamedTuple


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
    ("input", "waiting"): {
        "cpu": (at_most("wait_share", 0.05, "<= 5 % waiting"),),
        "cuda": (at_most("wait_share", 0.05, "<= 5 % waiting"),),
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

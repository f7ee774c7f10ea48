"""What a load of weights did."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class WeightsReport:
    """What a backbone was started from.

    Attributes:
        source: file name of the weights, or "random initialisation".
        sha256: hash of the file; empty for a random initialisation.
        loaded: number of backbone tensors taken from the file.
        total: number of tensors the backbone has.
        adapted: names of tensors that were resized to fit.
        unused: names of tensors in the file that this backbone has no place for.
        recipe: settings of the pre-training that wrote the file, where it says so.
        fresh: names of backbone tensors that such a pre-training has not got, and that keep their random start.
        format: the naming that was found, in words.
    """

    source: str
    sha256: str
    loaded: int
    total: int
    adapted: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    recipe: dict[str, Any] = field(default_factory=dict)
    fresh: tuple[str, ...] = ()
    format: str = ""

    @property
    def coverage(self) -> float:
        """Share of the backbone's tensors that came from the file, 0 to 1."""
        return self.loaded / self.total if self.total else 0.0

    def facts(self) -> dict[str, Any]:
        """What a record says about the weights."""
        return {
            "source": self.source,
            "sha256": self.sha256,
            "coverage": self.coverage,
            "loaded": self.loaded,
            "adapted": list(self.adapted),
            "unused": list(self.unused),
            "fresh": list(self.fresh),
            "format": self.format,
            "recipe": self.recipe,
        }

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
        adapted: names of tensors that were resized or repeated to fit.
        unused: names of tensors in the file that this backbone has no place for.
        recipe: settings of the pre-training that wrote the file, where it says so.
        format: name of the source whose naming the file has; empty for a random initialisation.
        fresh: names of ConvLSTM tensors that keep their random start, because the source has no ConvLSTMs.
    """

    source: str
    sha256: str
    loaded: int
    total: int
    adapted: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    recipe: dict[str, Any] = field(default_factory=dict)
    format: str = ""
    fresh: tuple[str, ...] = ()

    @property
    def coverage(self) -> float:
        """Share of the backbone's tensors that came from the file, 0 to 1."""
        return self.loaded / self.total if self.total else 0.0

    def summary(self) -> str:
        """One line on what came from where."""
        text = f"{self.source}: {self.loaded} of {self.total} tensors of the backbone"
        text += f", format {self.format}" if self.format else ""
        text += f", {len(self.adapted)} adapted" if self.adapted else ""
        return text + (f"; the ConvLSTMs ({len(self.fresh)} tensors) start at random" if self.fresh else "")

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

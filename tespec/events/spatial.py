"""Cropping and downsampling, done on event coordinates before anything is counted."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tespec.events.stream import Events

KEEP = ("nearest", "all")


@dataclass(frozen=True)
class Region:
    """The upper rows of a sensor, downsampled.

    Attributes:
        height: rows of the result in px.
        width: columns of the result in px.
        factor: sensor pixels per pixel of the result, along each side.
        keep: "nearest" keeps the events of one sensor pixel in factor x factor, the one that nearest-exact
            sub-sampling picks (odd coordinates at factor 2, as in RVT's 1Mpx archive); "all" sums them.
    """

    height: int
    width: int
    factor: int = 1
    keep: str = "nearest"

    def __post_init__(self) -> None:
        if self.keep not in KEEP or self.factor < 1:
            raise ValueError(f"factor {self.factor} must be positive and keep {self.keep!r} one of {', '.join(KEEP)}")

    def apply(self, events: Events) -> Events:
        """Events that fall into the region, in its coordinates."""
        x, y = events.x, events.y
        inside = y < self.height * self.factor
        if self.factor > 1:
            if self.keep == "nearest":
                middle = self.factor // 2
                inside &= (x % self.factor == middle) & (y % self.factor == middle)
            inside &= x < self.width * self.factor
            x, y = x // self.factor, y // self.factor
        if inside.all():
            return Events(x, y, events.t, events.p)
        chosen = np.flatnonzero(inside)
        return Events(x[chosen], y[chosen], events.t[chosen], events.p[chosen])

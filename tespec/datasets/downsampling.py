"""Which part of a sensor a setting of downsampling leaves."""

from __future__ import annotations

from tespec.core.errors import UserError
from tespec.core.settings import Downsample
from tespec.events.spatial import KEEP, Region


def reduced(height: int, width: int, downsample: Downsample) -> Region:
    """The whole of a sensor of height x width px, downsampled.

    Raises:
        UserError: an unknown way of downsampling.
    """
    if downsample.keep not in KEEP:
        raise UserError("downsample.keep", f"unknown value {downsample.keep!r}", f"choose {' or '.join(KEEP)}")
    if downsample.factor == "auto":
        factor = -(-width // (downsample.to_width or width))
    elif isinstance(downsample.factor, int) and downsample.factor >= 1:
        factor = downsample.factor
    else:
        what = f"unknown value {downsample.factor!r}"
        raise UserError("downsample.factor", what, "give a positive whole number or auto")
    return Region(height // factor, width // factor, factor, downsample.keep)

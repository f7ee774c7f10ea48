"""TESPEC: masked reconstruction of an intensity video by a recurrent backbone."""

from __future__ import annotations

from tespec.core.registry import METHODS
from tespec.pretraining.method import Method


@METHODS.register_module(name="tespec")
class Tespec(Method):
    """The paper's method; a feed-forward backbone takes the Swin part of its weights."""

    title = "TESPEC"
    group = "TESPEC"
    pretraining_data = "1Mpx"
    recipe = "tespec"
    citation = "Mohammadi, Wu, Gilitschenski: TESPEC, ICCV 2025"
    summary = (
        "Patches of the event histograms are hidden over a whole sequence and a recurrent backbone rebuilds the "
        "intensity video there (Eq. 7), so that it must remember what it saw."
    )

"""Prophesee's 1 megapixel automotive detection dataset."""

from __future__ import annotations

import re

from tespec.datasets.prophesee.dataset import PropheseeDataset
from tespec.registry import DATASETS


@DATASETS.register_module()
class OneMpx(PropheseeDataset):
    """1Mpx: 1280x720 px, seven classes at 30 or 60 Hz, of which the first three count; see `PropheseeDataset`."""

    title = "1Mpx"
    sensor = (720, 1280)
    known_classes = 7
    official = re.compile(r"moorea_\d{4}-\d\d-\d\d_.*\d+_\d+")

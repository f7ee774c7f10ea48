"""Prophesee's Gen1 automotive detection dataset."""

from __future__ import annotations

import re

from tespec.datasets.prophesee.dataset import PropheseeDataset
from tespec.registry import DATASETS


@DATASETS.register_module()
class Gen1(PropheseeDataset):
    """Gen1: 304x240 px, cars and pedestrians at 1, 2 or 4 Hz; see `PropheseeDataset`."""

    title = "Gen1"
    sensor = (240, 304)
    known_classes = 2
    official = re.compile(r"\d\d-\d\d-\d\d_\d\d-\d\d-\d\d_\d+_\d+")

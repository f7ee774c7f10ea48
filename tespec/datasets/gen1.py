"""Prophesee's Gen1 automotive detection dataset."""

from __future__ import annotations

from tespec.datasets.prophesee.dataset import PropheseeDataset
from tespec.registry import DATASETS


@DATASETS.register_module()
class Gen1(PropheseeDataset):
    """Gen1: 304x240 px, cars and pedestrians at 1, 2 or 4 Hz; see `PropheseeDataset`."""

    title = "Gen1"
    sensor = (240, 304)
    known_classes = 2

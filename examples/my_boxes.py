"""Custom recordings with boxes, in Prophesee's files; task in traffic.yaml."""

import re
from pathlib import Path

from tespec.core.config import add_file
from tespec.datasets.prophesee import PropheseeDataset
from tespec.registry import DATASETS

add_file("tasks", Path(__file__).with_name("traffic.yaml"))


@DATASETS.register_module()
class Traffic(PropheseeDataset):
    """Traffic: boxes of three classes.

    Layout:
        traffic/train/drive0_td.dat     traffic/train/drive0_bbox.npy
        traffic/val/...                 traffic/test/...
    """

    title = "Traffic"
    sensor = (480, 640)  # height and width in px of recordings that do not store them
    known_classes = 3  # `class_id` is 0, 1 or 2
    official = re.compile("drive")  # starts the names of its recordings, wherever they are

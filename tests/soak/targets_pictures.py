"""Images, and descriptions of data."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from harm import bytes_of_one, json_text, structure
from PIL import Image
from target import Target


def write_images(folder: Path) -> Path:
    for name in ("cats", "dogs"):
        (folder / "images" / name).mkdir(parents=True)
        for number in range(2):
            pixels = np.random.default_rng(number).integers(0, 255, (16, 16, 3), np.uint8)
            ending = ("png", "jpg")[number]
            Image.fromarray(pixels).save(folder / "images" / name / f"{number}.{ending}")
    return folder / "images"


def read_images(folder: Path) -> None:
    import tespec.core.compat  # noqa: F401  # before torchvision

    from torchvision.transforms import v2

    from tespec.datasets.images import held_out_batch, open_images

    images = open_images(folder)
    paths = [*images.train, *images.held_out]
    held_out_batch(images, paths, [v2.Compose([v2.Resize((16, 16)), v2.PILToTensor()])])


def write_description(folder: Path) -> Path:
    content = {"sample": True, "height": 260, "width": 346, "splits": {"train": ["dir0"], "test": ["dir1"]}}
    (folder / "world").mkdir()
    (folder / "world" / "dataset.json").write_text(json.dumps(content))
    return folder / "world"


def read_world(folder: Path) -> None:
    from tespec.core.description import read_description

    read_description(folder)


PICTURES: dict[str, Target] = {
    "images": Target(write_images, read_images, bytes_of_one),
    "description": Target(write_description, read_world, structure(json.loads, json_text)),
}

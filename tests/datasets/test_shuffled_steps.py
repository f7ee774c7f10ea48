"""Batches of images, and of events with images: every one once in a lap, in an order that is drawn once for it."""

import dataclasses
from collections import Counter

import numpy as np
import pytest
from PIL import Image

from tespec.core.config import pretraining_settings
from tespec.datasets import images, pairs
from tespec.datasets.folder import divide
from tespec.datasets.images import ImageSteps, ViewRule, open_images
from tespec.datasets.pairs import PairSteps, paired


@pytest.fixture
def orders(monkeypatch):
    """Keys of the orders that are drawn."""
    drawn, default_rng = [], np.random.default_rng

    def spy(key):
        if bytes(key[1:-1]) == b"order":
            drawn.append(tuple(key))
        return default_rng(key)

    monkeypatch.setattr(np.random, "default_rng", spy)
    return drawn


@pytest.fixture
def shown(monkeypatch):
    """Paths of the images that are read."""
    read, paths = images.read_image, []

    def spy(path, channels):
        paths.append(path)
        return read(path, channels)

    for module in (images, pairs):
        monkeypatch.setattr(module, "read_image", spy)
    return paths


def image_steps(root, batch, shard=(0, 1)):
    for number in range(8):
        path = root / f"class{number % 2}" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (8, 8), number).save(path)
    folder = open_images(root)
    return ImageSteps(folder, ViewRule((4, 4), 1, (0.5, 1.0), 0.1, 1), batch, 0, shard), len(folder.train)


def pair_steps(world, batch):
    settings = dataclasses.replace(pretraining_settings("ecdp", "sample"), batch_size=batch)
    found = paired(divide(world / "ddd17", settings.window_ms, settings.downsample).train, settings.window_ms)
    return PairSteps(found, settings, 0), sum(map(len, found))


@pytest.mark.parametrize("kind", ["images", "pairs"])
@pytest.mark.parametrize("batch", [2, 5])
def test_each_lap_shows_every_image_once_and_draws_one_order(tiny_world, tmp_path, orders, shown, kind, batch):
    steps, count = image_steps(tmp_path, batch) if kind == "images" else pair_steps(tiny_world, batch)
    laps = 3
    for step in range(laps * count // batch):
        steps[step]
    for first in range(0, len(shown) - count + 1, count):
        assert set(Counter(shown[first : first + count]).values()) == {1}
    assert len(shown) > count
    assert len(orders) == len(set(orders)) == -(-len(shown) // count)


def test_workers_show_what_one_process_shows(tmp_path, orders, shown):
    whole, count = image_steps(tmp_path, 2)
    for step in range(2 * count):
        whole[step]
    alone, drawn = list(shown), len(orders)
    workers = [image_steps(tmp_path, 2)[0] for _ in range(2)]
    orders.clear()
    shown.clear()
    for step in range(2 * count):
        workers[step % 2][step]
    assert shown == alone
    assert len(orders) == 2 * drawn

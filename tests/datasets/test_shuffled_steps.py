"""Batches of images, and of events with images: every one once in a epoch, in an order that is drawn once for it."""

import dataclasses
from collections import Counter

import tespec.core.compat  # noqa: F401  # before torchvision

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import v2

from tespec.core.config import pretraining_settings
from tespec.datasets import images
from tespec.datasets.folder import divide
from tespec.datasets.images import ImageBatches, PairBatches, open_images, paired


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

    monkeypatch.setattr(images, "read_image", spy)
    monkeypatch.setattr(images, "THREADS", 1)  # which would change the order of reading
    return paths


def image_steps(root, batch, shard=(0, 1)):
    for number in range(8):
        path = root / f"class{number % 2}" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (8, 8), number).save(path)
    folder = open_images(root)
    return ImageBatches(folder, [v2.Compose([v2.Resize((4, 4)), v2.PILToTensor()])], batch, 0, shard), len(folder.train)


def pair_steps(world, batch):
    settings = dataclasses.replace(pretraining_settings("ecdp", "sample"), batch_size=batch)
    found = paired(divide(world / "ddd17", settings.window_ms, settings.downsample).train, settings.window_ms)
    return PairBatches(found, settings, 0), sum(map(len, found))


@pytest.mark.parametrize("kind", ["images", "pairs"])
@pytest.mark.parametrize("batch", [2, 5])
def test_each_epoch_shows_every_image_once_and_draws_one_order(tiny_world, tmp_path, orders, shown, kind, batch):
    steps, count = image_steps(tmp_path, batch) if kind == "images" else pair_steps(tiny_world, batch)
    epochs = 3
    for step in range(epochs * count // batch):
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


@pytest.mark.parametrize("make", [lambda world, root: image_steps(root, 5), lambda world, root: pair_steps(world, 5)])
def test_batches_are_the_same_for_any_number_of_threads(tiny_world, tmp_path, monkeypatch, make):
    monkeypatch.setattr(images.os, "cpu_count", lambda: 4)
    steps, _ = make(tiny_world, tmp_path)
    threaded = steps[3]
    monkeypatch.setattr(images, "THREADS", 1)
    for name, value in steps[3].items():
        assert torch.equal(value, threaded[name]), name

"""Batches of images, and of events with images: each shown once in an epoch, its views what a network should see."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from tespec.core.config import pretraining_settings
from tespec.datasets import images
from tespec.datasets.folder import divide
from tespec.datasets.images import (
    DEVIATION,
    GREY_DEVIATION,
    GREY_MEAN,
    MEAN,
    ImageBatches,
    PairBatches,
    ViewRule,
    as_input,
    held_out_batch,
    open_images,
    paired,
    pixels_of,
    random_view,
)


def picture(channels=1, seed=0):
    shape = (20, 30) if channels == 1 else (20, 30, 3)
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, shape, np.uint8))


def image_steps(world, root, batch, shard=(0, 1)):
    for number in range(8):
        path = root / f"class{number % 2}" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        picture(seed=number).save(path)
    folder = open_images(root)
    return ImageBatches(folder, ViewRule((4, 4), 1, (0.5, 1.0), 0.1, 1), batch, 0, shard), len(folder.train)


def pair_steps(world, root, batch, shard=(0, 1)):
    settings = replace(pretraining_settings("ecdp", "sample"), batch_size=batch)
    found = paired(divide(world / "ddd17", settings.window_ms, settings.downsample).train, settings.window_ms)
    return PairBatches(found, settings, 0, shard), sum(map(len, found))


KINDS = pytest.mark.parametrize("make", [image_steps, pair_steps])


@KINDS
@pytest.mark.parametrize("batch", [2, 5])
def test_each_epoch_shows_every_image_once_in_an_order_of_its_own(tiny_world, tmp_path, monkeypatch, make, batch):
    read, shown = images.read_image, []
    monkeypatch.setattr(images, "read_image", lambda path, channels: shown.append(path) or read(path, channels))
    monkeypatch.setattr(images, "THREADS", 1)  # which would change the order of reading
    steps, count = make(tiny_world, tmp_path, batch)
    for step in range(3 * count // batch):
        steps[step]
    epochs = [shown[first : first + count] for first in range(0, len(shown) - count + 1, count)]
    assert len(epochs) >= 2
    assert all(set(Counter(epoch).values()) == {1} for epoch in epochs)
    assert epochs[0] != epochs[1]


@KINDS
def test_a_batch_depends_neither_on_threads_nor_on_what_was_asked_for_before_and_shards_make_it(
    tiny_world, tmp_path, monkeypatch, make
):
    monkeypatch.setattr(images.os, "cpu_count", lambda: 4)
    steps, _ = make(tiny_world, tmp_path, 5)
    batch, shards = steps[3], [make(tiny_world, tmp_path, 5, (number, 2))[0][3] for number in range(2)]
    monkeypatch.setattr(images, "THREADS", 1)
    again = [make(tiny_world, tmp_path, 5)[0][step] for step in (0, 9, 3)][-1]
    for name, value in batch.items():
        assert torch.equal(value, again[name]), name
        assert torch.equal(value, torch.cat([shard[name] for shard in shards])), name


def plain(pixels, brighter=0.0, sharper=0.0):
    """By NumPy, in float64, of (C, H, W)."""
    mean, deviation = ((GREY_MEAN,), (GREY_DEVIATION,)) if len(pixels) == 1 else (MEAN, DEVIATION)
    seen = (pixels / 255 - np.array(mean)[:, None, None]) / np.array(deviation)[:, None, None]
    return (seen - seen.mean()) * (1 + sharper) + seen.mean() + brighter


@pytest.mark.parametrize("channels", [1, 3])
def test_bytes_become_what_a_network_sees(channels):
    rule = ViewRule((16, 24), channels, (0.2, 1.0), 0.4, 2)
    drawn = [random_view(picture(channels), rule, np.random.default_rng(seed)) for seed in range(6)]
    pixels = torch.from_numpy(np.stack([view for view, _ in drawn])).unflatten(0, (3, 2))
    jitter = torch.from_numpy(np.stack([each for _, each in drawn])).unflatten(0, (3, 2))
    assert (pixels.dtype, pixels.shape) == (torch.uint8, (3, 2, channels, 16, 24))
    assert jitter.abs().max() <= 0.4
    assert len(jitter.unique()) == jitter.numel()
    seen = as_input(pixels, jitter)
    assert seen.dtype == torch.float32
    assert as_input(seen) is seen
    for found, (view, (brighter, sharper)) in zip(seen.flatten(0, 1), drawn, strict=True):
        np.testing.assert_allclose(found, plain(view, float(brighter), float(sharper)), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(as_input(pixels)[0, 0], plain(drawn[0][0]), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("count", [1, 2])
def test_views_of_an_image_held_out_are_the_same_each_time_and_differ_from_each_other(tmp_path, count):
    for name in ("a/1.png", "a/2.png", "b/3.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        picture().save(tmp_path / name)
    folder, rule = open_images(tmp_path), ViewRule((16, 24), 1, (0.2, 1.0), 0.4, count)
    paths = sorted([*folder.train, *folder.held_out])
    batch, again = held_out_batch(folder, paths, rule), held_out_batch(folder, paths[1:], rule)
    assert (batch["views"].shape, batch["color_jitter"].shape) == ((3, count, 1, 16, 24), (3, count, 2))
    assert batch["labels"].tolist() == [0, 0, 1]
    assert all(torch.equal(batch[name][1:], value) for name, value in again.items())
    if count == 1:
        whole = pixels_of(picture().resize((24, 16), Image.Resampling.BILINEAR))
        np.testing.assert_array_equal(batch["views"][0, 0].numpy(), whole)
        assert not batch["color_jitter"].any()
    else:
        assert not torch.equal(batch["views"][:, 0], batch["views"][:, 1])

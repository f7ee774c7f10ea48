from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import interpolate

from tespec.core.boxes import make_boxes
from tespec.core.settings import Augmentation
from tespec.datasets.augment import FlipZoom, apply_maps, sample_flip_zoom, transform_boxes
from tespec.events.histogram import OUTSIDE_IMAGE

PAPER = Augmentation(
    flip=0.5, zoom=0.8, zoom_in_fraction=0.8, zoom_in=(1.0, 1.5), zoom_out=(1.0, 1.2)
)
FLIP = Augmentation(flip=1.0)
SEEDS = st.integers(0, 2**32)


def draw(settings, seed, height, width):
    return sample_flip_zoom(np.random.default_rng(seed), settings, height, width)


@given(SEEDS, st.integers(1, 50), st.integers(1, 50), st.sampled_from([0, 255]))
def test_maps_stay_within_the_image_and_are_applied_pixel_by_pixel(seed, height, width, outside):
    image = np.random.default_rng(seed).integers(0, 255, (2, 3, height, width), np.uint8)
    maps = draw(PAPER, seed, height, width)
    rows, columns = maps.rows[:, None], maps.columns
    expected = np.where(
        (rows != OUTSIDE_IMAGE) & (columns != OUTSIDE_IMAGE), image[..., rows, columns], outside
    )
    np.testing.assert_array_equal(apply_maps(image, maps, outside), expected)
    for side, size in zip(maps[:2], (height, width), strict=True):
        inside = side[side != OUTSIDE_IMAGE]
        assert 0 <= inside.min() <= inside.max() < size == len(side)
        assert (np.diff(inside) >= 0).all() or (np.diff(inside) <= 0).all()


# Draws 0 for every share and position, so crops are at the upper left corner.
TOP_LEFT = SimpleNamespace(random=lambda: 0.0, uniform=lambda low, high: low)


def resized(image, height, width):
    return interpolate(torch.from_numpy(image)[None, None], (height, width), mode="nearest-exact")[
        0, 0
    ].numpy()


@given(SEEDS, st.integers(1, 20), st.integers(1, 20), st.sampled_from([1.25, 1.5, 2.0]))
def test_zooming_picks_the_pixels_that_resizing_picks(seed, height, width, factor):
    small = 4 * height, 4 * width
    whole = round(small[0] * factor), round(small[1] * factor)
    image, zoomed_out = (
        np.random.default_rng(seed).integers(0, 255, whole, np.uint8),
        np.full(whole, 255, np.uint8),
    )
    zoomed_out[: small[0], : small[1]] = resized(image, *small)
    for inward, expected in (
        (1.0, resized(image[: small[0], : small[1]], *whole)),
        (0.0, zoomed_out),
    ):
        settings = Augmentation(0.0, 1.0, inward, (factor, factor), (factor, factor))
        maps = sample_flip_zoom(TOP_LEFT, settings, *whole)
        np.testing.assert_array_equal(apply_maps(image, maps, 255), expected)


def test_shares_and_places_are_those_of_the_paper():
    maps = [draw(PAPER, seed, 90, 120) for seed in range(3000)]
    flipped = np.mean([np.diff(m.columns[m.columns != OUTSIDE_IMAGE]).sum() < 0 for m in maps])
    zoomed_out = np.mean([(m.rows == OUTSIDE_IMAGE).any() for m in maps])
    untouched = np.mean([np.array_equal(m.rows, np.arange(90)) for m in maps])
    assert (flipped, zoomed_out, untouched) == pytest.approx((0.5, 0.8 * 0.2, 0.2), abs=0.03)
    inward = Augmentation(0.0, 1.0, 1.0, (1.5, 1.5), (1.0, 1.0))
    places = {int(draw(inward, seed, 120, 160).rows[0]) for seed in range(200)}
    assert (min(places), max(places)) == pytest.approx((0, 40), abs=3)


@given(SEEDS)
def test_boxes_stay_on_what_they_surround(seed):
    rng = np.random.default_rng(seed)
    left, top = rng.integers(0, 50), rng.integers(0, 40)
    right, bottom = left + rng.integers(8, 30), top + rng.integers(8, 20)
    image = np.zeros((60, 80), np.uint8)
    image[top:bottom, left:right] = 1
    maps = draw(PAPER, seed, *image.shape)
    seen = apply_maps(image, maps, 0)
    moved = transform_boxes(make_boxes(np.array([[left, top, right, bottom]]), np.array([3])), maps)
    rows, columns = np.flatnonzero(seen.any(axis=1)), np.flatnonzero(seen.any(axis=0))
    if not len(moved.label):
        assert not len(rows) or min(np.ptp(rows), np.ptp(columns)) <= 2
        return
    # Pixels are sampled at their centres, so the edges of image and box differ by at most one
    # (zoomed) pixel; by another one to the left if flipped, and at the last pixel.
    assert (
        np.abs(moved.corners[0] - [columns[0], rows[0], columns[-1] + 1, rows[-1] + 1]).max()
        <= 3.01
    )
    assert (moved.label.tolist(), moved.corners.dtype) == ([3], np.float32)


def test_boxes_are_flipped_and_clipped_inside_the_image_and_those_that_vanish_are_dropped():
    boxes = make_boxes(np.array([[0, 0, 19, 9], [1, 2, 4, 8], [0, 0, 20, 10]]), np.array([0, 1, 2]))
    flipped = transform_boxes(boxes, draw(FLIP, 0, 10, 20))
    assert flipped.corners.tolist() == [[0, 0, 19, 9], [15, 2, 18, 8], [0, 0, 19, 9]]
    assert (
        transform_boxes(flipped, draw(FLIP, 0, 10, 20)).corners.tolist()[:2]
        == boxes.corners.tolist()[:2]
    )
    maps = FlipZoom(np.arange(10), np.arange(20), (2.0, 2.0), (-4.0, -20.0))
    boxes = make_boxes(
        np.array([[0, 0, 5, 5], [14, 1, 30, 4], [10.25, 3, 10.5, 9]]), np.array([0, 1, 2])
    )
    moved = transform_boxes(boxes, maps)
    assert moved.label.tolist() == [1, 2]
    assert moved.corners.tolist() == [[8, 0, 16, 4], [0.5, 2, 1, 8]]

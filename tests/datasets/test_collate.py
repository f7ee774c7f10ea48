import numpy as np
import pytest
import torch

from tespec.core.boxes import make_boxes
from tespec.core.errors import UserError
from tespec.datasets.augment import FlipZoom
from tespec.datasets.batches import pad_boxes, stack_depths, stack_masks

PLAIN = FlipZoom(np.arange(2), np.arange(3))
FLIPPED = FlipZoom(np.arange(2), np.arange(3)[::-1], (1.0, -1.0), (0.0, 3.0))


def test_masks_are_stacked():
    mask = np.array([[0, 1, 255], [2, 2, 2]], np.uint8)
    labels = stack_masks([(mask, PLAIN), (mask, FLIPPED)], (2, 3))["labels"]
    assert labels.dtype == torch.uint8
    np.testing.assert_array_equal(labels[1], mask[:, ::-1])
    assert stack_masks([], (2, 3))["labels"].shape == (0, 2, 3)


def test_depths_keep_their_gaps():
    depth = np.array([[1, np.nan, 3], [4, 5, 6]], np.float32)
    labels = stack_depths([(depth, FLIPPED)], (2, 3))["labels"]
    assert labels.dtype == torch.float32
    np.testing.assert_array_equal(labels[0], depth[:, ::-1])


def test_depths_are_not_zoomed():
    zoomed = FlipZoom(np.arange(2), np.arange(3), (1.5, 1.5), (0.0, 0.0))
    with pytest.raises(UserError, match=r"augmentation.zoom: zoom augmentation is not supported for depth"):
        stack_depths([(np.ones((2, 3), np.float32), zoomed)], (2, 3))


def test_boxes_of_each_label_are_filled_up_to_the_most():
    two = make_boxes(np.array([[0, 0, 1, 2], [1, 0, 3, 2]]), np.array([1, 0]))
    none = make_boxes(np.empty((0, 4)), np.empty(0))
    one = two.keep(np.array([True, False]))
    padded = pad_boxes([(two, PLAIN), (none, PLAIN), (one, FLIPPED)], (2, 3))["boxes"]
    assert padded.dtype == torch.float32
    assert padded.tolist() == [
        [[1, 0, 0, 1, 2], [0, 1, 0, 3, 2]],
        [[-1] * 5, [-1] * 5],
        [[1, 2, 0, 3, 2], [-1] * 5],
    ]
    assert pad_boxes([], (2, 3))["boxes"].shape == (0, 1, 5)

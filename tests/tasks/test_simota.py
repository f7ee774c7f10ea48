"""Batched SimOTA: what a frame learns does not depend on the frames beside it, nor on padding."""

import pytest
import torch

from tespec.models import EventSwin
from tespec.tasks.detection import DetectionHead, DetectionModel, assign, grid_of

SIZES = {8: (8, 12), 16: (4, 6), 32: (2, 3)}  # rows and columns of each level, of 64 x 96 px
CLASSES = 3


def random_boxes(counts, generator):
    """Random class, centre and size (L, M, 5) of boxes, padded with class -1."""
    padded = torch.full((len(counts), max(1, *counts), 5), -1.0)
    for row, count in zip(padded, counts, strict=True):
        centre = torch.rand(count, 2, generator=generator) * torch.tensor([110.0, 80.0]) - 5
        size = 0.5 + torch.rand(count, 2, generator=generator) ** 2 * 50
        label = torch.randint(0, CLASSES, (count, 1), generator=generator)
        row[:count] = torch.cat([label, centre, size], 1)
    return padded


def predictions(boxes, grid, generator):
    """Random centres and sizes (L, P, 4), half of them close to a box of the frame, and scores."""
    shape = len(boxes), len(grid)
    stride = grid[:, 2:]
    centre = (grid[:, :2] + 0.5 + torch.randn(*shape, 2, generator=generator) / 2) * stride
    size = stride * torch.rand(*shape, 2, generator=generator) * 3
    chosen = torch.randint(0, boxes.shape[1], (*shape, 1), generator=generator)
    close = boxes[..., 1:].gather(1, chosen.expand(-1, -1, 4))
    close = close + torch.randn(*shape, 4, generator=generator)
    is_close = torch.rand(*shape, 1, generator=generator) < 0.5
    predicted = torch.where(is_close, close, torch.cat([centre, size], 2))
    return predicted, torch.rand(*shape, CLASSES, generator=generator)


@pytest.mark.parametrize("seed", range(3))
def test_a_frame_learns_the_same_alone_and_in_a_batch(seed):
    generator = torch.Generator().manual_seed(seed)
    grid = torch.cat([grid_of(size, stride, torch.device("cpu")) for stride, size in SIZES.items()])
    counts = [0, 1, 3, 12, 40, 2]
    boxes = random_boxes(counts, generator)
    boxes[1, 0] = torch.tensor([0.0, 550, 550, 100, 100])  # far from every location
    predicted, scores = predictions(boxes, grid, generator)
    batch = assign(grid, predicted, scores, boxes[..., 1:], boxes[..., 0].long())
    for frame, count in enumerate(counts):
        rows = slice(frame, frame + 1)
        truth = boxes[rows, : max(1, count)]
        alone = assign(grid, predicted[rows], scores[rows], truth[..., 1:], truth[..., 0].long())
        for together, single in zip(batch, alone, strict=True):
            assert torch.equal(together[rows], single)
    positive, box, _ = batch
    assert not positive[:2].any()
    assert (positive[2:].sum(1) >= 2).all()
    assert (box[4] < 40).all()


def test_unbounded_predictions_of_locations_without_a_box_leave_the_loss_finite():
    torch.manual_seed(0)
    backbone = EventSwin("micro", img_size=(64, 96))
    model = DetectionModel(backbone, CLASSES, DetectionHead(channels=8))
    widths = (CLASSES, 4, 1)
    maps = [[torch.randn(4, width, *size) for size in SIZES.values()] for width in widths]
    maps[1][0][:, 2:] = 200.0  # e^200 px wide
    losses = model._losses(maps, torch.full((4, 1, 5), -1.0))
    assert all(torch.isfinite(loss) for loss in losses.values())

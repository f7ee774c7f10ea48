"""Batched SimOTA: a frame learns the same whatever the other frames of its batch and padding."""

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
    backbone = EventSwin("swin_micro", img_size=(64, 96))
    model = DetectionModel(backbone, CLASSES, DetectionHead(channels=8))
    widths = (CLASSES, 4, 1)
    maps = [[torch.randn(4, width, *size) for size in SIZES.values()] for width in widths]
    maps[1][0][:, 2:] = 200.0  # e^200 px wide
    losses = model._losses(maps, torch.full((4, 1, 5), -1.0))
    assert all(torch.isfinite(loss) for loss in losses.values())


def one_box(ious, logits):
    """Assignment of a box of 8 px around (28, 28) to the 8 px level, which overlaps it by `ious`.

    `ious` and class probabilities are by (column, row); other locations predict nothing near.
    """
    grid = grid_of((8, 8), 8, torch.device("cpu"))
    predicted = torch.tensor([500.0, 500.0, 4.0, 4.0]).repeat(1, 64, 1)
    scores = torch.full((1, 64, 1), 0.5)
    for (column, row), overlap in ious.items():
        # A box of the same centre and another width: its IoU is the ratio of the widths.
        predicted[0, 8 * row + column] = torch.tensor([28.0, 28.0, 8.0 * overlap, 8.0])
        scores[0, 8 * row + column] = logits[column, row]
    positive, _, _ = assign(
        grid, predicted, scores, torch.tensor([[[28.0, 28.0, 8.0, 8.0]]]), torch.zeros(1, 1).long()
    )
    return {(int(index) % 8, int(index) // 8) for index in positive[0].nonzero()}


def test_the_logarithm_of_a_small_iou_weighs_as_in_rvt():
    # 3 * ln(1e8) = 55.3 for no overlap at all against 3 * ln(1e3) + 20 = 40.7 (yolo_head.py,
    # get_assignments).
    near = {(2, 2): 0.0, (3, 3): 1e-3}
    assert one_box(near, {(2, 2): 1.0, (3, 3): torch.exp(torch.tensor(-20.0))}) == {(3, 3)}


def test_locations_far_from_a_box_learn_it_only_if_more_are_needed_than_are_near():
    grid = grid_of((8, 8), 8, torch.device("cpu"))
    boxes = torch.tensor([[[12.0, 12.0, 8.0, 8.0], [52.0, 52.0, 8.0, 8.0]]])
    predicted = boxes[:, :1].repeat(1, 64, 1)  # all fit the first box, so it is learned ten times
    scores = torch.tensor([1.0, 0.0]).repeat(1, 64, 1)
    is_near = (((grid[:, :2] + 0.5) * 8 - 12).abs() < 12).all(1)
    scores[0, is_near] = torch.tensor([0.0, 1.0])  # which its near locations deny, at a cost of 200
    positive, box, _ = assign(grid, predicted, scores, boxes, torch.zeros(1, 2).long())
    first = positive[0] & (box[0] == 0)
    assert is_near.sum() == 9
    assert first[is_near].all()
    assert first.sum() == 10

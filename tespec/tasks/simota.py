"""SimOTA: which places of a detector's maps learn which box, for all frames of a step at once.

Ge et al., "YOLOX: Exceeding YOLO Series in 2021", with the numbers of open-mmlab/mmdetection, sim_ota_assigner.py. Only
between places that cost exactly the same it may choose another one. Shapes do not depend on what is found, so nothing
waits for the device.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy

REACH = 2.5  # strides from a box's centre, along both sides, within which places may learn it
CANDIDATES = 10  # places of the largest overlaps with a box, whose sum says how many learn it
OVERLAP_WEIGHT = 3.0
FAR = 1e5  # cost of a place that is not both within a box and near its centre
SMALLEST_OVERLAP, SMALLEST_AREA = 1e-7, 1e-6


class Assignment(NamedTuple):
    """What each place of each frame learns.

    Attributes:
        learns: (L, P) bool, whether it learns a box.
        box: (L, P) int64, which of its frame's; 0 where it learns none.
        overlap: (L, P) float32 of its own prediction with that box; 0 where it learns none.
    """

    learns: Tensor
    box: Tensor
    overlap: Tensor


@torch.no_grad()
def assign(places: Tensor, predicted: Tensor, scores: Tensor, boxes: Tensor, label: Tensor) -> Assignment:
    """Give each box those places that predict it best, as many as their overlaps with it sum up to, at least one.

    Only places within some box of the frame, or near the centre of one, learn. A place that several boxes would take
    learns the one that it costs least to predict.

    Args:
        places: (P, 3) float32, x and y of a place's centre and its stride, in px.
        predicted: (L, P, 4) float32, left, top, right and bottom of the boxes predicted there, in px.
        scores: (L, P, C) float32 of the classes, from 0 to 1.
        boxes: (L, M, 4) float32, true boxes, M at least 1.
        label: (L, M) int64, their classes; -1 where there is none, whatever stands in `boxes`.
    """
    x, y, stride = places.unsqueeze(-1).unbind(1)  # (P, 1), against boxes (L, 1, M)
    left, top, right, bottom = boxes.unsqueeze(1).unbind(-1)
    there = (label >= 0).unsqueeze(1)
    inside = (x > left) & (y > top) & (x < right) & (y < bottom) & there
    middle_x, middle_y, reach = (left + right) / 2, (top + bottom) / 2, REACH * stride
    near = (x > middle_x - reach) & (y > middle_y - reach) & (x < middle_x + reach) & (y < middle_y + reach) & there
    possible = (inside | near).any(-1, keepdim=True) & there

    overlap = torch.where(possible, overlaps(predicted.unsqueeze(2), boxes.unsqueeze(1)), 0.0)
    cost = _class_costs(scores, label) - OVERLAP_WEIGHT * torch.log(overlap + SMALLEST_OVERLAP)
    cost = torch.where(possible, cost + ~(inside & near) * FAR, torch.inf)

    candidates = min(CANDIDATES, len(places))
    wanted = overlap.topk(candidates, dim=1).values.sum(1, keepdim=True).int().clamp(min=1)
    cheapest = cost.topk(candidates, dim=1, largest=False)
    rank = torch.arange(candidates, device=cost.device).view(-1, 1)
    taken = (rank < wanted) & (cheapest.values < torch.inf)
    matched = torch.zeros_like(possible).scatter_(1, cheapest.indices, taken)
    number = torch.arange(boxes.shape[1], device=cost.device)
    matched = torch.where(matched.sum(-1, keepdim=True) > 1, number == cost.argmin(-1, keepdim=True), matched)
    return Assignment(matched.any(-1), (matched * number).sum(-1), (matched * overlap).sum(-1))


def overlaps(one: Tensor, other: Tensor) -> Tensor:
    """Intersection over union of boxes (..., 4) with others, broadcast over the first axes."""
    sides = (torch.minimum(one[..., 2:], other[..., 2:]) - torch.maximum(one[..., :2], other[..., :2])).clamp(min=0)
    shared = sides[..., 0] * sides[..., 1]
    return shared / (_area(one) + _area(other) - shared).clamp(min=SMALLEST_AREA)


def _area(boxes: Tensor) -> Tensor:
    return (boxes[..., 2] - boxes[..., 0]) * (boxes[..., 3] - boxes[..., 1])


def _class_costs(scores: Tensor, label: Tensor) -> Tensor:
    """(L, P, M) cross-entropy of the scores (L, P, C) of each place with the class (L, M) of each box."""
    classes = scores.shape[-1]
    each = scores.unsqueeze(2).expand(-1, -1, classes, -1)
    target = torch.eye(classes, device=scores.device).expand_as(each)
    of_classes = binary_cross_entropy(each, target, reduction="none").sum(-1)
    return of_classes.gather(2, label.clamp(min=0).unsqueeze(1).expand(-1, scores.shape[1], -1))

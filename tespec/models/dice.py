"""Dice losses with squared denominators over all classes."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import one_hot

IGNORE = 255
SMOOTH = 1.0


def dice_losses(logits: Tensor, labels: Tensor) -> Tensor:
    """One minus the Dice coefficient of each sample and class, absent ones included.

    Per sample and class it is 1 - (2 sum(p t) + 1) / (sum(p^2 + t^2) + 1) with softmax probabilities p and one-hot
    labels t, as in uzh-rpg/ess, utils/loss_functions.py.

    Args:
        logits: (N, classes, H, W).
        labels: (N, H, W) integers; pixels labelled 255 count in no sum.

    Returns:
        (N, classes) float32 between 0 and 1.
    """
    classes = logits.shape[1]
    labels = labels.long()
    valid = (labels != IGNORE).unsqueeze(1)
    target = one_hot(labels.masked_fill(labels == IGNORE, 0), classes).permute(0, 3, 1, 2) * valid
    share = logits.float().softmax(dim=1) * valid
    overlap = (share * target).sum(dim=(2, 3))
    total = (share.square() + target).sum(dim=(2, 3))
    return 1 - (2 * overlap + SMOOTH) / (total + SMOOTH)

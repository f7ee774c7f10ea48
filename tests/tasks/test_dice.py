import numpy as np
import pytest
import torch

from tespec.tasks.segmentation import dice_losses


def plain_dice(logits, labels):
    """The definition, with loops."""
    shares = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    losses = []
    for share, label in zip(shares, labels, strict=True):
        valid = label != 255
        for index in range(len(share)):
            p, t = share[index][valid], (label[valid] == index).astype(float)
            losses.append(1 - (2 * (p * t).sum() + 1) / ((p**2 + t**2).sum() + 1))
    return np.mean(losses)


def test_equals_the_definition():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(3, 4, 5, 6))
    labels = rng.choice([0, 1, 3, 255], size=(3, 5, 6)).astype(np.uint8)
    loss = dice_losses(torch.tensor(logits), torch.tensor(labels)).mean()
    assert loss.item() == pytest.approx(plain_dice(logits, labels), rel=1e-5)


def test_a_certain_and_correct_answer_costs_nothing():
    labels = torch.tensor([[[0, 1], [2, 1]]], dtype=torch.uint8)
    logits = 50 * torch.nn.functional.one_hot(labels.long(), 3).permute(0, 3, 1, 2).float()
    assert dice_losses(logits, labels).mean().item() == pytest.approx(0, abs=1e-6)


def test_ignored_pixels_have_no_influence():
    labels = torch.randint(0, 3, (2, 4, 4), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    labels[:, 0] = 255
    logits = torch.zeros(2, 3, 4, 4, requires_grad=True)
    dice_losses(logits, labels).mean().backward()
    assert logits.grad[:, :, 0].abs().sum() == 0
    assert logits.grad[:, :, 1:].abs().sum() > 0

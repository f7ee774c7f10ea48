"""A step on micro-batches has the gradients and the losses of the same step on the full batch.

Networks are in evaluation mode, since batch statistics, dropout and Dice are those of a
micro-batch.
"""

from dataclasses import replace

import pytest
import torch
from loss_cases import BOXES, CASES, events, smooth
from torch import nn

from tespec.core.config import finetuning_settings
from tespec.core.distributed import global_mean
from tespec.datasets.labels import IGNORE
from tespec.training import trainer as training
from tespec.training.loading import MicroBatches
from tespec.training.trainer import Trainer

SETTINGS = replace(finetuning_settings("ddd17", "recurrent", "sample").optimisation, steps=3)
NINE = [[1, 8 + 32 * x, 2 + 20 * y, 24 + 32 * x, 18 + 20 * y] for y in range(3) for x in range(3)]


def per_lane(positions, **labels):
    """Batch of two lanes with labels at positions (lane, segment)."""
    return events() | {"label_position": torch.tensor(positions).view(-1, 2)} | labels


def detection():
    """One and nine boxes."""
    boxes = torch.full((2, 9, 5), -1.0)
    boxes[0, 0] = BOXES[0, 0]
    boxes[1] = torch.tensor(NINE, dtype=torch.float32)
    return per_lane([(0, 1), (1, 2)], boxes=boxes)


def no_boxes_first():
    """No box, then nine: the first lane only adds to the objectness loss."""
    return detection() | {
        "boxes": torch.cat([torch.full((1, 9, 5), -1.0), detection()["boxes"][1:]])
    }


def segmentation():
    """A mask with 30 labelled pixels and two complete ones."""
    masks = smooth(0, 5.9).to(torch.uint8)
    masks[0] = torch.where(
        torch.arange(masks[0].numel()).view(masks[0].shape) < 30, masks[0], IGNORE
    )
    return per_lane([(0, 1), (1, 1), (1, 2)], labels=masks)


def depth():
    """One map and two, one of them without a valid pixel."""
    maps = smooth(3, 60)
    maps[1] = torch.nan
    return per_lane([(0, 2), (1, 0), (1, 1)], labels=maps)


def unlabelled_second():
    """Three maps in the first lane, none in the second."""
    return per_lane([(0, 0), (0, 1), (0, 2)], labels=smooth(3, 60))


def masked():
    """A lane with one masked patch and one with five of six."""
    mask = torch.tensor([[[1, 0, 0], [0, 0, 0]], [[1, 1, 1], [1, 1, 0]]], dtype=torch.bool)
    return events() | {"mask": mask}


# Loss, from `CASES`, its term that is minimised, and a batch of two lanes of which one has many
# more elements.
UNEQUAL = [
    ("detection", "loss", detection),
    ("detection", "loss", no_boxes_first),
    ("segmentation", "loss_ce", segmentation),
    ("depth", "loss", depth),
    ("depth", "loss", unlabelled_second),
    ("tespec", "loss_masked", masked),
]


class Minimised(nn.Module):
    """A model of which only the loss `name` is minimised."""

    def __init__(self, model, name):
        super().__init__()
        self.model, self.name = model, name

    def loss(self, batch, state):
        if "mask" in batch:
            self.model.draw_mask = lambda histograms: batch["mask"]
        losses, state = self.model.loss(batch, state)
        return {"loss": losses[self.name]}, state


def lane_of(batch, lane):
    """The part of a batch that one lane plays."""
    labels = batch["label_position"][:, 0] == lane if "label_position" in batch else None
    part = {
        name: values[labels if name in ("boxes", "labels") else slice(lane, lane + 1)]
        for name, values in batch.items()
    }
    if labels is not None:
        part["label_position"] = batch["label_position"][labels] - torch.tensor([lane, 0])
    return part


@pytest.fixture
def step(monkeypatch):
    """Function that returns the gradients and the losses of one step on micro-batches."""
    gradients = []
    monkeypatch.setattr(
        training,
        "clip",
        lambda trained, how: gradients.append([parameter.grad.clone() for parameter in trained]),
    )

    def step(model, *micro_batches):
        steps = MicroBatches([[batch] for batch in micro_batches])
        trainer = Trainer(model.eval(), steps, SETTINGS, seed=0, device=torch.device("cpu"))
        losses = trainer.train_step(*micro_batches)
        return gradients.pop(), losses

    return step


@pytest.mark.parametrize(("case", "name", "batch"), UNEQUAL)
def test_micro_batches_have_the_gradient_of_the_full_batch(step, case, name, batch):
    batch = batch()
    expected, full = step(Minimised(CASES[case]()[0], name), batch)
    gradients, mean = step(Minimised(CASES[case]()[0], name), lane_of(batch, 0), lane_of(batch, 1))
    largest = float(max(gradient.abs().max() for gradient in expected))
    assert largest > 0
    torch.testing.assert_close(gradients, expected, rtol=1e-4, atol=1e-6 * largest)
    assert mean["loss"].item() == pytest.approx(full["loss"].item(), rel=1e-5)


class Scaled(nn.Module):
    """Mean of a parameter times each value, with `global_mean` or without."""

    def __init__(self, counted):
        super().__init__()
        self.weight, self.counted = nn.Parameter(torch.tensor(2.0)), counted

    def loss(self, batch, state):
        values = self.weight * batch["x"]
        return {
            "loss": global_mean(values.sum(), len(values)) if self.counted else values.mean()
        }, state


# One value of 1 and three of 2: their mean, and the mean of both means.
@pytest.mark.parametrize(("counted", "expected"), [(True, 1.75), (False, 1.5)])
def test_losses_are_weighed_by_the_number_that_they_are_divided_by(step, counted, expected):
    (gradient,), losses = step(Scaled(counted), {"x": torch.ones(1)}, {"x": torch.full((3,), 2.0)})
    assert gradient.item() == pytest.approx(expected)
    assert losses["loss"].item() == pytest.approx(2 * expected)

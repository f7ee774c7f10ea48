import math

import numpy as np
import pytest
import torch

from tespec.models import EventSwin
from tespec.tasks.depth import SOBEL, DepthModel, gradient_loss, scale_invariant_loss

HEIGHT, WIDTH = 50, 70


def depth_model(**options):
    torch.manual_seed(0)
    return DepthModel(EventSwin("micro", img_size=(64, 96)), features=16, **options)


def batch(labels, place=((0, 1), (1, 0)), seed=0):
    generator = torch.Generator().manual_seed(seed)
    return {
        "histograms": torch.randint(0, 4, (2, 3, 20, HEIGHT, WIDTH), generator=generator, dtype=torch.uint8),
        "fresh": torch.zeros(2, dtype=torch.bool),
        "label_place": torch.tensor(place, dtype=torch.int64).reshape(-1, 2),
        "labels": labels,
    }


def depths(count=2, gaps=0.3, seed=0):
    rng = np.random.default_rng(seed)
    labels = rng.uniform(1, 100, (count, HEIGHT, WIDTH)).astype(np.float32)
    labels[rng.random(labels.shape) < gaps] = np.nan
    return torch.from_numpy(labels)


def test_parameters_of_the_head():
    model = DepthModel(EventSwin("tiny", recurrent=False, img_size=(32, 32)))
    assert sum(parameter.numel() for parameter in model.head.parameters()) == 4_112_513


def plain_losses(difference, valid, share, scales):
    """Pixel by pixel."""
    per_map = []
    for image, counts in zip(difference, valid, strict=True):
        kept = image[counts]
        per_map.append(np.mean(kept**2) - share * np.mean(kept) ** 2 if kept.size else 0.0)
    total, places = 0.0, 0
    kernel = np.array(SOBEL)
    for scale in range(scales):
        size = 2**scale
        images = np.where(valid, difference, 0)
        rows, columns = images.shape[1] // size, images.shape[2] // size
        pooled = images[:, : rows * size, : columns * size].reshape(-1, rows, size, columns, size).mean(axis=(2, 4))
        for image in pooled:
            for i in range(rows - 2):
                for j in range(columns - 2):
                    patch = image[i : i + 3, j : j + 3]
                    total += abs((patch * kernel).sum()) + abs((patch * kernel.T).sum())
                    places += 1
    return np.mean(per_map), total / places


@pytest.mark.parametrize("share", [0.5, 1.0])
@pytest.mark.parametrize("scales", [1, 3, 4])
def test_losses_are_those_of_a_plain_loop(share, scales):
    rng = np.random.default_rng(scales)
    difference, valid = rng.normal(size=(3, 25, 34)), rng.random((3, 25, 34)) < 0.6
    valid[1] = False
    si, gradient = plain_losses(difference, valid, share, scales)
    tensors = torch.from_numpy(difference), torch.from_numpy(valid)
    assert scale_invariant_loss(*tensors, share).item() == pytest.approx(si, abs=1e-9)
    assert gradient_loss(*tensors, scales).item() == pytest.approx(gradient, abs=1e-9)


def test_the_loss_is_on_normalised_log_depth_between_the_limits():
    model, labels = depth_model().eval(), depths()
    with torch.no_grad():
        named, _ = model.loss(batch(labels), None)
        predicted, _ = model.predict(batch(labels)["histograms"], None, batch(labels)["label_place"])
    valid = (labels >= 1.978) & (labels <= 80)
    difference = (torch.log(predicted / 80) - torch.log(labels / 80)) / 3.7
    difference = torch.where(valid, difference, 0.0).double()
    si = scale_invariant_loss(difference, valid, 0.5)
    gradient = gradient_loss(difference, valid, 3)
    assert named["loss_si"].item() == pytest.approx(si.item(), rel=1e-4)
    assert named["loss"].item() == pytest.approx((si + 0.125 * gradient).item(), rel=1e-4)


@pytest.mark.parametrize("labels", [torch.full((2, HEIGHT, WIDTH), math.nan), torch.full((2, HEIGHT, WIDTH), 500.0)])
def test_labels_without_depth_that_counts_cost_nothing(labels):
    model = depth_model()
    named, _ = model.loss(batch(labels), None)
    named["loss"].backward()
    assert named["loss"].item() == 0
    assert all(torch.isfinite(parameter.grad).all() for parameter in model.parameters())


def test_a_step_without_labels_costs_nothing():
    model = depth_model()
    named, state = model.loss(batch(torch.empty(0, HEIGHT, WIDTH), place=[]), None)
    named["loss"].backward()
    assert named["loss"].item() == 0
    assert state is not None


def test_gaps_reach_no_gradient_and_every_parameter_has_one():
    model = depth_model()
    named, _ = model.loss(batch(depths(gaps=0.9)), None)
    named["loss"].backward()
    assert all(parameter.grad is not None and torch.isfinite(parameter.grad).all() for parameter in model.parameters())


@torch.no_grad()
def test_predictions_of_chosen_segments_and_of_a_stream_are_those_of_the_sequence():
    model, data = depth_model().eval(), batch(depths())
    whole, _ = model.predict(data["histograms"])
    assert whole.shape == (2, 3, HEIGHT, WIDTH)
    assert (whole > 0).all()
    chosen, _ = model.predict(data["histograms"], None, data["label_place"])
    torch.testing.assert_close(chosen, torch.stack([whole[0, 1], whole[1, 0]]), rtol=1e-4, atol=1e-4)
    state = None
    for segment in range(3):
        streamed, state = model.step(data["histograms"][:, segment], state)
        torch.testing.assert_close(streamed, whole[:, segment], rtol=1e-4, atol=1e-4)


def test_wild_predictions_stay_numbers():
    model = depth_model()
    assert torch.isfinite(model._metres(torch.tensor([-1e9, 1e9]))).all()
    assert model._metres(torch.tensor([1.0, 0.0])).tolist() == pytest.approx([80.0, 1.978], rel=1e-3)

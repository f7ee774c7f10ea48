"""ECDP against the published formulas (Yan98/Event-Camera-Data-Pre-training)."""

from functools import partial

import numpy as np
import pytest
import torch
from loss_cases import ecdp as small
from loss_cases import own, pairs

from baselines.ecdp import Ecdp, similarity_divergence, with_correlated_events

LANES = 4
EVENTS, KEYS, IMAGES = torch.randn(
    3, 6, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
)
network = partial(small, "resnet_micro")


def test_all_pairs_are_aligned_if_groups_do_not_divide_them():
    events, images = torch.randn(2, 12, 5, generator=torch.Generator().manual_seed(0))
    together = similarity_divergence(events, images, 0.1, 12)
    assert similarity_divergence(events, images, 0.1, 5) == together
    assert similarity_divergence(events, images, 0.1, 6) != together


def test_each_loss_weighs_and_trains_as_published():
    """The alignment trains the layer behind the image network; nothing trains the image network."""
    matched = {"backbone", "image_head", "image_predictor"}
    expected = {
        "loss_views": (0.4, {"backbone", "event_head", "event_predictor"}),
        "loss_contrast": (0.2, matched),
        "loss_alignment": (2.0, matched | {"to_event"}),
    }
    for name, (_, parts) in expected.items():
        model = network().train()
        found, _ = model.loss(pairs(LANES))
        total = sum(weight * found[each] for each, (weight, _) in expected.items())
        assert found["loss"].item() == pytest.approx(total.item(), rel=1e-5)
        found[name].backward()
        named = {part: [*module.parameters()] for part, module in model.named_children()}
        assert {
            part for part, each in named.items() if any(one.grad is not None for one in each)
        } == parts
        assert not model.teacher.network.training


def test_both_networks_see_views_of_their_own_and_images_stay_whole():
    model, given, seen = network(), pairs(LANES), []
    for part in (model.backbone, model.momentum_backbone, model.teacher):
        part.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    model.train().loss(given)
    view, other, images = seen
    assert view.shape == other.shape == given["histograms"].shape
    assert not torch.equal(view, other)
    assert torch.equal(view, view.round())  # nearest pixels
    assert torch.equal(images, given["images"][:, 0])
    model.eval().loss(given)
    assert torch.equal(seen[3], given["histograms"])
    assert torch.equal(seen[4], given["histograms"])


def test_events_are_flipped_in_time_shifted_and_added_to():
    settings = own("ecdp")
    assert settings.shift * 224 == pytest.approx(20)
    counts = np.zeros((1, 20, 112, 120), np.uint8)
    counts[0, 3, 50, 60] = 1  # negative, fourth bin
    flips, moves = [], []
    for seed in range(400):
        found = Ecdp.augment(settings, counts, np.random.default_rng(seed))
        ((plane, row, column),) = np.argwhere(found[0])
        assert plane in (3, 16)  # reversed in time: positive, fourth bin from the end
        flips.append(plane == 16)
        moves += [row - 50, column - 60]
    assert np.mean(flips) == pytest.approx(0.5, abs=0.08)
    assert (min(moves), max(moves)) == (-10, 10)


def test_correlated_events_are_centred_on_their_own():
    """Events are anywhere in their pixel, as coordinates that were scaled to 224 px."""
    counts = np.zeros((1, 20, 60, 80), np.uint8)
    counts[0, :, 20:40, 40] = 10
    counts[0, 0, 59, 79] = 1  # added events lie within the occupied area
    found = [
        with_correlated_events(counts, np.random.default_rng(seed))[0, :, :, 30:51]
        for seed in range(20)
    ]
    added = np.sum(found, (0, 1, 2))
    added[10] = 0  # where counts saturate
    assert added @ np.arange(-10, 11) / added.sum() == pytest.approx(0, abs=0.05)


def test_correlated_events_lie_near_their_own():
    counts = np.zeros((1, 20, 60, 80), np.uint8)
    counts[0, 4, 20:52, 20:60] = 1
    more = (
        np.stack(
            [with_correlated_events(counts, np.random.default_rng(seed))[0] for seed in range(200)]
        )
        - counts
    )
    added = more.sum((1, 2, 3))
    assert 100 <= added.min() < 250
    assert 1100 < added.max() < 1280
    # same polarity, adjacent bins
    assert more[:, [*range(3), *range(6, 20)]].sum() < 0.01 * added.sum()
    assert more[:, :, :14].sum() + more[..., :14].sum() < 0.001 * added.sum()
    counts[0, :, 44:] = 0  # 960 events
    assert with_correlated_events(counts, np.random.default_rng(0)) is counts

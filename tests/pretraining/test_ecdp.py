"""ECDP held against the published formulas (Yan98/Event-Camera-Data-Pre-training), written out as loops."""

import math

import numpy as np
import pytest
import torch
from small_networks import SIZE, backbone, histograms, own
from torch import nn

from baselines import ecdp
from baselines.ecdp import Ecdp, head, likeness_divergence, view_contrast, with_correlated_events
from tespec.core.config import pretraining_settings
from tespec.pretraining.contrast import info_nce

LANES = 4


def network():
    small = own("ecdp", "paper", hidden=32, out=16)
    return Ecdp(small, backbone(arch="resnet-micro"), backbone(channels=1, arch="resnet-micro", seed=1))


def batch():
    generator = torch.Generator().manual_seed(1)
    images = torch.randint(0, 256, (LANES, 1, 1, *SIZE), generator=generator, dtype=torch.uint8)
    return {"histograms": histograms(LANES), "images": images}


def rows(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def unit(vector):
    return [each / math.sqrt(sum(x * x for x in vector)) for each in vector]


def dot(one, other):
    return sum(a * b for a, b in zip(one, other, strict=True))


def plain_cross_entropy(logits):
    """Mean of -log softmax at the diagonal."""
    return sum(math.log(sum(map(math.exp, row))) - row[n] for n, row in enumerate(logits)) / len(logits)


def test_contrasts_are_the_published_ones():
    events, keys, images = (rows(6, 5, seed=seed).tolist() for seed in range(3))
    onto = [unit(each) for each in images]
    one, two = (
        [[dot(unit(each), along) * x for x in along] for each, along in zip(vectors, onto, strict=True)]
        for vectors in (events, keys)
    )
    expected = plain_cross_entropy([[dot(a, b) / 0.2 for b in two] for a in one])
    found = view_contrast(*map(torch.tensor, (events, keys, images)), 0.2)
    assert found.item() == pytest.approx(expected, rel=1e-6)
    expected = plain_cross_entropy([[dot(unit(a), unit(b)) / 0.1 for b in images] for a in events])
    assert info_nce(torch.tensor(events), torch.tensor(images), 0.1)[0].item() == pytest.approx(expected, rel=1e-6)


def test_the_alignment_keeps_its_diagonal_and_balances_the_images_likenesses():
    events, images = rows(5, 4).tolist(), rows(5, 4, seed=1).tolist()
    wanted = [[math.exp(dot(unit(a), unit(b)) / 0.1) for b in images] for a in images]
    for _ in range(3):
        sums = [sum(row[k] for row in wanted) for k in range(5)]
        wanted = [[each / sums[k] for k, each in enumerate(row)] for row in wanted]
        wanted = [[each / sum(row) for each in row] for row in wanted]
    expected = 0.0
    for row, a in zip(wanted, events, strict=True):
        logits = [dot(unit(a), unit(b)) / 0.1 for b in events]
        whole = math.log(sum(map(math.exp, logits)))
        expected += sum(p * (math.log(p) - (x - whole)) for p, x in zip(row, logits, strict=True)) / 5
    found = likeness_divergence(*(torch.tensor(each, dtype=torch.float64) for each in (events, images)), 0.1)
    assert found.item() == pytest.approx(expected, rel=1e-6)


def test_the_loss_weighs_as_published():
    found, _ = network().loss(batch())
    expected = 0.4 * found["loss_views"] + 0.2 * found["loss_contrast"] + 2.0 * found["loss_alignment"]
    assert found["loss"].item() == pytest.approx(expected.item(), rel=1e-5)


def trained_by(name):
    """Parts of the network that a loss has a gradient for."""
    model = network().train()
    model.loss(batch())[0][name].backward()
    parts = model.named_children()
    return {part for part, module in parts if any(each.grad is not None for each in module.parameters())}


def test_each_loss_trains_what_the_publication_trains_by_it():
    of_events = {"backbone", "event_head", "event_predictor"}
    assert trained_by("loss_views") == of_events
    # There the image network is frozen, and only the layer behind it learns by the alignment.
    assert trained_by("loss_alignment") == {"backbone", "image_head", "image_predictor", "to_event"}
    assert trained_by("loss_contrast") == {"backbone", "image_head", "image_predictor", "to_event", "images"}


def test_events_learn_from_the_contrast_as_if_images_were_frozen():
    model, vectors = network().eval(), {}
    model.image_predictor.register_forward_hook(lambda module, inputs, out: vectors.update(events=out))
    model.to_event.register_forward_hook(lambda module, inputs, out: vectors.setdefault("images", out))
    loss = model.loss(batch())[0]["loss_contrast"]
    expected = info_nce(vectors["events"], vectors["images"].detach(), 0.1)[0]
    ours, theirs = (torch.autograd.grad(each, vectors["events"], retain_graph=True)[0] for each in (loss, expected))
    torch.testing.assert_close(ours, theirs)


def test_heads_are_the_published_ones():
    settings = pretraining_settings("ecdp", "paper").objective
    assert (settings["hidden"], settings["out"]) == (4096, 256)
    model = network()
    for layers, count in ((model.event_head, 3), (model.image_head, 3), (model.event_predictor, 2)):
        linear = [each for each in layers if isinstance(each, nn.Linear)]
        norms = [each.affine for each in layers if isinstance(each, nn.BatchNorm1d)]
        assert ([each.bias for each in linear], norms) == ([None] * count, [True] * (count - 1) + [False])
        assert len([each for each in layers if isinstance(each, nn.ReLU)]) == count - 1
        assert isinstance(layers[-1], nn.BatchNorm1d)
    assert [(type(each), each.bias) for each in model.to_event] == [(nn.Linear, None)]
    assert [each.out_features for each in head(3, 4, 5, 6) if isinstance(each, nn.Linear)] == [4, 5, 6]


def test_the_slow_network_starts_equal_and_follows_from_momentum_099():
    model = network()
    slow, fast = model.slow_backbone.resnet.conv1.weight, model.backbone.resnet.conv1.weight
    start = slow.clone()
    assert torch.equal(start, fast)
    with torch.no_grad():
        fast += 1
    model.after_step(0.0)
    torch.testing.assert_close(slow - start, torch.full_like(start, 0.01), atol=1e-5, rtol=0)
    model.after_step(1.0)
    torch.testing.assert_close(slow - start, torch.full_like(start, 0.01), atol=1e-5, rtol=0)
    trained = {name.partition(".")[0] for name, each in model.named_parameters() if each.requires_grad}
    assert {"backbone", "images"} < trained  # `backbone` is exported, their encoder_q
    assert not trained & {"slow_backbone", "slow_head"}


def test_both_networks_see_views_of_their_own_and_images_stay_whole(monkeypatch):
    model, seen = network(), {}
    whole = ecdp.whole

    def watched(net, frames):
        seen[next(name for name, part in model.named_children() if part is net)] = frames
        return whole(net, frames)

    monkeypatch.setattr(ecdp, "whole", watched)
    drawn = ecdp.random_views
    monkeypatch.setattr(ecdp, "random_views", lambda *args: seen.setdefault("views", (args, drawn(*args)))[1])
    given = batch()
    model.train().loss(given)
    (_, count, size, scale), views = seen["views"]
    assert (count, size, scale) == (2, SIZE, (0.45, 1.0))
    assert torch.equal(seen["backbone"], views[0])
    assert torch.equal(seen["slow_backbone"], views[1])
    assert not torch.equal(views[0], views[1])
    assert torch.equal(seen["images"], ecdp.as_input(given["images"]))
    model.eval().loss(given)
    assert torch.equal(seen["backbone"], given["histograms"])


def test_events_are_flipped_in_time_shifted_and_added_to():
    settings = own("ecdp", "paper")
    assert settings.shift * 224 == pytest.approx(20)
    counts = np.zeros((1, 20, 112, 120), np.uint8)
    counts[0, 3, 50, 60] = 1  # negative, fourth bin
    flips, moves = [], []
    for seed in range(400):
        found = Ecdp.augment(settings, counts, np.random.default_rng(seed))
        ((plane, row, column),) = np.argwhere(found[0])
        assert plane in (3, 16)  # backwards: positive, fourth bin from the end
        flips.append(plane == 16)
        moves += [row - 50, column - 60]
    assert np.mean(flips) == pytest.approx(0.5, abs=0.08)
    assert (min(moves), max(moves)) == (-10, 10)


def test_correlated_events_lie_near_their_own():
    counts = np.zeros((1, 20, 60, 80), np.uint8)
    counts[0, 4, 20:52, 20:60] = 1
    added, far = [], []
    for seed in range(200):
        more = with_correlated_events(counts, np.random.default_rng(seed)).astype(int) - counts
        assert more.min() == 0
        assert more[0, [*range(3), *range(6, 20)]].sum() < 0.01 * more.sum()  # same polarity, and soon
        added.append(more.sum())
        far.append(more[0, :, :14].sum() + more[0, :, :, :14].sum())
    assert 100 <= min(added) < 250
    assert 1100 < max(added) < 1280
    assert sum(far) < 0.001 * sum(added)
    few = counts.copy()
    few[0, :, 44:] = 0  # 960 events
    assert with_correlated_events(few, np.random.default_rng(0)) is few

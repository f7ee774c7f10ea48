"""MoBY: the loss is the published formula, and the views are BYOL's."""

from collections import Counter

import pytest
import torch
from loss_cases import moby, own, views
from PIL import Image
from torch.nn.functional import normalize
from torchvision.transforms import v2

from baselines import moby as baseline
from baselines.moby import Moby
from tespec.pretraining.contrast import global_avg_pool

KINDS = (v2.ColorJitter, v2.RandomGrayscale, v2.RandomSolarize)


def test_the_loss_is_the_published_formula_and_the_queues_keep_the_newest_keys():
    """models/moby.py: a query is contrasted with the key and the queue of the other crop."""
    model, batch = moby(queue=6).eval(), {"views": views(lanes=4)}
    for name, parameter in model.named_parameters():
        if name.startswith("momentum"):  # so that they differ from the trained networks
            parameter.add_(0.05 * torch.randn(parameter.shape))
    queues = model.queue.clone()
    frames = batch["views"].split(1, dim=1)
    queries = [
        model.predictor(model.projector(global_avg_pool(model.backbone, view, model.norm)))
        for view in frames
    ]
    projections = [
        model.momentum_projector(
            global_avg_pool(model.momentum_backbone, view, model.momentum_norm)
        )
        for view in frames
    ]
    keys = normalize(torch.stack(projections), dim=2).detach()
    loss = model.loss(batch, None)[0]["loss"]
    expected = 0.0
    for mine, other in ((0, 1), (1, 0)):
        for query, key in zip(
            normalize(queries[mine].double(), dim=1), keys[other].double(), strict=True
        ):
            logits = torch.cat([key.unsqueeze(0), queues[other].double()]) @ query / 0.2
            expected = expected - logits.log_softmax(0)[0] / len(keys[other])
    torch.testing.assert_close(loss.double(), expected, rtol=1e-5, atol=1e-6)
    trained = [each for each in model.parameters() if each.requires_grad]
    gradients = (torch.autograd.grad(each, trained, retain_graph=True) for each in (loss, expected))
    torch.testing.assert_close(*gradients, rtol=1e-3, atol=1e-5)
    assert torch.equal(model.queue, queues)  # unchanged by an evaluation
    model.train()
    for _ in range(2):
        model.loss(batch, None)
    assert int(model.queue_ptr) == 8 % 6
    assert not torch.equal(model.queue[:, :2], queues[:, :2])
    model._enqueue(keys)
    torch.testing.assert_close(model.queue[:, 2:6], keys)


def test_augmentations_come_as_often_and_as_strong_as_published(monkeypatch):
    seen, used = Counter(), {}

    def transform(self, image, params):
        seen[type(self)] += 1
        used[type(self)] = self
        return image

    def blurred(image):
        seen["blur"] += 1
        return image

    for kind in KINDS:
        monkeypatch.setattr(kind, "transform", transform)
    monkeypatch.setattr(baseline, "blurred", blurred)
    published = ((0.8, 0.2, 0.0, 1.0), (0.8, 0.2, 0.2, 0.1))
    for view, shares in zip(Moby.views(own("moby", size=8)), published, strict=True):
        seen.clear()
        torch.manual_seed(0)
        for _ in range(1000):
            assert view(Image.new("RGB", (16, 16))).shape == (3, 8, 8)
        assert [seen[kind] / 1000 for kind in (*KINDS, "blur")] == pytest.approx(shares, abs=0.04)
    jitter = used[v2.ColorJitter]
    ranges = [*jitter.brightness, *jitter.contrast, *jitter.saturation, *jitter.hue]
    assert ranges == pytest.approx([0.6, 1.4, 0.6, 1.4, 0.8, 1.2, -0.1, 0.1])

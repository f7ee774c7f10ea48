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
    """Loss of models/moby.py: a query of one view is contrasted with the other view's key and queue."""
    model, batch = moby(queue=6).eval(), {"views": views(lanes=4)}
    for name, parameter in model.named_parameters():
        if name.startswith("slow"):  # so that they differ from the trained networks
            parameter.add_(0.05 * torch.randn(parameter.shape))
    queues, frames = model.queues.clone(), batch["views"].split(1, dim=1)
    queries = [
        model.predictor(model.projector(global_avg_pool(model.backbone, each, model.norm)))
        for each in frames
    ]
    slow = [
        model.slow_projector(global_avg_pool(model.slow_backbone, each, model.slow_norm))
        for each in frames
    ]
    keys = normalize(torch.stack(slow), dim=2).detach()
    found, wanted = model.loss(batch, None)[0]["loss"], 0.0
    for mine, other in ((0, 1), (1, 0)):
        for query, key in zip(
            normalize(queries[mine].double(), dim=1), keys[other].double(), strict=True
        ):
            logits = torch.cat([key.unsqueeze(0), queues[other].double()]) @ query / 0.2
            wanted = wanted - logits.log_softmax(0)[0] / len(keys[other])
    torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-6)
    trained = [each for each in model.parameters() if each.requires_grad]
    gradients = (torch.autograd.grad(each, trained, retain_graph=True) for each in (found, wanted))
    torch.testing.assert_close(*gradients, rtol=1e-3, atol=1e-5)
    assert torch.equal(model.queues, queues)  # unchanged by an evaluation
    model.train()
    for _ in range(2):
        model.loss(batch, None)
    assert int(model.place) == 8 % 6
    assert not torch.equal(model.queues[:, :2], queues[:, :2])
    model._keep(keys)
    torch.testing.assert_close(model.queues[:, 2:6], keys)


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

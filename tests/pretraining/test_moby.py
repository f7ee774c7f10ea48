"""MoBY: the views are BYOL's; `tests/published/test_images.py` has values of its loss."""

from collections import Counter

import pytest
import torch
from loss_cases import own
from PIL import Image
from torchvision.transforms import v2

from baselines import moby as baseline
from baselines.moby import Moby

KINDS = (v2.ColorJitter, v2.RandomGrayscale, v2.RandomSolarize)


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

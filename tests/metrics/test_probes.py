import numpy as np
import torch

from tespec.metrics.features import linear_probe, nearest_neighbours
from tespec.runs.probe import patch_classes


def groups(count, noise, seed=0):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % 3
    centres = torch.tensor([[2.0, 0, 0, 5], [0, 2, 0, 5], [0, 0, 2, 5]])
    return centres[labels] + noise * torch.randn(count, 4, generator=generator), labels


def test_classes_that_lie_apart_are_told_apart():
    features, labels = groups(120, 0.3)
    queries, wanted = groups(60, 0.3, seed=1)
    for classify in (linear_probe, nearest_neighbours):
        assert (classify(features, labels, queries, 3) == wanted).float().mean() > 0.95


def test_features_that_say_nothing_stay_at_chance():
    features, labels = torch.randn(300, 4), torch.arange(300) % 3
    queries, wanted = torch.randn(300, 4), torch.arange(300) % 3
    for classify in (linear_probe, nearest_neighbours):
        assert (classify(features, labels, queries, 3) == wanted).float().mean() < 0.5


def test_a_patch_has_the_class_of_most_of_its_labelled_pixels():
    mask = np.full((20, 16), 255, np.uint8)
    mask[:8, :8] = 2
    mask[0, :8] = 1
    mask[8, 8] = 3
    assert patch_classes(mask, 4).tolist() == [[2, 255], [255, 3]]

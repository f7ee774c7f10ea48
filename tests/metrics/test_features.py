"""Sampled features, their standard deviation and rank, and linear and nearest-neighbour probes."""

import numpy as np
import pytest
import torch
from torch.nn.functional import interpolate, normalize

from tespec.metrics.features import (
    FeatureReservoir,
    feature_std_and_rank,
    linear_probe,
    nearest_neighbours,
    sample_features,
)
from tespec.runs.references import patch_classes

SHAPES = ((4, 24, 40), (8, 12, 20), (16, 6, 10), (32, 3, 5))  # channels, rows and columns of each stage


def stages(batch, lanes=1, segments=2, shapes=SHAPES):
    generator = torch.Generator().manual_seed(batch)
    return [torch.randn(lanes, segments, *shape, generator=generator) for shape in shapes]


def everywhere(features):
    """Features at every place of the second stage's grid, from completely interpolated stages."""
    maps = [interpolate(each.flatten(0, 1), size=features[1].shape[-2:], mode="bilinear") for each in features]
    return torch.cat([normalize(each, dim=1) for each in maps], dim=1).movedim(1, -1).flatten(0, -2)


@pytest.mark.parametrize("shapes", [SHAPES, ((3, 17, 13), (5, 9, 7), (2, 5, 4), (4, 3, 2)), ((2, 4, 4), (2, 8, 8))])
def test_stages_are_read_as_if_interpolated_whole(shapes):
    features = stages(0, 2, 3, shapes)
    places = torch.arange(len(everywhere(features)))[::3]
    found = sample_features([each.flatten(0, 1) for each in features], places, features[1].shape[-2:])
    torch.testing.assert_close(found, everywhere(features)[places], rtol=1e-5, atol=1e-6)


def kept(limit, batches):
    """Batch, frame, row and column of the places in the reservoir."""
    places, grid = FeatureReservoir(limit), torch.meshgrid(*map(torch.arange, (2, 6, 10)), indexing="ij")
    for batch in range(batches):
        places.add([torch.stack([torch.full_like(grid[0], batch), *grid], dim=1)[None].float()], (6, 10))
        assert len(places.features()) <= limit
    return places.features().long()


def test_a_uniform_sample_of_all_places_the_same_for_every_run():
    first = kept(600, 50)
    assert torch.equal(first, kept(600, 50))
    assert len(first.unique(dim=0)) == 600
    # On average 12 places per batch, 300 per frame, 100 per row and 60 per column: each within 4 standard deviations.
    for axis, count in enumerate((50, 2, 6, 10)):
        share = 600 / count
        found = torch.bincount(first[:, axis], minlength=count)
        assert (found - share).abs().max() < 4 * (share * (1 - 1 / count)) ** 0.5
    # After more batches, the kept places of the earlier ones are a subset of those kept before.
    longer = kept(600, 80)
    assert {tuple(row) for row in longer[longer[:, 0] < 50].tolist()} < {tuple(row) for row in first.tolist()}


def test_deviation_and_rank_tell_collapse_from_variety():
    torch.manual_seed(0)
    varied = feature_std_and_rank(torch.randn(500, 16))
    assert varied.std == pytest.approx(1, abs=0.05)
    assert 14 < varied.rank <= 16
    collapsed = feature_std_and_rank(torch.ones(500, 16) + 1e-6 * torch.randn(500, 16))
    assert collapsed.std < 1e-3
    assert collapsed.rank < 1.01
    assert feature_std_and_rank(torch.ones(1, 4)) == (0, 0)


@pytest.mark.parametrize("classify", [linear_probe, nearest_neighbours])
def test_probes_find_classes_that_lie_apart_and_stay_at_chance_without_any(classify):
    generator = torch.Generator().manual_seed(0)
    centres = torch.tensor([[2.0, 0, 0, 5], [0, 2, 0, 5], [0, 0, 2, 5]])
    labels = torch.arange(300) % 3
    apart = [centres[labels] + 0.3 * torch.randn(300, 4, generator=generator) for _ in range(2)]
    assert (classify(apart[0], labels, apart[1], 3) == labels).float().mean() > 0.95
    noise = [torch.randn(300, 4, generator=generator) for _ in range(2)]
    assert (classify(noise[0], labels, noise[1], 3) == labels).float().mean() < 0.5


def test_a_patch_has_the_class_of_most_of_its_labelled_pixels():
    mask = np.full((20, 16), 255, np.uint8)
    mask[:8, :8], mask[0, :8], mask[8, 8] = 2, 1, 3
    assert patch_classes(mask, 4).tolist() == [[2, 255], [255, 3]]

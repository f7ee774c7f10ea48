"""Sampled features, their standard deviation and rank, and linear and nearest-neighbour probes."""

import numpy as np
import pytest
import torch

from tespec.metrics.features import (
    FeatureReservoir,
    feature_std_and_rank,
    linear_probe,
    nearest_neighbours,
)
from tespec.runs.references import patch_classes


def sampled(limit, batches):
    """Batch, frame, row and column of the positions in the reservoir."""
    reservoir = FeatureReservoir(limit)
    grid = torch.meshgrid(*map(torch.arange, (2, 6, 10)), indexing="ij")
    for batch in range(batches):
        reservoir.add(torch.stack([torch.full_like(grid[0], batch), *grid], dim=1)[None].float())
        assert len(reservoir.features) <= limit
    return reservoir.features.long()


def test_a_uniform_sample_of_all_places_the_same_for_every_run():
    first = sampled(600, 50)
    assert torch.equal(first, sampled(600, 50))
    assert len(first.unique(dim=0)) == 600
    # On average 12 positions per batch, 300 per frame, 100 per row and 60 per column: all within 4
    # standard deviations.
    for axis, count in enumerate((50, 2, 6, 10)):
        expected = 600 / count
        counts = torch.bincount(first[:, axis], minlength=count)
        assert (counts - expected).abs().max() < 4 * (expected * (1 - 1 / count)) ** 0.5
    # After more batches, the positions of the earlier ones are a subset of those before.
    longer = sampled(600, 80)
    assert {tuple(row) for row in longer[longer[:, 0] < 50].tolist()} < {
        tuple(row) for row in first.tolist()
    }


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

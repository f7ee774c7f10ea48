"""The places whose features are compared: all of them while they fit, and in bounded memory whatever is played."""

import pytest
import torch
from torch.nn.functional import interpolate, normalize

from tespec.metrics.features import PLACES, FeatureReservoir, feature_std_and_rank, sample_features

SHAPES = ((4, 24, 40), (8, 12, 20), (16, 6, 10), (32, 3, 5))  # of stages: channels, rows and columns


def stages(batch, lanes=1, segments=2, shapes=SHAPES):
    generator = torch.Generator().manual_seed(batch)
    return [torch.randn(lanes, segments, *shape, generator=generator) for shape in shapes]


def everywhere(features):
    """Every place of the second stage's grid, from stages that are interpolated whole."""
    size = features[1].shape[-2:]
    maps = [interpolate(each.flatten(0, 1), size=size, mode="bilinear") for each in features]
    whole = torch.cat([normalize(each, dim=1) for each in maps], dim=1)
    return whole.movedim(1, -1).flatten(0, -2)


@pytest.mark.parametrize("shapes", [SHAPES, ((3, 17, 13), (5, 9, 7), (2, 5, 4), (4, 3, 2)), ((2, 4, 4), (2, 8, 8))])
def test_stages_are_read_as_if_interpolated_whole(shapes):
    features = stages(0, 2, 3, shapes)
    whole = everywhere(features)
    places = torch.arange(len(whole)).flip(0)[::3]
    found = sample_features([each.flatten(0, 1) for each in features], places, features[1].shape[-2:])
    torch.testing.assert_close(found, whole[places], rtol=1e-5, atol=1e-6)


def test_everything_is_kept_in_order_while_it_fits():
    places = FeatureReservoir(PLACES)
    batches = [stages(number) for number in range(8)]
    for features in batches:
        places.add(features, features[1].shape[-2:])
    whole = torch.cat([everywhere(features) for features in batches])
    assert len(whole) == 3840 <= PLACES
    torch.testing.assert_close(places.features(), whole, rtol=1e-5, atol=1e-6)
    assert feature_std_and_rank(places.features()) == pytest.approx(feature_std_and_rank(whole), rel=1e-5)


def numbered(batch, lanes=1, segments=2, rows=6, columns=10):
    """One stage whose features say where they stand: batch, frame, row and column."""
    grid = torch.meshgrid(*map(torch.arange, (lanes * segments, rows, columns)), indexing="ij")
    values = torch.stack([torch.full_like(grid[0], batch), *grid], dim=1)
    return values.view(lanes, segments, 4, rows, columns).float()


def kept(limit, batches, **shape):
    places = FeatureReservoir(limit)
    for batch in range(batches):
        features = numbered(batch, **shape)
        places.add([features], features.shape[-2:])
        assert len(places.features()) <= limit
    return places.features().long()


def test_a_sample_of_all_places_the_same_for_every_run():
    first, second = kept(600, 50), kept(600, 50)
    assert torch.equal(first, second)
    assert len(first) == 600
    assert len(first.unique(dim=0)) == 600
    # 12 places a batch, 300 a frame, 100 a row and 60 a column on the mean: each within 4 standard deviations.
    for axis, count in enumerate((50, 2, 6, 10)):
        found = torch.bincount(first[:, axis], minlength=count)
        share = 600 / count
        assert (found - share).abs().max() < 4 * (share * (1 - 1 / count)) ** 0.5
    # A chunk of any length more leaves the choice among the earlier ones a part of what it was.
    longer = kept(600, 80)
    earlier = {tuple(row) for row in longer[longer[:, 0] < 50].tolist()}
    assert earlier < {tuple(row) for row in first.tolist()}


def test_spread_tells_collapse_from_variety():
    torch.manual_seed(0)
    varied = feature_std_and_rank(torch.randn(500, 16))
    assert varied.std == pytest.approx(1, abs=0.05)
    assert 14 < varied.rank <= 16
    collapsed = feature_std_and_rank(torch.ones(500, 16) + 1e-6 * torch.randn(500, 16))
    assert collapsed.std < 1e-3
    assert collapsed.rank < 1.01
    assert feature_std_and_rank(torch.ones(1, 4)) == (0, 0)

"""The places whose features are compared: all of them while they fit, and in bounded memory whatever is played."""

import weakref

import pytest
import torch
from torch.nn.functional import interpolate, normalize
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tespec.metrics.probes import PLACES, Places, side_by_side, spread
from tespec.pretraining.objective import PretrainingTask

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
    found = side_by_side([each.flatten(0, 1) for each in features], places, features[1].shape[-2:])
    torch.testing.assert_close(found, whole[places], rtol=1e-5, atol=1e-6)


def test_everything_is_kept_in_order_while_it_fits():
    places = Places(PLACES)
    batches = [stages(number) for number in range(8)]
    for features in batches:
        places.add(features, features[1].shape[-2:])
    whole = torch.cat([everywhere(features) for features in batches])
    assert len(whole) == 3840 <= PLACES
    torch.testing.assert_close(places.features(), whole, rtol=1e-5, atol=1e-6)
    assert spread(places.features()) == pytest.approx(spread(whole), rel=1e-5)


def numbered(batch, lanes=1, segments=2, rows=6, columns=10):
    """One stage whose features say where they stand: batch, frame, row and column."""
    grid = torch.meshgrid(*map(torch.arange, (lanes * segments, rows, columns)), indexing="ij")
    values = torch.stack([torch.full_like(grid[0], batch), *grid], dim=1)
    return values.view(lanes, segments, 4, rows, columns).float()


def kept(limit, batches, **shape):
    places = Places(limit)
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


class Bytes(TorchDispatchMode):
    """Counts the bytes of the tensors that are alive at once, of those made inside."""

    def __init__(self):
        super().__init__()
        self.alive = self.most = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        for each in tree_leaves(out):
            if isinstance(each, torch.Tensor):
                self.alive += each.nbytes
                self.most = max(self.most, self.alive)
                weakref.finalize(each, self._gone, each.nbytes)
        return out

    def _gone(self, size):
        self.alive -= size


class Endless(PretrainingTask):
    """A method whose data held out is as long as one likes; its features are made when they are asked for."""

    def __init__(self, batches, shapes):
        self.batches, self.shapes, self.asked = batches, shapes, 0

    size = (96, 160)

    def fingerprint(self):
        return ""

    def network(self):
        raise NotImplementedError

    steps = blank_batch = open_data = counts = recordings = network

    def held_out(self, device):
        for number in range(self.batches):
            yield {"number": torch.tensor(number)}

    def features(self, model, batch, state):
        return stages(int(batch["number"]), 1, 1, self.shapes), None


class Network(torch.nn.Module):
    def loss(self, batch, state):
        return {"loss": batch["number"].float()}, None


def most_bytes(batches, shapes=SHAPES):
    counted = Bytes()
    with counted:
        found = Endless(batches, shapes).evaluate(Network(), torch.device("cpu"))
    assert found["loss"] == (batches - 1) / 2
    return counted.most


def test_memory_does_not_grow_with_the_data():
    # 240 places a batch: the limit is reached with the eighteenth. Were all kept, ten times the batches would be ten
    # times the bytes.
    assert most_bytes(400) < 1.5 * most_bytes(40)


def test_memory_of_the_papers_network_stays_below_a_gigabyte():
    """Swin-T on frames of 360 x 640, padded to 384 x 640: 3,840 places a frame."""
    shapes = ((96, 96, 160), (192, 48, 80), (384, 24, 40), (768, 12, 20))
    assert most_bytes(4, shapes) < 1e9


def test_spread_tells_collapse_from_variety():
    torch.manual_seed(0)
    varied = spread(torch.randn(500, 16))
    assert varied.std == pytest.approx(1, abs=0.05)
    assert 14 < varied.rank <= 16
    collapsed = spread(torch.ones(500, 16) + 1e-6 * torch.randn(500, 16))
    assert collapsed.std < 1e-3
    assert collapsed.rank < 1.01
    assert spread(torch.ones(1, 4)) == (0, 0)

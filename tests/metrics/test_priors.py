import numpy as np
import pytest

from tespec.core.boxes import make_boxes
from tespec.core.errors import UserError
from tespec.metrics import priors
from tespec.metrics.priors import MAX_BOXES, box_prior, class_prior, depth_prior


def test_the_most_frequent_class_of_each_pixel_wins():
    masks = [
        np.array([[0, 1, 255]], np.uint8),
        np.array([[0, 2, 255]], np.uint8),
        np.array([[1, 2, 255]], np.uint8),
    ]
    counts = class_prior(masks, 3)
    assert counts.argmax(axis=0).tolist() == [[0, 2, 0]]
    assert counts[:, 0, 1].tolist() == [0, 1, 2]
    # A pixel that is never labelled has the counts of all pixels.
    assert counts[:, 0, 2].tolist() == [2, 2, 2]


def test_depth_is_the_median_in_range_of_each_pixel_or_of_all_by_blocks_of_any_size(monkeypatch):
    rng = np.random.default_rng(0)
    maps = np.exp(rng.normal(2, 1.5, (30, 7, 5))).astype(np.float32)
    maps[rng.random(maps.shape) < 0.3] = np.nan
    maps[:, 3] = np.nan
    known = np.where((maps >= 1.978) & (maps <= 80), maps, np.nan)
    expected = np.nanmedian(np.delete(known, 3, 1), axis=0)
    for block in (1, 30 * 5 * 2, priors.VALUES_AT_ONCE):
        monkeypatch.setattr(priors, "VALUES_AT_ONCE", block)
        prior = depth_prior(list(maps), 1.978, 80)
        assert np.array_equal(np.delete(prior, 3, 0), expected)
        assert (prior[3] == np.nanmedian(known)).all()


def test_common_boxes_come_first_with_the_share_of_frames_as_their_score():
    often = make_boxes(np.array([[10.0, 10, 30, 30]]), np.array([1]))
    moved = make_boxes(np.array([[11.0, 10, 31, 30], [60, 60, 70, 80]]), np.array([1, 0]))
    prior = box_prior([often, moved, make_boxes(np.empty((0, 4)), np.empty(0, int))])
    assert prior.label.tolist() == [1, 0]
    assert prior.corners[0].tolist() == [10.5, 10, 30.5, 30]
    assert prior.score.tolist() == pytest.approx([2 / 3, 1 / 3])
    many = make_boxes(
        np.array([[10.0 * x, 0, 10 * x + 8, 8] for x in range(150)]), np.zeros(150, int)
    )
    assert len(box_prior([many]).label) == MAX_BOXES


@pytest.mark.parametrize(
    "count",
    [
        lambda: class_prior([], 3),
        lambda: depth_prior([np.zeros((1, 1), np.float32)], 1, 80),
        lambda: box_prior([]),
    ],
)
def test_nothing_to_count_is_refused(count):
    with pytest.raises(UserError, match="prior"):
        count()

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from tespec.core.errors import UserError
from tespec.metrics import partial_means
from tespec.metrics.depth import NAMES, DepthScorer, frame_errors

SIZE = (4, 5)
DEPTHS = st.one_of(
    st.floats(0.1, 120), st.sampled_from([np.nan, np.inf, 0.0, -1.0, 1.978, 10.0, 20.0, 30.0, 80.0])
)
TRUTHS = st_numpy.arrays(np.float64, (4, *SIZE), elements=DEPTHS)
PREDICTIONS = st_numpy.arrays(np.float64, (4, *SIZE), elements=st.floats(0.01, 300))
RECORDINGS = ("outdoor_day1", "outdoor_day1", "outdoor_night1", "outdoor_day1")
GROUPS = (("moving",), ("standing",), ("moving", "night"), ("moving",))


def errors_of(predicted, truth):
    """Errors of a frame, which tests/published holds to be HMNet's; None without valid pixels."""
    errors = dict(zip(NAMES, frame_errors(predicted, truth, 1.978, 80), strict=True))
    return {name: error for name, error in errors.items() if not np.isnan(error)} or None


def plain_mean(frames):
    """Mean of each error over the frames that have it."""
    frames = [frame for frame in frames if frame is not None]
    return {
        n: np.mean([f[n] for f in frames if n in f])
        for n in {name for frame in frames for name in frame}
    }


def scorer_of(predicted, truth, numbers=range(4)):
    scorer = DepthScorer()
    for number in numbers:
        scorer.update(predicted[number], truth[number], RECORDINGS[number], GROUPS[number])
    return scorer


@given(PREDICTIONS, TRUTHS)
def test_scores_are_means_of_frames_then_of_recordings(predicted, truth):
    scorer = scorer_of(predicted, truth)
    frames = [errors_of(p, t) for p, t in zip(predicted, truth, strict=True)]
    if not any(frames):
        with pytest.raises(UserError):
            scorer.overall()
        return
    recordings, groups = scorer.by("recording"), scorer.by("group")
    for scores, names in ((recordings, [{name} for name in RECORDINGS]), (groups, GROUPS)):
        by_name = {
            n: [f for f, members in zip(frames, names, strict=True) if n in members]
            for n in set().union(*names)
        }
        assert {name: score.metrics() for name, score in scores.items()} == {
            name: pytest.approx(plain_mean(errors), abs=1e-6)
            for name, errors in by_name.items()
            if any(errors)
        }
    expected = plain_mean([score.metrics() for score in recordings.values()])
    assert scorer.overall().metrics() == pytest.approx(expected, abs=1e-6)
    skipped = frames.count(None)
    assert scorer.definition().endswith(f"; {4 - skipped} frames scored, {skipped} skipped")


@given(PREDICTIONS, TRUTHS, st.permutations(range(4)), st.integers(0, 4))
def test_frames_shared_out_in_any_way_give_the_same_scores(predicted, truth, order, cut):
    truth[0, 0, 0] = 10
    single, merged = scorer_of(predicted, truth), DepthScorer()
    merged.merge(
        scorer_of(predicted, truth, numbers).state() for numbers in (order[:cut], order[cut:])
    )
    assert (merged.overall(), merged.definition()) == (single.overall(), single.definition())
    assert [merged.by(kind) for kind in ("recording", "group")] == [
        single.by(kind) for kind in ("recording", "group")
    ]


def test_the_range_of_depths_that_count_is_given_and_said():
    scorer = DepthScorer(min_depth=2.0, max_depth=80.0)
    scorer.update(np.array([[3.0, 4.0]]), np.array([[1.99, 80.5]]), "b")
    with pytest.raises(
        UserError, match=r"depth scores: none of 1 frames has depth from 2 to 80 m; evaluate"
    ):
        scorer.overall()
    scorer.update(np.array([[3.0, 82, 50]]), np.array([[2.0, 80, 80.01]]), "a")
    assert scorer.overall().metrics()["abs"] == pytest.approx(1.5)
    assert scorer.definition().endswith(
        "; valid: true depth from 2 to 80 m; 1 frames scored, 1 skipped"
    )


def test_means_over_fewer_recordings_or_frames_are_counted():
    """A cut-off without pixels has no score, else its mean is over the members that have pixels."""
    scorer = DepthScorer()
    scorer.update(np.array([[15.0, 30]]), np.array([[16.0, 31]]), "day1")
    assert set(scorer.overall().metrics()) == set(NAMES) - {"abs_10"}
    assert scorer.overall().partial == {"abs_10": "0 of 1 recordings"}
    for recording, truth in (("day1", 8.0), ("day2", 25.0)):
        scorer.update(np.array([[9.0]]), np.array([[truth]]), recording, ("moving",))
    assert scorer.by("recording")["day1"].partial == {"abs_10": "1 of 2 frames"}
    assert partial_means(scorer) == (
        "all abs_10: 1 of 2 recordings; all abs_20: 1 of 2 recordings; "
        "moving abs_10: 1 of 2 frames; moving abs_20: 1 of 2 frames"
    )
    scorer.update(np.array([[9.0]]), np.array([[100.0]]), "day3")
    assert scorer.overall().partial["rms"] == "2 of 3 recordings"


@pytest.mark.parametrize(
    ("predicted", "truth", "message"),
    [
        (np.full(SIZE, np.nan), np.full(SIZE, 10.0), "must be finite and positive"),
        (np.full(SIZE, np.inf), np.full(SIZE, np.nan), "must be finite and positive"),
        (np.zeros(SIZE), np.full(SIZE, 10.0), "must be finite and positive"),
        (
            np.ones(SIZE),
            np.ones((5, 4)),
            r"predictions \(4, 5\) and depths \(5, 4\) are not \(H, W\) images",
        ),
        (np.ones((1, *SIZE)), np.ones((1, *SIZE)), "images of equal size"),
    ],
)
def test_predictions_that_are_no_depths_or_have_another_size_are_refused(predicted, truth, message):
    with pytest.raises(ValueError, match=message):
        DepthScorer().update(predicted, truth, "a")

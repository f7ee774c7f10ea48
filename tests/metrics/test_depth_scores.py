import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from tespec.core.errors import UserError
from tespec.metrics.depth import DepthScorer
from tespec.metrics.frames import partial_means

NAMES = ("delta_1", "delta_2", "delta_3", "abs", "rms", "rms_log", "abs_rel", "abs_10", "abs_20", "abs_30")
PERFECT = {name: float(name.startswith("delta")) for name in NAMES}
SIZE = (4, 5)
DEPTHS = st.one_of(st.floats(0.1, 120), st.sampled_from([np.nan, np.inf, 0.0, -1.0, 1.978, 10.0, 20.0, 30.0, 80.0]))
TRUTHS = st_numpy.arrays(np.float64, (4, *SIZE), elements=DEPTHS)
PREDICTIONS = st_numpy.arrays(np.float64, (4, *SIZE), elements=st.floats(0.01, 300))
RECORDINGS = ("outdoor_day1", "outdoor_day1", "outdoor_night1", "outdoor_day1")
GROUPS = (("moving",), ("standing",), ("moving", "night"), ("moving",))


def plain_errors(predicted, truth):
    """Errors of a frame, pixel by pixel; None where no pixel counts."""
    pairs = [(t, p) for t, p in zip(truth.ravel(), predicted.ravel(), strict=True) if 1.978 <= t <= 80]
    if not pairs:
        return None
    ratios = [max(t / p, p / t) for t, p in pairs]
    errors = {f"delta_{k}": np.mean([ratio < 1.25**k for ratio in ratios]) for k in (1, 2, 3)}
    errors["abs"] = np.mean([abs(t - p) for t, p in pairs])
    errors["rms"] = np.mean([(t - p) ** 2 for t, p in pairs]) ** 0.5
    errors["rms_log"] = np.mean([(np.log(t) - np.log(p)) ** 2 for t, p in pairs]) ** 0.5
    errors["abs_rel"] = np.mean([abs(t - p) / t for t, p in pairs])
    for limit in (10, 20, 30):
        near = [abs(t - p) for t, p in pairs if t <= limit]
        if near:
            errors[f"abs_{limit}"] = np.mean(near)
    return errors


def plain_mean(frames):
    """Mean of each error over the frames that have it."""
    frames = [frame for frame in frames if frame is not None]
    names = {name for frame in frames for name in frame}
    return {name: np.mean([frame[name] for frame in frames if name in frame]) for name in names}


def scorer_of(predicted, truth, numbers=range(4)):
    scorer = DepthScorer()
    for number in numbers:
        scorer.update(predicted[number], truth[number], RECORDINGS[number], GROUPS[number])
    return scorer


def one_frame(predicted, truth):
    scorer = DepthScorer()
    scorer.update(np.array([predicted], np.float32), np.array([truth], np.float32), "outdoor_day1")
    return scorer


@given(PREDICTIONS, TRUTHS)
def test_scores_are_those_of_the_plain_definition(predicted, truth):
    scorer = scorer_of(predicted, truth)
    frames = [plain_errors(p, t) for p, t in zip(predicted, truth, strict=True)]
    if not any(frames):
        with pytest.raises(UserError):
            scorer.overall()
        return
    recordings, groups = scorer.by("recording"), scorer.by("group")
    for scores, names in ((recordings, [{name} for name in RECORDINGS]), (groups, GROUPS)):
        for name in set().union(*names):
            own = [frame for frame, each in zip(frames, names, strict=True) if name in each]
            assert (name in scores) == any(own)
            if name in scores:
                assert scores[name].metrics() == pytest.approx(plain_mean(own), abs=1e-6)
    assert scorer.pooled().metrics() == pytest.approx(plain_mean(frames), abs=1e-6)
    overall = scorer.overall()
    assert overall.metrics() == pytest.approx(plain_mean([each.metrics() for each in recordings.values()]), abs=1e-6)
    assert (overall.frames, overall.skipped) == (4 - frames.count(None), frames.count(None))


def test_recordings_count_alike_however_long_they_are():
    truth = np.full((4, *SIZE), 10.0)
    predicted = truth + np.array([1, 2, 6, 3]).reshape(4, 1, 1)
    scorer = scorer_of(predicted, truth)
    assert scorer.overall().metrics()["abs"] == pytest.approx((2 + 6) / 2)
    assert scorer.pooled().metrics()["abs"] == pytest.approx(12 / 4)
    assert scorer.by("recording")["outdoor_day1"].metrics()["abs"] == pytest.approx(2)
    assert scorer.by("group")["moving"].metrics()["abs"] == pytest.approx(10 / 3)


def test_hand_computed_errors():
    # Ratios 1.2, 1.5, 1.9 and 4 against limits of 1.25, 1.5625 and 1.953125.
    scores = one_frame([12, 10, 19, 20], [10, 15, 10, 5]).overall().metrics()
    assert scores == pytest.approx(
        {
            "delta_1": 0.25, "delta_2": 0.5, "delta_3": 0.75,
            "abs": (2 + 5 + 9 + 15) / 4,
            "rms": ((4 + 25 + 81 + 225) / 4) ** 0.5,
            "rms_log": (np.square(np.log([1.2, 1.5, 1.9, 4])).sum() / 4) ** 0.5,
            "abs_rel": (0.2 + 1 / 3 + 0.9 + 3) / 4,
            "abs_10": (2 + 9 + 15) / 3, "abs_20": 31 / 4, "abs_30": 31 / 4,
        },
        rel=1e-6,
    )  # fmt: skip


@given(PREDICTIONS, TRUTHS, st.permutations(range(4)), st.integers(0, 4))
def test_frames_shared_out_in_any_way_give_the_same_scores(predicted, truth, order, cut):
    truth[0, 0, 0] = 10
    whole = scorer_of(predicted, truth)
    merged = DepthScorer()
    merged.merge(scorer_of(predicted, truth, numbers).state() for numbers in (order[:cut], order[cut:]))
    assert merged.overall() == whole.overall()
    assert merged.pooled() == whole.pooled()
    assert merged.by("recording") == whole.by("recording")
    assert merged.by("group") == whole.by("group")
    assert merged.definition() == whole.definition()


def test_frames_without_valid_depth_are_skipped_and_counted():
    scorer = one_frame([10, 10], [11, np.nan])
    for truth in ([np.nan, np.nan], [np.inf, 0], [1.9, 80.5]):
        scorer.update(np.array([[3.0, 4.0]]), np.array([truth]), "outdoor_night1", ("moving",))
    scores = scorer.overall()
    assert (scores.metrics()["abs"], scores.frames, scores.skipped) == (1, 1, 3)
    assert list(scorer.by("recording")) == ["outdoor_day1"]
    assert scorer.by("group") == {}
    assert "; 1 frames scored, 3 skipped; means over fewer: delta_1, " in scorer.definition()


def test_no_valid_depth_at_all_leaves_no_scores():
    with pytest.raises(UserError, match=r"depth scores: none of 1 frames has depth from 1\.978 to 80 m; evaluate"):
        one_frame([3, 3], [np.nan, np.nan]).overall()
    with pytest.raises(UserError, match="none of 0 frames"):
        DepthScorer().pooled()


def test_both_ends_of_the_range_count():
    scorer = DepthScorer(min_depth=2.0, max_depth=80.0)
    scorer.update(np.array([[3.0, 82, 50, 50]]), np.array([[2.0, 80, 1.99, 80.01]]), "a")
    assert scorer.overall().metrics()["abs"] == pytest.approx(1.5)
    assert "valid: true depth from 2 to 80 m" in scorer.definition()


def test_means_over_fewer_recordings_or_frames_are_counted():
    """A cut-off without any pixel is missing; one without pixels in some members has another mean than its siblings."""
    scorer = one_frame([15, 30], [16, 31])
    assert set(scorer.overall().metrics()) == set(NAMES) - {"abs_10"}
    assert scorer.overall().partial == "abs_10: 0 of 1 recordings"
    for recording, truth in (("outdoor_day1", 8.0), ("outdoor_day2", 25.0)):
        scorer.update(np.array([[9.0]]), np.array([[truth]]), recording, ("moving",))
    assert scorer.overall().partial == "abs_10, abs_20: 1 of 2 recordings"
    assert scorer.by("recording")["outdoor_day1"].partial == "abs_10: 1 of 2 frames"
    assert partial_means(scorer) == (
        "overall: abs_10, abs_20: 1 of 2 recordings; moving: abs_10, abs_20: 1 of 2 frames"
    )
    scorer.update(np.array([[9.0]]), np.array([[9.0]]), "outdoor_day2")
    assert partial_means(scorer) == "moving: abs_10, abs_20: 1 of 2 frames"


@pytest.mark.parametrize(
    ("predicted", "truth", "message"),
    [
        (np.full(SIZE, np.nan), np.full(SIZE, 10.0), "not finite and above zero"),
        (np.full(SIZE, np.inf), np.full(SIZE, np.nan), "not finite and above zero"),
        (np.zeros(SIZE), np.full(SIZE, 10.0), "not finite and above zero"),
        (np.full(SIZE, -3.0), np.full(SIZE, 10.0), "not finite and above zero"),
        (np.ones(SIZE), np.ones((5, 4)), r"predictions \(4, 5\) and depths \(5, 4\) are not two equal images"),
        (np.ones((1, *SIZE)), np.ones((1, *SIZE)), "are not two equal images"),
    ],
)
def test_what_is_no_depth_is_refused(predicted, truth, message):
    with pytest.raises(ValueError, match=message):
        DepthScorer().update(predicted, truth, "a")


@pytest.mark.parametrize("limits", [(0, 80), (-1, 80), (80, 80), (80, 2), (np.nan, 80)])
def test_what_is_no_range_of_depths_is_refused(limits):
    with pytest.raises(ValueError, match="no range above zero"):
        DepthScorer(*limits)

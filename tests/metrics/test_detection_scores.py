import numpy as np
import pytest
from box_cases import coco_scores, random_frames
from hypothesis import given, settings
from hypothesis import strategies as st

from tespec.core.boxes import make_boxes
from tespec.core.errors import UserError
from tespec.metrics.detection import BoxFilter, DetectionScorer
from tespec.metrics.frames import partial_means

NAMES = ("car", "pedestrian", "two-wheeler")
ALL = BoxFilter(min_diagonal=0, min_side=0, skip_us=0)
GEN1 = BoxFilter(min_diagonal=30, min_side=10)
LATE = 1_000_000  # us


def scorer_of(frames, filters=ALL, names=NAMES):
    scorer = DetectionScorer(names, filters, "class confidence from 0.001 on")
    for frame in frames:
        scorer.update(*frame)
    return scorer


def boxes(*corners, label=0, score=None):
    return make_boxes(np.array(corners).reshape(-1, 4), np.full(len(corners), label), score)


def one_frame(predicted, truth, filters=ALL):
    return scorer_of([(predicted, truth, "a", LATE, ())], filters)


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 2**32), st.integers(2, 25), st.sampled_from([0, 0, 3, 10]))
def test_scores_are_those_of_pycocotools(seed, frames, levels):
    made = random_frames(seed, frames, len(NAMES), levels=levels)
    # COCO ranks equal scores as they come, here by recording and time.
    ranked = sorted(made, key=lambda frame: (frame.recording, frame.time_us))
    counted = [(each.predicted, each.truth) for each in ranked if len(each.truth.label)]
    expected = coco_scores(counted, len(NAMES))
    assert scorer_of(made).overall().metrics() == pytest.approx(expected, abs=1e-6)


def test_a_class_without_ground_truth_is_left_out_of_the_mean():
    made = random_frames(3, 30, len(NAMES), missing=(1,))
    scores = scorer_of(made).overall()
    counted = [(each.predicted, each.truth) for each in made if len(each.truth.label)]
    assert scores.metrics() == pytest.approx(coco_scores(counted, len(NAMES)), abs=1e-6)
    assert list(scores.classes) == ["car", "two-wheeler"]
    assert scores.map == pytest.approx(np.mean(list(scores.classes.values())))
    assert scores.partial == "map, ap50, ap75: 2 of 3 classes"
    assert scorer_of(made).definition().endswith("; without ground truth, so not in the means: pedestrian")
    assert "moving: map, ap50, ap75: 2 of 3 classes" in partial_means(scorer_of(made))
    assert partial_means(scorer_of(random_frames(3, 30, len(NAMES)))) == ""


def test_groups_and_recordings_are_scored_on_their_own_frames():
    made = random_frames(11, 40, len(NAMES))
    scorer = scorer_of(made)
    for kind, member in (("recording", lambda f: (f.recording,)), ("group", lambda f: f.groups)):
        scores = scorer.by(kind)
        assert set(scores) == {name for frame in made for name in member(frame)}
        for name, each in scores.items():
            chosen = [frame for frame in made if name in member(frame)]
            assert each == scorer_of(chosen).overall()


@settings(deadline=None, max_examples=15)
@given(st.integers(0, 2**32), st.lists(st.integers(0, 3), min_size=20, max_size=20), st.randoms(use_true_random=False))
def test_frames_shared_out_in_any_way_give_the_same_scores(seed, owners, random):
    made = random_frames(seed, 20, len(NAMES), levels=4)
    whole = scorer_of(made)
    shares = [[frame for frame, owner in zip(made, owners, strict=True) if owner == each] for each in range(4)]
    for share in shares:
        random.shuffle(share)
    merged = scorer_of(shares[0])
    merged.merge(scorer_of(share).state() for share in shares[1:])
    assert merged.overall() == whole.overall()
    assert merged.by("recording") == whole.by("recording")
    assert merged.by("group") == whole.by("group")
    assert merged.definition() == whole.definition()


def test_one_box_of_two_found_at_an_overlap_of_three_quarters_and_more():
    # Overlap 80 of 100 px: found up to a threshold of 0.80, 7 of 10; half of the boxes are recalled, which is 51 of
    # the 101 recall points.
    truth = boxes((0, 0, 10, 10), (50, 50, 60, 60))
    scores = one_frame(boxes((0, 0, 8, 10), score=[0.9]), truth).overall()
    share = 100 * 51 / 101
    assert scores.metrics() == pytest.approx({"map": 0.7 * share, "ap50": share, "ap75": share})


def test_a_wrong_box_of_a_higher_score_halves_the_precision():
    predicted = boxes((0, 0, 10, 10), (70, 70, 90, 90), score=[0.5, 0.6])
    assert one_frame(predicted, boxes((0, 0, 10, 10))).overall().map == pytest.approx(50)
    behind = boxes((0, 0, 10, 10), (70, 70, 90, 90), score=[0.5, 0.4])
    assert one_frame(behind, boxes((0, 0, 10, 10))).overall().map == pytest.approx(100)


def test_no_predictions_are_0():
    scores = one_frame(boxes(), boxes((0, 0, 10, 10))).overall()
    assert scores.metrics() == {"map": 0, "ap50": 0, "ap75": 0}
    assert (scores.frames, scores.truths, scores.predictions) == (1, 1, 0)


def test_predictions_where_nothing_is_labelled_do_not_count():
    right, wrong = boxes((0, 0, 50, 50)), boxes((70, 70, 110, 110))
    frames = [(right, right, "a", LATE, ()), (wrong, boxes(), "a", 2 * LATE, ()), (wrong, wrong, "a", 400_000, ())]
    scores = scorer_of(frames, GEN1).overall()
    assert (scores.map, scores.frames, scores.predictions) == (pytest.approx(100), 1, 1)


def test_only_the_100_best_of_a_class_count():
    wrong = np.tile([70, 70, 90, 90], (100, 1))
    many = make_boxes(np.vstack([[0, 0, 10, 10], wrong]), np.zeros(101, int), np.r_[0.1, np.full(100, 0.9)])
    assert one_frame(many, boxes((0, 0, 10, 10))).overall().map == 0
    other = many._replace(label=np.r_[0, np.ones(100, int)])
    assert one_frame(other, boxes((0, 0, 10, 10))).overall().map == pytest.approx(100)


def test_boxes_of_any_area_count():
    sides = (0.5, 5, 50, 500, 5000)
    frames = [(truth, truth, "a", LATE + number, ()) for number, truth in enumerate(boxes((0, 0, a, a)) for a in sides)]
    scores = scorer_of([*frames, (boxes(), frames[-1][1], "b", LATE, ())]).overall()
    assert scores.map == pytest.approx(100 * 84 / 101)  # 5 of 6 boxes: recall points 0 to 0.83


def test_frames_without_ground_truth_leave_no_scores():
    scorer = one_frame(boxes((0, 0, 50, 50)), boxes((0, 0, 9, 50)), GEN1)
    message = "no labelled frame is left after the filters .time > 0.5 s, diagonal >= 30 px, width and height >= 10 px"
    for empty in (scorer, scorer_of([], GEN1)):
        with pytest.raises(UserError, match=message):
            empty.overall()
        assert empty.by("recording") == {}


def test_the_definition_names_filters_classes_and_counts():
    scorer = DetectionScorer(NAMES, GEN1, "class confidence from 0.001 on")
    text = scorer.definition()
    for part in ("IoU 0.50 to 0.95", "100 detections", "time > 0.5 s, diagonal >= 30 px, width and height >= 10 px",
                 "car, pedestrian, two-wheeler", "class confidence from 0.001 on"):  # fmt: skip
        assert part in text
    assert text.endswith("from 0.001 on")
    large = boxes((0, 0, 50, 50), (0, 0, 40, 40))
    scorer.update(large, large, "a", LATE)
    scorer.update(large, large, "a", 0)
    assert "; 1 of 2 labelled frames scored, with 2 boxes; without ground truth" in scorer.definition()


@pytest.mark.parametrize(
    ("predicted", "truth", "message"),
    [
        (boxes((0, 0, 9, 9), label=3), boxes(), "predictions of a at 7 us: labels from 3 to 3 for 3 classes"),
        (boxes(), boxes((0, 0, 9, 9), label=-1), "ground truth of a at 7 us: labels from -1 to -1 for 3 classes"),
        (boxes((0, 0, 9, 9), score=[np.nan]), boxes(), "predictions of a at 7 us: scores that are not finite"),
        (boxes((0, 0, np.nan, 9)), boxes(), "predictions of a at 7 us: corners that are not finite"),
        (boxes(), boxes((0, 0, np.inf, 9)), "ground truth of a at 7 us: corners that are not finite"),
    ],
)
def test_what_is_no_box_is_refused(predicted, truth, message):
    with pytest.raises(ValueError, match=message):
        scorer_of([]).update(predicted, truth, "a", 7)


def test_a_frame_is_scored_once():
    scorer = one_frame(boxes(), boxes())
    with pytest.raises(ValueError, match="a at 1000000 us is scored twice"):
        scorer.update(boxes(), boxes(), "a", LATE)
    with pytest.raises(ValueError, match="a at 1000000 us is scored twice"):
        scorer.merge([one_frame(boxes(), boxes()).state()])

"""Average precision against pycocotools, and the filters and limits of RVT's protocol."""

import contextlib
import io
import tracemalloc
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from tespec.core.boxes import Boxes, make_boxes
from tespec.core.errors import UserError
from tespec.metrics import partial_means
from tespec.metrics.detection import (
    BoxFilter,
    DetectionScorer,
    average_precision,
    group_boxes,
)

NAMES = ("car", "pedestrian", "two-wheeler")
ALL, GEN1 = BoxFilter(0, 0, 0), BoxFilter(min_diagonal=30, min_side=10)
LATE = 1_000_000  # us


class Frame(NamedTuple):
    predicted: Boxes
    truth: Boxes
    recording: str = "a"
    time_us: int = LATE
    groups: tuple[str, ...] = ()


def boxes(*corners, label=0, score=None):
    return make_boxes(np.array(corners).reshape(-1, 4), np.broadcast_to(label, len(corners)), score)


def scorer_of(*frames, filters=ALL, names=NAMES):
    scorer = DetectionScorer(names, filters)
    for frame in frames:
        scorer.update(*frame)
    return scorer


def random_boxes(rng, count, classes):
    """Random boxes with integer sides and few distinct scores, so ties are common."""
    begin = rng.integers(-3, 8, (count, 2))
    corners = np.concatenate([begin, begin + rng.integers(1, 9, (count, 2))], axis=1).astype(float)
    return make_boxes(corners, rng.integers(0, classes, count), rng.integers(0, 5, count) / 4)


def random_frames(seed, count, classes=3, most=15):
    """Random sorted frames of three recordings; at least one has ground truth."""
    rng = np.random.default_rng(seed)
    made = []
    for number in range(1, count + 1):
        predicted, truth = (random_boxes(rng, rng.integers(limit), classes) for limit in (most, 6))
        recording, groups = (
            f"recording {rng.integers(3)}",
            ("moving",) if rng.random() < 0.5 else ("standing", "night"),
        )
        made.append(Frame(predicted, truth, recording, number, groups))
    made[0] = made[0]._replace(truth=random_boxes(rng, 3, classes))
    return sorted(made, key=lambda frame: (frame.recording, frame.time_us))


def by_pycocotools(frames, classes):
    """Scores in percent, and AP of the classes with ground truth, by pycocotools' defaults."""
    scored = [frame for frame in frames if len(frame.truth.label)]

    def coco(labels):
        made, annotations = COCO(), []
        for image, boxes in enumerate(labels):
            for (left, top, right, bottom), label, score in zip(*boxes, strict=True):
                box = [left, top, right - left, bottom - top]
                annotations.append(
                    {
                        "id": len(annotations) + 1,
                        "image_id": image,
                        "category_id": label,
                        "bbox": box,
                        "area": box[2] * box[3],
                        "score": score,
                        "iscrowd": 0,
                    }
                )
        images, categories = (
            [{"id": number} for number in range(count)] for count in (len(labels), classes)
        )
        made.dataset = {"images": images, "categories": categories, "annotations": annotations}
        made.createIndex()
        return made

    with contextlib.redirect_stdout(io.StringIO()):
        truth, predicted = (
            coco([getattr(frame, kind) for frame in scored]) for kind in ("truth", "predicted")
        )
        evaluation = COCOeval(truth, predicted, "bbox")
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    # all areas, at most 100 boxes
    of_class = evaluation.eval["precision"][:, :, :, 0, -1].mean(axis=(0, 1))
    return dict(zip(("map", "ap50", "ap75"), 100 * evaluation.stats[:3], strict=True)) | {
        "classes": {number: 100 * ap for number, ap in enumerate(of_class) if ap >= 0}
    }


@settings(deadline=None, max_examples=60)
@given(
    st.integers(0, 2**32),
    st.integers(1, 15),
    st.sampled_from([1, 3]),
    st.sampled_from([3, 15, 120]),
)
def test_scores_are_those_of_pycocotools(seed, count, classes, most):
    """Tied scores and overlaps, any area, more than 100 boxes, and frames without boxes."""
    frames, names = random_frames(seed, count, classes, most), NAMES[:classes]
    scores, expected = scorer_of(*frames, names=names).overall(), by_pycocotools(frames, classes)
    of_class = {names.index(name): ap for name, ap in scores.classes.items()}
    assert scores.metrics() | {"classes": of_class} == {
        name: pytest.approx(score) for name, score in expected.items()
    }


def test_means_over_fewer_classes_say_so():
    frames = [
        frame._replace(truth=frame.truth.keep(frame.truth.label != 1))
        for frame in random_frames(3, 30)
    ]
    scorer = scorer_of(*frames)
    assert list(scorer.overall().classes) == ["car", "two-wheeler"]
    assert scorer.overall().partial == dict.fromkeys(("map", "ap50", "ap75"), "2 of 3 classes")
    assert partial_means(scorer).startswith("all map: 2 of 3 classes; all ap50: 2 of 3 classes; ")
    assert "; moving map: 2 of 3 classes; " in partial_means(scorer)
    assert scorer.definition().endswith("; without ground truth, so not in the means: pedestrian")
    assert partial_means(scorer_of(*random_frames(3, 30))) == ""


@settings(deadline=None, max_examples=15)
@given(
    st.integers(0, 2**32),
    st.lists(st.integers(0, 3), min_size=20, max_size=20),
    st.randoms(use_true_random=False),
)
def test_frames_shared_out_in_any_way_give_the_same_scores(seed, owners, random):
    frames = random_frames(seed, 20)
    single, merged = scorer_of(*frames), scorer_of()
    for owner in range(4):
        part = [frame for frame, assigned in zip(frames, owners, strict=True) if assigned == owner]
        random.shuffle(part)
        merged.merge([scorer_of(*part).state()])
    assert (merged.overall(), merged.definition()) == (single.overall(), single.definition())
    for kind, member in (("recording", lambda f: (f.recording,)), ("group", lambda f: f.groups)):
        assert merged.by(kind) == single.by(kind)
        for name, scores in single.by(kind).items():
            assert scores == scorer_of(*(f for f in frames if name in member(f))).overall()


def test_only_frames_with_ground_truth_after_the_filters_count():
    right, wrong = boxes((0, 0, 50, 50)), boxes((70, 70, 110, 110))
    frames = [
        Frame(right, right),
        Frame(wrong, boxes(), time_us=2 * LATE),
        Frame(wrong, wrong, time_us=500_000),
    ]
    scorer = scorer_of(*frames, filters=GEN1)
    assert scorer.overall().values["map"] == pytest.approx(100)
    text = scorer.definition()
    limits = "time > 0.5 s, diagonal >= 30 px, width and height >= 10 px"
    counted = "; 1 of 3 labelled frames scored, with 1 boxes"
    for part in ("IoU 0.50 to 0.95", limits, ", ".join(NAMES), counted):
        assert part in text
    for empty in (scorer_of(*frames[1:], filters=GEN1), scorer_of(filters=GEN1)):
        with pytest.raises(
            UserError, match=rf"no labelled frame is left after the filters \({limits}\)"
        ):
            empty.overall()
        assert empty.by("recording") == {}


SIDES = [0, 9.9995, 9.999999, 10, 10.0005, 17.9, 18, 23.9995, 24, 29.9999, 30, 40]
X_Y_W_H = st.tuples(st.floats(-20, 300), st.floats(-20, 240), *[st.sampled_from(SIDES)] * 2)


@given(st.lists(X_Y_W_H, max_size=12), st.sampled_from([(30, 10), (15, 5), (0, 0)]))
def test_sizes_at_the_limits_are_decided_in_float32_as_the_protocol_decides(sizes, limits):
    candidates = boxes(*((x, y, x + w, y + h) for x, y, w, h in sizes))
    expected = []
    for left, top, right, bottom in candidates.corners:
        width = np.float32(right - left)
        height = np.float32(bottom - top)
        diagonal = np.float32(width * width) + np.float32(height * height)
        expected.append(
            min(width, height) >= limits[1]
            and diagonal >= limits[0] ** 2
            and width > 0
            and height > 0
        )
    assert BoxFilter(*limits).keeps(candidates).tolist() == expected


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (
            Frame(boxes((0, 0, 9, 9), label=3), boxes()),
            "predicted boxes of a at 1000000 us: a label outside the 3",
        ),
        (Frame(boxes(), boxes((0, 0, 9, 9), label=-1)), "truth boxes of a at 1000000 us: a label"),
        (
            Frame(boxes((0, 0, 9, 9), score=[np.nan]), boxes()),
            "predicted boxes of a .* or an invalid box or score",
        ),
        (
            Frame(boxes((0, 0, 9, 9), score=[-0.1]), boxes()),
            "predicted boxes of a .* or an invalid box or score",
        ),
        (
            Frame(boxes(), boxes((0, 0, np.inf, 9))),
            "truth boxes of a .* or an invalid box or score",
        ),
    ],
)
def test_what_is_no_box_is_refused(frame, message):
    with pytest.raises(ValueError, match=message):
        scorer_of(frame).overall()


def test_many_predictions_take_little_memory():
    frames, each = 500, 60
    rng = np.random.default_rng(0)
    predicted = random_boxes(rng, frames * each, 1)
    truth = random_boxes(rng, frames, 1)
    grouped = group_boxes(predicted, np.repeat(np.arange(frames), each), frames, 100)
    targets = group_boxes(truth, np.arange(frames), frames)
    average_precision(targets, grouped)  # compiles
    tracemalloc.start()
    average_precision(targets, grouped)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100 * frames * each  # bytes


def test_a_frame_that_is_scored_twice_is_refused():
    frame, scorer = (
        Frame(boxes((0, 0, 50, 50)), boxes((0, 0, 50, 50))),
        DetectionScorer(NAMES, ALL),
    )
    scorer.merge(
        [scorer_of(frame, frame._replace(time_us=2 * LATE)).state(), scorer_of(frame).state()]
    )
    with pytest.raises(ValueError, match="a at 1000000 us is scored twice"):
        scorer.overall()

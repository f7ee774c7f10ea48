import re
import subprocess
import sys

import tespec.core.compat  # noqa: F401  # before mmcv

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from mmcv.ops import batched_nms, nms, soft_nms

from tespec.core.paths import REPOSITORY


def boxes_and_scores(count, seed, levels):
    """Random overlapping boxes, and scores of at most `levels` values (None: no ties)."""
    rng = np.random.default_rng(seed)
    corner = rng.uniform(0, 60, (count, 2))
    boxes = np.concatenate([corner, corner + rng.uniform(0, 40, (count, 2))], axis=1)
    scores = (rng.permutation(count) if levels is None else rng.integers(0, levels, count)) / max(
        count, 1
    )
    return torch.tensor(boxes, dtype=torch.float32), torch.tensor(scores, dtype=torch.float32)


def plain_nms(boxes, scores, threshold, offset):
    """Indices selected by greedy NMS, computed pair by pair."""

    def overlap(a, b):
        sides = torch.minimum(a[2:], b[2:]) - torch.maximum(a[:2], b[:2]) + offset
        shared = sides.clamp(min=0).prod()
        return shared / ((a[2:] - a[:2] + offset).prod() + (b[2:] - b[:2] + offset).prod() - shared)

    selected = []
    for i in sorted(range(len(scores)), key=lambda i: -scores[i].item()):  # stable: ties by index
        if not any(overlap(boxes[i], boxes[j]) > threshold for j in selected):
            selected.append(i)
    return selected


@given(
    count=st.integers(0, 12),
    seed=st.integers(0, 10_000),
    levels=st.sampled_from([None, 1, 3]),
    threshold=st.sampled_from([0.0, 0.3, 0.65, 1.0]),
    offset=st.sampled_from([0, 1]),
)
def test_nms_equals_the_plain_greedy_rule(count, seed, levels, threshold, offset):
    boxes, scores = boxes_and_scores(count, seed, levels)
    assert nms(boxes, scores, threshold, offset)[1].tolist() == plain_nms(
        boxes, scores, threshold, offset
    )
    empty = torch.full((2, 4), 3.0)  # boxes without area: their IoU is 0 / 0
    assert nms(empty, torch.tensor([0.5, 0.9]), 0.5)[1].tolist() == [1, 0]


def test_mmdet_s_nms_by_class_is_that_of_each_class():
    boxes, scores = boxes_and_scores(40, seed=1, levels=None)
    classes = torch.arange(40) % 2
    selected = batched_nms(boxes, scores, classes, {"type": "nms", "iou_threshold": 0.5})[1]
    assert selected.tolist() == plain_nms(boxes + 1000 * classes[:, None], scores, 0.5, 0)


@pytest.mark.skipif(
    hasattr(sys.modules["mmcv._ext"], "__file__"), reason="mmcv has its compiled operators here"
)
def test_any_other_operator_raises_when_called():
    boxes, scores = boxes_and_scores(3, seed=0, levels=None)
    with pytest.raises(
        NotImplementedError, match="'softnms' needs compiled operators, which mmcv-lite lacks"
    ):
        soft_nms(boxes, scores)


@pytest.mark.slow
def test_everything_imports_in_a_new_process_without_a_word():
    code = (
        "import tespec.core.compat, timm.models, mmengine.optim, mmcv.ops, mmdet.models, "
        "mmseg.models, torchvision"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert (result.returncode, result.stderr) == (0, "")


def test_whoever_imports_what_needs_the_stand_ins_imports_them_first():
    """The order of imports must not matter; a package imports the stand-ins for its modules."""
    line = re.compile(
        r"^(?:import|from) (tespec\.core\.compat|timm|torchvision|mmcv|mmdet|mmseg)\b", re.MULTILINE
    )
    for room in ("tespec", "baselines", "benchmarks"):
        for path in (REPOSITORY / room).rglob("*.py"):
            found = line.findall(path.with_name("__init__.py").read_text() + path.read_text())
            assert (found or ["tespec.core.compat"])[0] == "tespec.core.compat", path

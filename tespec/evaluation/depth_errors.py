"""Errors of one depth map, as HMNet measures them."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

CUT_OFFS = (10, 20, 30)  # m
NAMES = ("delta_1", "delta_2", "delta_3", "abs", "rms", "rms_log", "abs_rel", *(f"abs_{m}" for m in CUT_OFFS))

ERRORS = (
    "delta_1, delta_2, delta_3: share of pixels with max(truth / predicted, predicted / truth) below 1.25, 1.25^2, "
    "1.25^3; abs: mean |truth - predicted| in m; rms: root of its mean square in m; rms_log: the same of natural "
    "logarithms; abs_rel: mean |truth - predicted| / truth; "
    f"{', '.join(f'abs_{m}' for m in CUT_OFFS)}: abs of the pixels with a true depth of at most so many metres"
)


def frame_errors(
    predicted: NDArray[np.floating], truth: NDArray[np.floating], min_depth: float, max_depth: float
) -> NDArray[np.float64]:
    """Errors of one frame over the pixels whose true depth lies in [min_depth, max_depth], both ends included.

    Source: hamarh/HMNet_pth, experiments/depth/scripts/eval_depth.py.

    Args:
        predicted: (H, W) m.
        truth: (H, W) m, NaN where it is not known.
        min_depth: m.
        max_depth: m.

    Returns:
        (10,) errors in the order of `NAMES`; NaN where no pixel counts.

    Raises:
        ValueError: shapes differ, or a prediction is not finite and above zero.
    """
    if predicted.ndim != 2 or predicted.shape != truth.shape:
        raise ValueError(f"predictions {predicted.shape} and depths {truth.shape} are not two equal images")
    if not (np.isfinite(predicted) & (predicted > 0)).all():
        raise ValueError("predicted depths that are not finite and above zero")
    kept = (truth >= min_depth) & (truth <= max_depth)
    if not kept.any():
        return np.full(len(NAMES), np.nan)
    true, found = truth[kept].astype(np.float64), predicted[kept].astype(np.float64)
    error, ratio = np.abs(true - found), np.maximum(true / found, found / true)
    nearer = [error[true <= limit] for limit in CUT_OFFS]
    return np.array(
        [
            *((ratio < 1.25**power).mean() for power in (1, 2, 3)),
            error.mean(),
            math.sqrt(np.square(error).mean()),
            math.sqrt(np.square(np.log(ratio)).mean()),
            (error / true).mean(),
            *(each.mean() if each.size else np.nan for each in nearer),
        ]
    )

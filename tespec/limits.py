"""Which values settings may have, checked before anything is read or built."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from typing import Any

from tespec.errors import UserError
from tespec.settings import SAMPLING, Optimisation

ABOVE_ZERO, FROM_ZERO, SHARE, FACTOR = (
    (0.0, False, math.inf),
    (0.0, True, math.inf),
    (0.0, True, 1.0),
    (1.0, True, math.inf),
)

# A block that is always dropped has no scale.
RATE = (0.0, True, 0.9)

# Far beyond any head there is: a network is built from what a file from somebody else says.
WIDTH, DEPTH = (1.0, True, 4096.0), (0.0, True, 64.0)

# Setting: lowest value, whether it is allowed itself, and highest value.
RANGES = {
    "augmentation.flip": SHARE,
    "augmentation.zoom": SHARE,
    "augmentation.zoom_in": FACTOR,
    "augmentation.zoom_in_share": SHARE,
    "augmentation.zoom_out": FACTOR,
    "drop_path": RATE,
    "head.alpha": ABOVE_ZERO,
    "head.channels": WIDTH,
    "head.dropout": SHARE,
    "head.gradient_weight": FROM_ZERO,
    "head.max_depth": ABOVE_ZERO,
    "head.min_depth": ABOVE_ZERO,
    "head.min_diagonal": FROM_ZERO,
    "head.min_side": FROM_ZERO,
    "head.neck_blocks": DEPTH,
    "head.score_threshold": SHARE,
    "head.si_lambda": SHARE,
    "head.si_weight": FROM_ZERO,
    "head.skip_ms": FROM_ZERO,
    "objective.mask.ratio": SHARE,
    "objective.patch_eps": FROM_ZERO,
    "objective.target.alpha": FROM_ZERO,
    "objective.target.contrast": ABOVE_ZERO,
    "objective.target.norm_events": ABOVE_ZERO,
    "objective.visible_weight": FROM_ZERO,
    "optimisation.clip.at": ABOVE_ZERO,
    "optimisation.end_divisor": ABOVE_ZERO,
    "optimisation.patch_embed_lr": ABOVE_ZERO,
    "optimisation.peak_lr": ABOVE_ZERO,
    "optimisation.start_divisor": ABOVE_ZERO,
    "optimisation.warmup_steps": FROM_ZERO,
    "optimisation.weight_decay.end": FROM_ZERO,
    "optimisation.weight_decay.start": FROM_ZERO,
    "protocol.max_width_share": SHARE,
    "protocol.min_diagonal": FROM_ZERO,
    "protocol.min_side": FROM_ZERO,
    "protocol.period_ms": ABOVE_ZERO,
    "window_ms": ABOVE_ZERO,
}
CHOICES = {
    "downsample.keep": ("nearest", "all"),
    "optimisation.clip.by": ("value", "norm", "none"),
    "optimisation.non_finite": ("stop", "skip"),
    "optimisation.optimizer": ("Adam", "AdamW"),
    "optimisation.precision": ("auto", "fp32", "bf16", "fp16"),
    "optimisation.schedule": ("linear", "cosine"),
    "optimisation.weight_decay.exempt": ("vectors", "positions"),
    "rule": ("edges", "rvt"),
    "sampling": tuple(SAMPLING),
}


def check_limits(facts: Mapping[str, Any], prefix: str = "") -> None:
    """Refuse nested settings that are out of range or not among the choices.

    Raises:
        UserError: names the setting, its value and what it may be.
    """
    for key, value in facts.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            check_limits(value, f"{name}.")
        elif name in CHOICES:
            for each in value if isinstance(value, list) else [value]:
                if each not in CHOICES[name]:
                    raise UserError(name, f"unknown value {each!r}", f"choose from {', '.join(CHOICES[name])}")
        elif name in RANGES and value is not None:
            for number in value if isinstance(value, list) else [value]:
                _check_range(name, number)


def require_warmup(settings: Optimisation) -> None:
    """Refuse a warm-up that leaves no step after it.

    Raises:
        UserError: it does.
    """
    steps, warmup = settings.steps, settings.warmup_steps
    if warmup and warmup >= steps:
        what = f"{warmup} steps of warm-up leave none of the {steps} of optimisation.steps"
        raise UserError("optimisation.warmup_steps", what, f"set it below {steps} as well")


def _check_range(name: str, number: Any) -> None:
    if isinstance(number, bool) or not isinstance(number, int | float):
        raise UserError(name, f"{number!r} is no number", "give a number")
    lowest, included, highest = RANGES[name]
    inside = lowest <= number <= highest and (included or number != lowest)
    # A whole number may be larger than any float.
    if not inside or not -sys.float_info.max <= number <= sys.float_info.max:
        start = f"from {lowest:g}" if included else f"above {lowest:g}"
        end = "" if math.isinf(highest) else f" to {highest:g}"
        shown = f"{number:g}" if isinstance(number, float) else str(number)[:20]
        raise UserError(name, f"{shown} is out of range", f"give a number {start}{end}")

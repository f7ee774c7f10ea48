"""Learning rates and weight decay as pure functions of the step, so that a resumed run needs no scheduler state."""

from __future__ import annotations

import math

from tespec.errors import UserError
from tespec.settings import Optimisation

SCHEDULES = ("linear", "cosine")


def learning_rate(settings: Optimisation, step: int) -> float:
    """Learning rate of `step` (0-based): linear warm-up to the peak, then a linear or cosine fall.

    It starts at `peak_lr / start_divisor` (c1) and ends, at the last step, at `peak_lr / end_divisor` (c2), both
    relative to the peak (paper, appendix "Implementation Settings").

    Raises:
        UserError: the schedule is not one of `SCHEDULES`.
    """
    if settings.schedule not in SCHEDULES:
        raise UserError(
            "optimisation.schedule",
            f"unknown value {settings.schedule!r}",
            f"choose from {', '.join(SCHEDULES)}",
        )
    peak = settings.peak_lr
    start, end = peak / settings.start_divisor, peak / settings.end_divisor
    warmup = min(settings.warmup_steps, settings.steps)
    if step < warmup:
        return start + (peak - start) * step / warmup
    fall = (step - warmup) / max(1, settings.steps - 1 - warmup)
    if settings.schedule == "cosine":
        fall = (1 - math.cos(math.pi * fall)) / 2
    return peak + (end - peak) * fall


def weight_decay(settings: Optimisation, step: int) -> float:
    """Weight decay of `step` (0-based): half a cosine from the start to the end of the training, warm-up included.

    As in Yan98/Event-Camera-Data-Dense-Pre-training, trainer/pretrain_trainer.py; constant where both ends are equal.
    """
    decay = settings.weight_decay
    return decay.end + (decay.start - decay.end) * (1 + math.cos(math.pi * step / settings.steps)) / 2

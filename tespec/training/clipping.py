"""Gradients kept from being too large."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn
from torch.nn.utils import clip_grad_norm_, clip_grad_value_

from tespec.settings import Clip


def clip(parameters: Sequence[nn.Parameter], rule: Clip) -> None:
    """Clip the gradients in place; asks the device for nothing."""
    if rule.at is None:
        return
    if rule.by == "norm":
        clip_grad_norm_(parameters, rule.at)
    elif rule.by == "value":
        clip_grad_value_(parameters, rule.at)

"""Losses in float32, whatever the network around them computes in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
HALVES = (torch.float16, torch.bfloat16)


def in_fp32(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """`function` outside of autocast, on float32 copies of what it is given in half precision.

    Every loss goes through it: under autocast a matrix product or a convolution rounds to 8 bits even what comes in
    float32, which leaves little of cosines that are divided by 0.04, or of the slopes of a smooth residual. Tensors are
    found in the arguments and in the lists, tuples and dicts among them.
    """

    @wraps(function)
    def computed(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        with ExitStack() as outside:
            for kind in {tensor.device.type for tensor in _tensors((args, kwargs))}:
                if torch.amp.is_autocast_available(kind):
                    outside.enter_context(torch.autocast(kind, enabled=False))
            return function(*_single(args), **_single(kwargs))

    return computed


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple, dict)):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _tensors(each)


def _single(value: Any) -> Any:
    """The same with tensors in half precision as float32."""
    if isinstance(value, Tensor):
        return value.float() if value.dtype in HALVES else value
    if isinstance(value, dict):
        return {key: _single(each) for key, each in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(_single, value))
    return type(value)(map(_single, value)) if isinstance(value, (list, tuple)) else value

"""A convolution of few input channels, repeated until it takes the channels of a histogram."""

from __future__ import annotations

from torch import Tensor


def repeat_channels(weight: Tensor, channels: int, rescale: bool = False) -> Tensor:
    """Weight (out, k, h, w) repeated ceil(channels / k) times along its input and cut to `channels`.

    An image of k channels that is repeated and cut in the same way then gives the sum over all repetitions; `rescale`
    multiplies by k / channels, so that it gives what it gave before where `channels` is a multiple of k. The paper
    repeats and does not say that it rescales (appendix C, "Recurrent Backbone"), so False is its way.

    Raises:
        ValueError: the weight takes more than `channels` already.
    """
    given = weight.shape[1]
    if given > channels:
        raise ValueError(f"{given} input channels do not fit {channels}")
    if given == channels:
        return weight
    repeated = weight.repeat(1, -(-channels // given), 1, 1)[:, :channels]
    return (repeated * (given / channels) if rescale else repeated).contiguous()

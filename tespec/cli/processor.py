"""How a training uses a CPU and its memory: faster, with the same numbers."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

# malloc.h of glibc: what mallopt(3) sets.
TRIM_THRESHOLD, TOP_PAD, MMAP_THRESHOLD = -1, -2, -3
LARGEST = 2**31 - 1
PAD = 256 * 2**20  # bytes that are asked of the kernel at a time


@contextmanager
def tuned() -> Iterator[None]:
    """A block that trains: freed memory is kept for the next step, and denormal numbers are 0.

    Processors take a hundred times as long for a number below 1.2e-38 as for another, and shifted-window attention has
    many of them: it adds -100 where windows must not see each other, and exp(-100) is 3.7e-44. Added to anything else
    they change no digit. Threads that torch starts in the block take over how this one computes, and keep it; `run` and
    `pretrain` come here before torch has started any.
    """
    import numpy as np
    import torch

    keep_freed_memory()
    for kind in (np.float16, np.float32, np.float64):
        np.finfo(kind)  # which it keeps; asked for the first time in the block, it warns that denormals are missing
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


def keep_freed_memory() -> bool:
    """Keep the memory that this process frees for its next allocation; whether the C library can be told to.

    A training step on a CPU frees its activations and allocates the same again in the next one. By default glibc hands
    large ones back to the kernel in between, which then has to clear and map every page again. With another C library
    (musl, macOS) nothing changes.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return all([mallopt(MMAP_THRESHOLD, LARGEST), mallopt(TRIM_THRESHOLD, LARGEST), mallopt(TOP_PAD, PAD)])

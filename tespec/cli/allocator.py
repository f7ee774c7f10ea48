"""What the C library does with the memory that a training frees."""

from __future__ import annotations

import ctypes

# malloc.h of glibc: what mallopt(3) sets.
TRIM_THRESHOLD, TOP_PAD, MMAP_THRESHOLD = -1, -2, -3
LARGEST = 2**31 - 1
PAD = 256 * 2**20  # bytes that are asked of the kernel at a time


def keep_freed_memory() -> bool:
    """Keep the memory that this process frees for its next allocation; whether the C library can be told to.

    A training step on a CPU frees its activations and allocates the same again in the next one. By default glibc hands
    large ones back to the kernel in between, which then has to clear and map every page again. With another C library
    (musl, macOS) nothing changes.
    """
    return set_thresholds(LARGEST, LARGEST, PAD)


def set_thresholds(mmap: int, trim: int, pad: int) -> bool:
    """Set the thresholds of mallopt(3), in bytes; whether the C library has them.

    Args:
        mmap: allocations from here on get a mapping of their own, which is handed back when they are freed.
        trim: free memory at the end of the heap that is kept.
        pad: what the heap grows by, beyond what is asked for.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return all([mallopt(MMAP_THRESHOLD, mmap), mallopt(TRIM_THRESHOLD, trim), mallopt(TOP_PAD, pad)])

"""Seeds: one integer a run, from which every random number of every step follows."""

from __future__ import annotations

import hashlib
import random

import numpy as np
import torch


def derive(seed: int, *names: int | str) -> int:
    """A 63-bit seed for one purpose, a pure function of the run's seed and the purpose's names."""
    text = "/".join(str(part) for part in (seed, *names))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def seed_everything(seed: int) -> None:
    """Seed the generators of Python, NumPy and torch (all devices)."""
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002  # timm and mmseg draw from the global generator
    torch.manual_seed(seed)

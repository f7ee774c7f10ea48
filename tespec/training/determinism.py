"""Runs that repeat to the bit on a GPU as well, at the price of speed."""

from __future__ import annotations

import os

import torch
from torch import nn

from tespec.models.exact_pooling import with_exact_pools

WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"


def be_deterministic(wanted: bool) -> None:
    """Let torch use deterministic algorithms alone, or again any; where it has none it raises.

    cuBLAS reads its variable when it is first used, so this comes before any work on a GPU.
    """
    if wanted:
        os.environ.setdefault(WORKSPACE, ":4096:8")
    torch.use_deterministic_algorithms(wanted)
    torch.backends.cudnn.benchmark = False


def prepare(model: nn.Module, wanted: bool) -> None:
    """Put exact replacements in place of what has no deterministic backward pass on CUDA."""
    if wanted:
        with_exact_pools(model)

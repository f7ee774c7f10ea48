"""Discrete tokens of images: Gumbel-softmax mixtures, and how many tokens are in use."""

import torch
from torch import Tensor
from torch.nn.functional import softmax

from tespec.core.distributed import shard_slice
from tespec.models.layers import in_fp32
from tespec.pretraining.contrast import TINY


@in_fp32
def mixed_tokens(logits: Tensor, noise: Tensor, temperature: Tensor, codebook: Tensor) -> Tensor:
    """Mix codebook vectors by a Gumbel softmax over the tokens.

    Args:
        logits: (N, K, h, w) of K tokens.
        noise: Gumbel noise of the same shape.
        temperature: of the softmax, a scalar.
        codebook: vectors (K, D).

    Returns:
        Vectors (N, D, h, w).
    """
    return torch.einsum("nkhw,kd->ndhw", softmax((logits + noise) / temperature, 1), codebook)


def gumbel_noise(logits: Tensor) -> Tensor:
    """Draw Gumbel noise for logits (N, ...), row by row for the global batch to save memory."""
    total, local = shard_slice(len(logits))
    size = logits.shape[1:]
    rows = (torch.empty(size, device=logits.device).exponential_() for _ in range(total))
    draws = [row for number, row in enumerate(rows) if local.start <= number < local.stop]
    return -torch.stack(draws).clamp(min=TINY).log()


def usage(tokens: Tensor, count: int) -> Tensor:
    """Count the occurrences of tokens.

    Args:
        tokens: indices from 0 to count - 1, int64 of any shape.
        count: number of tokens in the codebook.

    Returns:
        The occurrences (count,) float32.
    """
    # Torch's `bincount` reads the values, so the CPU would wait for the GPU.
    ones = torch.ones(tokens.numel(), device=tokens.device)
    return torch.zeros(count, device=tokens.device).index_add(0, tokens.flatten(), ones)


def perplexity(counts: Tensor) -> Tensor:
    """Effective number of tokens in use: the exponential of the entropy of their counts."""
    return torch.special.entr(counts / counts.sum().clamp(min=1)).sum().exp()

"""Values of the authors' functions, which `tests/data/published/README.md` names."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

FOLDER = Path(__file__).parent / "data" / "published"


def published(name: str) -> dict[str, Tensor]:
    """Tensors of `tests/data/published/NAME.npz` by name: "in ...", "out ..." and "grad ..."."""
    with np.load(FOLDER / f"{name}.npz") as file:
        return {key: torch.from_numpy(file[key]) for key in file.files}


def assert_loss(found: Tensor, published: Tensor) -> None:
    """Compare a loss with the authors', within 1e-5 relative."""
    torch.testing.assert_close(found.detach().to(published.dtype), published, rtol=1e-5, atol=1e-8)


def assert_gradient(found: Tensor, published: Tensor) -> None:
    """Compare a gradient with the authors': within 1e-4 of its norm."""
    difference = (found.detach().to(published.dtype) - published).norm()
    assert difference <= 1e-4 * published.norm() + 1e-12, f"{difference} of {published.norm()}"


class Recorded:
    """The part of NumPy's generator that masks draw from, with recorded numbers from 0 to 1."""

    def __init__(self, uniforms: Tensor) -> None:
        self.random = iter(uniforms.tolist()).__next__

    def uniform(self, low: float, high: float) -> float:
        # the authors' aspect ratio falls where ours rises
        return high - (high - low) * self.random()

    def integers(self, count: int) -> int:
        return int(self.random() * count)

import random

import numpy as np
import torch

from tespec.training.device import derive, seed_everything


def test_derived_seeds_are_stable_and_differ_by_purpose():
    assert derive(0, "step", 3) == 8082029764619972999
    seeds = {derive(seed, name, step) for seed in range(5) for name in ("step", "model") for step in range(5)}
    assert len(seeds) == 50
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_every_generator_follows_the_seed():
    drawn = []
    for _ in range(2):
        seed_everything(derive(7, "x"))
        drawn.append((random.random(), np.random.rand(), torch.rand(1).item()))  # noqa: NPY002
    assert drawn[0] == drawn[1]

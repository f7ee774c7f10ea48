"""A world is the same whatever adds up and rounds the last digits: BLAS, vector instructions, the C library."""

from __future__ import annotations

import os
import subprocess
import sys
from types import ModuleType

import numpy as np

from tespec.world import city, scene, traffic
from tespec.world import street as streets
from tespec.world.street import Street, drive

# Whose last digits differ between processors, or may.
ROUNDED = ("sin", "cos", "arctan2", "sqrt", "hypot", "interp", "gradient", "cumsum", "linspace", "unwrap", "mod")
SEEDS = range(3000, 3024)
DIGEST = """
import hashlib
from tespec.world.street import Street
digest = hashlib.sha256()
for seed in range(3000, 3012):
    street = Street(seed, 1.0)
    for table in (street._poses, street.static, street.x, street.y, street.heading):
        digest.update(table.tobytes())
print(digest.hexdigest())
"""


class Noisy(ModuleType):
    """A module whose functions' results are off by up to one unit in the last place."""

    def __init__(self, module, rng, noisy):
        super().__init__(module.__name__)
        self._module, self._rng, self._noisy = module, rng, noisy

    def __getattr__(self, name):
        found = getattr(self._module, name)
        if name not in self._noisy:
            return found

        def rounded(*given, **options):
            exact = np.asarray(found(*given, **options), np.float64)
            off = exact + self._rng.integers(-1, 2, exact.shape) * np.spacing(exact)
            return off if off.ndim else off[()]

        return rounded


def test_rounding_decides_nothing_on_a_street(monkeypatch):
    exact = [Street(each, 1.0) for each in SEEDS]
    drive(0, 1.0)  # numba's compiler asks numpy for its own functions
    noisy = Noisy(np, np.random.default_rng(0), ROUNDED)
    noisy.linalg = Noisy(np.linalg, noisy._rng, ("norm",))
    for module in (city, scene, streets, traffic):
        monkeypatch.setattr(module, "np", noisy)
    for street, each in zip(exact, SEEDS, strict=True):
        other = Street(each, 1.0)
        np.testing.assert_allclose(other._moving, street._moving, rtol=0, atol=1e-6)
        assert other._poses.shape == street._poses.shape
        x, y, heading, phase = np.moveaxis(other._poses - street._poses, -1, 0)
        # A heading of half a turn to the left is one to the right.
        turned = np.angle(np.exp(1j * heading))
        assert max(np.abs(change).max() for change in (x, y, turned, phase)) < 1e-6
        np.testing.assert_allclose(other.static, street.static, rtol=0, atol=1e-6)


def test_no_byte_depends_on_the_blas_kernels_that_a_processor_gets():
    digests = {
        subprocess.run(
            [sys.executable, "-c", DIGEST],
            env=os.environ | kernels,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for kernels in ({}, {"OPENBLAS_CORETYPE": "Prescott"}, {"OPENBLAS_CORETYPE": "Nehalem"})
    }
    assert len(digests) == 1

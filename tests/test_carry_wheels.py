"""tools/carry_wheels.sh carries all packages that a machine with PyTorch lacks."""

import importlib.metadata as metadata
import re
from contextlib import suppress

from packaging.utils import canonicalize_name
from test_constraints import REPOSITORY, requirements

SCRIPT = (REPOSITORY / "tools" / "carry_wheels.sh").read_text()
ONLY_TABLES = ("pandas",)  # which benchmarks/gpu.py does not make


def with_dependencies(*names):
    """Names of distributions and of all that they require."""
    todo = [*names]
    visited = set()
    while todo:
        name = canonicalize_name(todo.pop())
        if name not in visited:
            visited.add(name)
            # torch for CPUs lacks the packages of CUDA
            with suppress(metadata.PackageNotFoundError):
                todo += [package.name for package in requirements(name, (), "3.12")]
    return visited


def test_the_carried_and_the_stated_packages_are_all_that_the_harness_requires():
    carried = {
        canonicalize_name(name)
        for name in re.findall(r"PACKAGES:-(.*?)\}", SCRIPT, re.DOTALL)[0].split()
    }
    (stated,) = re.findall(r"^# [^#]*?(torch, [^#]*?) and OpenCV must be", SCRIPT, re.MULTILINE)
    installed = with_dependencies(*stated.split(", "), "opencv-python", *ONLY_TABLES)
    assert with_dependencies("tespec") - installed - carried <= {"tespec"}

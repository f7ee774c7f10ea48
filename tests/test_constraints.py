"""constraints.txt pins one version of every installed package, for every supported Python."""

import importlib.metadata as metadata
import re
import sys

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tespec.core.paths import REPOSITORY

PYTHONS = ("3.10", "3.11", "3.12", "3.13")
EXTRAS = ("test", "lint")
CUDA = re.compile(r"(nvidia|cuda)-|triton$")


def pins(python):
    """Specifiers by package name, of the lines of constraints.txt for a Python version."""
    texts = [
        line.split("#")[0].strip()
        for line in (REPOSITORY / "constraints.txt").read_text().splitlines()
    ]
    pinned = [pin for pin in map(Requirement, filter(None, texts)) if applies(pin.marker, python)]
    specifiers = {canonicalize_name(pin.name): pin.specifier for pin in pinned}
    assert len(specifiers) == len(pinned), f"a name is pinned twice for Python {python}"
    return specifiers


def applies(marker, python, extra=""):
    of_python = {"python_version": python, "python_full_version": f"{python}.1"}
    return marker is None or marker.evaluate(of_python | {"extra": extra})


def requirements(name, extras, python):
    """Direct dependencies of an installed distribution with extras."""
    declared = map(Requirement, metadata.requires(name) or [])
    return [r for r in declared if any(applies(r.marker, python, extra) for extra in ("", *extras))]


@pytest.mark.parametrize("python", PYTHONS)
def test_every_pin_names_one_version_of_the_declared_range(python):
    pinned = pins(python)
    assert all(re.fullmatch(r"==[^*,]+", str(specifier)) for specifier in pinned.values())
    # both install the module cv2
    assert pinned["opencv-python"] == pinned["opencv-python-headless"]
    for requirement in requirements("tespec", EXTRAS, python):
        (only,) = pinned[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(only.version), f"{requirement} against {only}"


def test_everything_that_is_installed_for_the_project_is_pinned():
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    todo = requirements("tespec", EXTRAS, python)
    required = {"tespec"}
    while todo:
        requirement = todo.pop()
        name = canonicalize_name(requirement.name)
        if name not in required and not CUDA.match(name):
            required.add(name)
            todo += requirements(name, tuple(requirement.extras), python)
    assert len(required) > 60
    assert required - {"tespec"} <= set(pins(python))

"""constraints.txt pins one version of every installed package, for every supported Python."""

import importlib.metadata as metadata
import re
import sys
from pathlib import Path

import pytest
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
PYTHONS = ("3.10", "3.11", "3.12", "3.13")
EXTRAS = ("test", "lint")
CUDA = re.compile(r"(nvidia|cuda)-|triton$")


def pins(python: str) -> dict[str, SpecifierSet]:
    """Specifiers, by package name, of the lines of constraints.txt that apply to a Python version."""
    texts = [line.split("#")[0].strip() for line in (ROOT / "constraints.txt").read_text().splitlines()]
    held = [each for each in map(Requirement, filter(None, texts)) if applies(each.marker, python)]
    found = {canonicalize_name(each.name): each.specifier for each in held}
    assert len(found) == len(held), f"a name is pinned twice for Python {python}"
    return found


def applies(marker: Marker | None, python: str, extra: str = "") -> bool:
    return marker is None or marker.evaluate(
        {"python_version": python, "python_full_version": f"{python}.1", "extra": extra}
    )


def requirements(name: str, extras: tuple[str, ...], python: str) -> list[Requirement]:
    """Direct dependencies of an installed distribution with extras."""
    declared = map(Requirement, metadata.requires(name) or [])
    return [r for r in declared if any(applies(r.marker, python, extra) for extra in ("", *extras))]


@pytest.mark.parametrize("python", PYTHONS)
def test_every_pin_names_one_version_of_the_declared_range(python: str) -> None:
    pinned = pins(python)
    assert all(re.fullmatch(r"==[^*,]+", str(specifier)) for specifier in pinned.values())
    assert pinned["opencv-python"] == pinned["opencv-python-headless"]  # both install the module cv2
    for requirement in requirements("tespec", EXTRAS, python):
        (only,) = pinned[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(only.version), f"{requirement} against {only}"


def test_everything_that_is_installed_for_the_project_is_pinned() -> None:
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    pinned = pins(python)
    todo = requirements("tespec", EXTRAS, python)
    seen = {"tespec"}
    while todo:
        requirement = todo.pop()
        name = canonicalize_name(requirement.name)
        if name in seen or CUDA.match(name):
            continue
        seen.add(name)
        assert name in pinned, f"{name} is missing in constraints.txt"
        todo += requirements(name, tuple(requirement.extras), python)
    assert len(seen) > 60

"""Puts into a wheel, inside of the package, what a checkout holds beside it: configs, published numbers, baselines."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

INSIDE = {"configs": "configs", "results/paper": "published", "baselines": "baselines"}  # see tespec/core/paths.py


class BuildWithFacts(build_py):
    """The package with these folders; an editable installation finds them in the checkout."""

    def run(self) -> None:
        """Copy them behind the package."""
        super().run()
        if self.editable_mode:
            return
        for source, name in INSIDE.items():
            target = Path(self.build_lib, "tespec", name)
            # A build folder may hold files that are there no longer.
            shutil.rmtree(target, ignore_errors=True)
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))


setup(cmdclass={"build_py": BuildWithFacts})

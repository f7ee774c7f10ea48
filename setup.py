"""Copy configs and published numbers of a checkout into the package of a wheel."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

# see tespec/core/paths.py
INSIDE = {"configs": "configs", "results/paper": "published"}


class BuildWithFacts(build_py):
    """Build with these folders; an editable installation reads them from the checkout."""

    def run(self) -> None:
        """Build the package, then copy the folders."""
        super().run()
        if self.editable_mode:
            return
        for source, name in INSIDE.items():
            target = Path(self.build_lib, "tespec", name)
            # A build folder may hold files that have since been deleted.
            shutil.rmtree(target, ignore_errors=True)
            shutil.copytree(source, target)


setup(cmdclass={"build_py": BuildWithFacts})

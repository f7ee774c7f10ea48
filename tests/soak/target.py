"""One kind of what is read from strangers: how a sound one is written, read and damaged."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harm import Rng

from tespec.core.errors import UserError

MARKER = "executed"


@dataclass(frozen=True)
class Target:
    """One kind of input.

    Attributes:
        write: a sound one into a folder; gives its path.
        read: takes a path; refuses by `UserError`, or reads.
        harm: damages the copy at a path.
        weight: of its share of the cases; slow ones have less.
    """

    write: Callable[[Path], Path]
    read: Callable[[Path], Any]
    harm: Callable[[Path, Rng], None]
    weight: float = 1.0

    def case(self, sound: Path, folder: Path, rng: Rng) -> str:
        """Copy, damage, read; "refused" or "accepted".

        Raises:
            AssertionError: a refusal of more than one line, or code that was run.
        """
        path = folder / sound.name
        shutil.copytree(sound, path) if sound.is_dir() else shutil.copyfile(sound, path)
        self.harm(path, rng)
        outcome = "accepted"
        try:
            self.read(path)
        except UserError as error:
            outcome, said = "refused", str(error)
        else:
            said = ""
        assert len(said.splitlines()) <= 1, f"more than one line: {said}"
        assert not (folder / MARKER).exists(), "code was run"
        return outcome

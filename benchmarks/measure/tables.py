"""All tables of the paper from its numbers, in a fresh process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.measure.conditions import Conditions
from benchmarks.measure.row import Row
from tespec.core.paths import REPOSITORY


def tables(conditions: Conditions) -> Iterator[Row]:
    """The command as a user gives it, without records, into a temporary folder."""
    with TemporaryDirectory() as folder:
        out, none = Path(folder) / "tables", Path(folder) / "none"
        none.mkdir()
        command = [sys.executable, str(REPOSITORY / "benchmarks" / "tables.py")]
        command += ["--results", str(none), "--out", str(out)]

        def run() -> None:
            subprocess.run(command, check=True, capture_output=True, cwd=folder)

        run()
        count = len(list(out.iterdir()))
        row = Row(
            "tables", "all tables", "cpu", f"{count} files, from a fresh process to its end", work=count, unit="files"
        )
        yield conditions.compare(row, run)

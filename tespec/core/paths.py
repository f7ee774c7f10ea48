"""Where the harness keeps what it makes: caches, run folders, results, and where its configs lie."""

from __future__ import annotations

import os
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]
REPOSITORY = PACKAGE.parent
CONFIGS = REPOSITORY / "configs"
BASELINES = REPOSITORY / "baselines"
RESULTS = REPOSITORY / "results"
RUNS = REPOSITORY / "runs"


def cache_root() -> Path:
    """Folder of the data the harness makes: `$TESPEC_CACHE`, else `~/.cache/tespec`; may not exist yet."""
    named = os.environ.get("TESPEC_CACHE")
    return Path(named) if named else Path.home() / ".cache" / "tespec"

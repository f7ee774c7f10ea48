"""Where the harness keeps what it makes: caches, run folders, results, and where its configs lie."""

from __future__ import annotations

import os
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]
# A wheel holds inside of the package what a checkout holds beside it.
INSTALLED = (PACKAGE / "configs").is_dir()
REPOSITORY = PACKAGE.parent
CONFIGS = PACKAGE / "configs" if INSTALLED else REPOSITORY / "configs"
BASELINES = PACKAGE / "baselines" if INSTALLED else REPOSITORY / "baselines"
PUBLISHED = PACKAGE / "published" if INSTALLED else REPOSITORY / "results" / "paper"
RESULTS = Path("results") if INSTALLED else REPOSITORY / "results"
RUNS = Path("runs") if INSTALLED else REPOSITORY / "runs"


def cache_root() -> Path:
    """Folder of the data the harness makes: `$TESPEC_CACHE`, else `~/.cache/tespec`; may not exist yet."""
    named = os.environ.get("TESPEC_CACHE")
    return Path(named) if named else Path.home() / ".cache" / "tespec"

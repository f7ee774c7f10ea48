"""Default paths of configs, results, runs and the cache."""

import os
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]
# A wheel contains these folders inside the package; in a checkout they are next to it.
INSTALLED = (PACKAGE / "configs").is_dir()
REPOSITORY = PACKAGE.parent
CONFIGS = PACKAGE / "configs" if INSTALLED else REPOSITORY / "configs"
BASELINES = PACKAGE / "baselines" if INSTALLED else REPOSITORY / "baselines"
PUBLISHED = PACKAGE / "published" if INSTALLED else REPOSITORY / "results" / "paper"
RESULTS = Path("results") if INSTALLED else REPOSITORY / "results"
RUNS = Path("runs") if INSTALLED else REPOSITORY / "runs"


def cache_root() -> Path:
    """Cache folder, `$TESPEC_CACHE` or `~/.cache/tespec`; it may not exist yet."""
    return Path(os.environ.get("TESPEC_CACHE") or Path.home() / ".cache" / "tespec")

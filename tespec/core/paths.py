"""Default paths of configs, results, runs and the cache."""

import os
from pathlib import Path

PACKAGES = ("tespec", "baselines")  # of the harness
PACKAGE = Path(__file__).resolve().parents[1]
# A wheel contains these folders inside the package; in a checkout they are next to it.
INSTALLED = (PACKAGE / "configs").is_dir()
REPOSITORY = PACKAGE.parent
CONFIGS = PACKAGE / "configs" if INSTALLED else REPOSITORY / "configs"
PUBLISHED = PACKAGE / "published" if INSTALLED else REPOSITORY / "results" / "paper"
RESULTS = Path("results") if INSTALLED else REPOSITORY / "results"
RUNS = Path("runs") if INSTALLED else REPOSITORY / "runs"


def cache_root() -> Path:
    """Return the cache folder, which may not exist yet.

    That is `$TESPEC_CACHE`, else `tespec` in `$XDG_CACHE_HOME` or in `~/.cache`.
    """
    if chosen := os.environ.get("TESPEC_CACHE"):
        return Path(chosen)
    caches = Path(os.environ.get("XDG_CACHE_HOME", ""))
    # The XDG base directory specification ignores relative paths.
    return (caches if caches.is_absolute() else Path.home() / ".cache") / "tespec"

"""SSL methods that TESPEC is compared with, one file each."""

from typing import Any

# Profile `sample` of a method that learns from single windows or images.
SAMPLE: dict[str, Any] = {"batch_size": 16, "segments": 1, "optimisation": {"peak_lr": 1.0e-3}}

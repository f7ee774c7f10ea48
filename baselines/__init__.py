"""SSL methods that TESPEC is compared with, one file each."""

from typing import Any

# Of every method on events, for `deviations`.
COUNTS = "events are counts up to 10 in 10 bins for each polarity, as in every fine-tuning here"
# Profile `sample` of a method that learns from single windows or images.
SAMPLE: dict[str, Any] = {"batch_size": 16, "segments": 1, "optimisation": {"peak_lr": 1.0e-3}}

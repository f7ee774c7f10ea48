"""SSL methods that TESPEC is compared with, one file each."""

from typing import Any

import tespec.core.compat  # noqa: F401  # before timm and torchvision

# Deviation shared by all methods that learn from events.
COUNTS = "events are counts up to 10 in 10 bins per polarity, as in fine-tuning"
# Base of the `sample` profile of methods that learn from single windows or images.
SAMPLE: dict[str, Any] = {"batch_size": 16, "segments": 1, "optimisation": {"peak_lr": 1.0e-3}}

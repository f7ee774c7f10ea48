"""SSL methods that TESPEC is compared with, one file each."""

import tespec.core.compat  # noqa: F401  # before timm and torchvision

# Deviation shared by all methods that learn from events.
COUNTS = "events are counts up to 10 in 10 bins per polarity, as in fine-tuning"

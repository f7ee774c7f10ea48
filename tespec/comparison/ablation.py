"""The row of an ablation that a record belongs to, by the settings of its pre-training."""

from __future__ import annotations

from functools import cache
from typing import Any

from tespec.comparison.frame import settings_text
from tespec.comparison.published import ABLATED, Ablation


def match_row(ablation: Ablation, profile: str, changed: str) -> int:
    """Find the row whose settings are exactly those that a pre-training changes.

    Args:
        ablation: the table.
        profile: of the pre-training, whose settings the factors of a row multiply.
        changed: `pretraining_overrides` of the DataFrame from `tespec.results`; "" is the default.

    Returns:
        Position of the row; -1 if it has none.
    """
    for position, row in enumerate(ablation.rows):
        settings = row.set
        # Settings of the profile need torch.
        if row.scale and all(f"{key}=" in changed for key in row.scale):
            settings = row.overrides(_default_settings(profile))
        if settings_text(settings) == changed and (settings or row.default):
            return position
    return -1


@cache
def _default_settings(profile: str) -> dict[str, Any]:
    from tespec.core.config import as_facts, flattened, pretraining_settings

    return flattened(as_facts(pretraining_settings(ABLATED, profile)))

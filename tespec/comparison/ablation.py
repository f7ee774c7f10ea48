"""Records of the rows of an ablation, matched by the settings of their pre-training."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tespec.comparison.frame import settings_text
from tespec.comparison.published import ABLATED, Ablation, AblationRow


def match_rows(ablation: Ablation, cells: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Find the cells of each row of an ablation.

    A cell belongs to a row if its pre-training changes exactly the settings of the row; to the
    default row, if it changes none.

    Args:
        ablation: the table.
        cells: facts of cells, by column of the DataFrame from `tespec.results`.

    Returns:
        Position of the row by cell.
    """
    found: dict[str, int] = {}
    for cell in cells:
        profile = cell["pretraining_profile"]
        changed = cell["pretraining_overrides"]
        if profile and cell["method"] == ABLATED:
            for position, row in enumerate(ablation.rows):
                if changed == _settings(row, profile, changed):
                    found[cell["cell"]] = position
    return found


def _settings(row: AblationRow, profile: str, changed: str) -> str | None:
    """Text of the settings that a row changes; None if they cannot be those of the text `changed`.

    Factors need the settings of the profile, and so torch, which other rows do not.
    """
    if not row.scale:
        return settings_text(row.set)
    if not all(f"{key}=" in changed for key in row.scale):
        return None
    from tespec.core.config import as_facts, flattened, pretraining_settings

    return settings_text(row.overrides(flattened(as_facts(pretraining_settings(ABLATED, profile)))))

"""What a survey found, as a table for other programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd

from tespec.datasets.survey.facts import RecordingFacts
from tespec.writing import whole_file


def write_csv(found: Sequence[RecordingFacts], path: Path) -> None:
    """Write a row for each recording, with every figure of `EventFacts` and `LabelFacts` in a column of its own."""
    with whole_file(path) as unfinished:
        pd.DataFrame([_row(facts) for facts in found]).to_csv(unfinished, index=False)


def _row(facts: RecordingFacts) -> dict[str, Any]:
    row: dict[str, Any] = {
        "split": facts.split,
        "recording": facts.name,
        "bytes": facts.bytes,
        "windows": facts.windows,
    }
    if facts.events is not None:
        row |= {f"events_{name}": value for name, value in asdict(facts.events).items()}
    if facts.labels is not None:
        of_labels = asdict(facts.labels)
        shortest, median, longest = of_labels.pop("spacing_ms")
        row |= {"labels_spacing_ms_min": shortest, "labels_spacing_ms_median": median, "labels_spacing_ms_max": longest}
        low, high = of_labels.pop("extent")
        row |= {"labels_extent_min": low, "labels_extent_max": high}
        row |= {f"class_{name}": count for name, count in of_labels.pop("classes").items()}
        row |= {f"labels_{name}": value for name, value in of_labels.items()}
    return row | {"problems": " | ".join(map(str, facts.problems)), "notes": " | ".join(facts.notes)}

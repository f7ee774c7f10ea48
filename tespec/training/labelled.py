"""What tasks with labels share: opening their dataset, and naming and grouping its labels."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tespec.datasets.base import LabelledDataset
from tespec.datasets.recording import LabelledRecording
from tespec.datasets.windows import WindowRule
from tespec.discovery import find_registered
from tespec.registry import DATASETS
from tespec.settings import Finetuning

STANDING = 0.1  # m/s; below, the camera counts as standing


def open_dataset(settings: Finetuning, root: Path) -> LabelledDataset:
    """The dataset that the settings name, in `root`.

    Raises:
        UserError: there is no such dataset, or not in `root`.
    """
    kind = find_registered(DATASETS, settings.dataset, "dataset")
    dataset: LabelledDataset = kind(
        root,
        settings.splits,
        settings.classes,
        WindowRule(settings.recurrent, settings.window_ms),
        settings.downsample,
        settings.protocol,
    )
    return dataset


def named(recordings: Sequence[LabelledRecording]) -> str:
    """Recordings with their numbers of labels, in words."""
    return ", ".join(f"{recording.name} ({len(recording.labelled)} labels)" for recording in recordings)


def groups_of(recording: LabelledRecording, label: int) -> tuple[str, ...]:
    """Named groups that a label belongs to: whether the camera moves, where its speed is known."""
    if recording.ego_speed is None:
        return ()
    return ("standing",) if recording.ego_speed[label] < STANDING else ("moving",)

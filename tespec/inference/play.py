"""Plays a recording through a trained network, segment by segment."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tespec.datasets.recording import LabelledRecording, Recording
from tespec.errors import UserError
from tespec.settings import Finetuning
from tespec.training.labelled import LabelledTask


@dataclass(frozen=True)
class Moment:
    """What a network says at the end of a window.

    Attributes:
        seconds: since the recording's first window began.
        histogram: (2*bins, H, W) uint8 of the window.
        predicted: a mask (H, W) uint8, a depth (H, W) float32 in m, or `Boxes`.
        truth: the label there, in the same form; None where there is none.
    """

    seconds: float
    histogram: NDArray[np.uint8]
    predicted: Any
    truth: Any


@torch.no_grad()
def play(
    model: Any,
    task: type[LabelledTask],
    settings: Finetuning,
    recording: Recording,
    clip: tuple[float, float],
    device: torch.device,
) -> Iterator[Moment]:
    """What `model` says at the end of each window that ends within `clip`, in order.

    A recurrent network sees the recording from its start, a feed-forward one each window alone.

    Args:
        model: on `device`, in evaluation mode.
        task: its task.
        settings: its settings.
        recording: with or without labels.
        clip: first and last second.
        device: where the network is.

    Raises:
        UserError: no window ends within the clip, or the events cannot be read.
    """
    ends = (recording.windows[:, 1] - recording.windows[0, 0]) / 1e6
    shown = np.flatnonzero((ends >= clip[0]) & (ends <= clip[1]))
    if not len(shown):
        lasts = f"no window ends between {clip[0]:g} and {clip[1]:g} s; it lasts {ends[-1]:.2f} s"
        raise UserError(recording.path, lasts, "give another --clip")
    state = None
    for index in range(0 if settings.recurrent else int(shown[0]), int(shown[-1]) + 1):
        histogram = recording.histograms(index, 1, settings.bins, settings.rule)
        segments = torch.from_numpy(histogram).to(device)
        if index < shown[0]:
            state = model.advance(segments.unsqueeze(1), state)
            continue
        place = torch.zeros(1, 2, dtype=torch.int64, device=device)
        predictions, state = model.predict(segments.unsqueeze(1), state, place)
        (predicted,) = task.read(predictions)
        yield Moment(float(ends[index]), histogram[0], predicted, _truth(recording, index))


def _truth(recording: Recording, window: int) -> Any:
    if not isinstance(recording, LabelledRecording):
        return None
    labels = recording.labels_in(window, 1)
    return recording.labels[labels[-1]] if len(labels) else None

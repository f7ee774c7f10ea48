"""A strip of pictures of a finished run: events, what its network says, and the truth."""

from __future__ import annotations

from pathlib import Path

import torch

from tespec.core.errors import UserError
from tespec.inference.load import load_trained
from tespec.inference.predict import above, draw_figure, play, spread
from tespec.tasks.base import open_dataset

SPLIT = "test"
SECONDS = 8.0  # from the start of a recording; a recurrent network has to see all of them
ROWS = 3
MIN_SCORE = 0.3


def draw_strip(weights: Path, root: Path, device: torch.device, path: Path) -> None:
    """Draw labelled moments of the first seconds of the first test recording that has some.

    Args:
        weights: `model.safetensors` of a fine-tuning.
        root: folder of the task's data.
        device: where the network runs.
        path: of the PNG.

    Raises:
        UserError: weights or data cannot be read, or no label is that early.
    """
    settings = load_trained(weights).settings
    dataset = open_dataset(settings, root)
    for files in dataset.files(SPLIT):
        recording = dataset.open(files)
        labelled = recording.windows[recording.labelled, 1]
        ends = (labelled - recording.windows[0, 0]) / 1e6
        if not len(ends):
            continue
        shown = ends[ends <= max(ends[0], SECONDS)]
        # Seconds of histograms at full size would fill the memory; only those that are drawn are kept.
        wanted = {float(shown[place]) for place in spread(len(shown), ROWS)}
        clip = (min(wanted), max(wanted))
        model, task, settings = load_trained(weights, (recording.region.height, recording.region.width))
        moments = [
            above(moment, MIN_SCORE)
            for moment in play(model.to(device), task, settings, recording, clip, device)
            if moment.seconds in wanted
        ]
        path.parent.mkdir(parents=True, exist_ok=True)
        draw_figure(moments, settings.classes, path)
        return
    raise UserError(root, f"no recording of the split {SPLIT} has a label", "check the data")

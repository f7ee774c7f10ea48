"""Run inference on a recording and draw the predictions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from tespec.core.errors import UserError
from tespec.core.progress import progress
from tespec.core.settings import Finetuning, parse_size
from tespec.datasets.base import TEST
from tespec.datasets.recording import LabelledRecording, Recording
from tespec.inference.load import SEGMENT_MS, TrainedNetwork, load_trained, open_recording, read_settings
from tespec.pictures.predictions import Prediction, Style, draw_figure, draw_video, value_limits
from tespec.tasks.base import open_dataset

ROWS = 4  # of the figure
STRIP_SECONDS = 8.0  # from the start of a recording; a recurrent network has to see all of them
STRIP_ROWS = 3
MIN_SCORE = 0.3


class Drawn(NamedTuple):
    """Paths of the pictures, number of windows drawn, and how many of those have a label."""

    figure: Path
    video: Path
    moments: int
    labelled: int


@torch.no_grad()
def run_inference(
    network: TrainedNetwork, recording: Recording, windows: Sequence[int], min_score: float
) -> Iterator[Prediction]:
    """Predictions at the end of some windows of a recording, indices in rising order, one at a time.

    A recurrent network sees the recording from its start, a feed-forward one each window alone. Boxes of a score below
    `min_score` are left out.
    """
    model, task, settings = network
    device, state = next(model.parameters()).device, None
    place = torch.zeros(1, 2, dtype=torch.int64, device=device)
    ends, lengths, wanted = _seconds(recording), np.diff(recording.windows, axis=1)[:, 0] / 1e3, set(windows)
    steps = range(windows[-1] + 1) if settings.recurrent else windows
    with progress(f"predictions on {recording.name}", "windows") as advance:
        for done, index in enumerate(steps):
            histogram = recording.histograms(index, 1, settings.bins, settings.rule)
            segments = torch.from_numpy(histogram).to(device).unsqueeze(1)
            if index in wanted:
                predictions, state = model.predict(segments, state, place)
                (predicted,) = task.read(predictions)
                truth = _truth(recording, index)
                prediction = Prediction(float(ends[index]), float(lengths[index]), histogram[0], predicted, truth)
                yield prediction.above(min_score)
            else:
                state = model.update_state(segments, state)
            advance(done + 1, len(steps), "")


def predict(
    weights: Path,
    wanted: str,
    out: Path,
    device: torch.device,
    *,
    root: Path | None = None,
    clip: tuple[float, float] = (0.0, 10.0),
    min_score: float = MIN_SCORE,
    sensor_px: str | None = None,
) -> Drawn:
    """Run the network of `weights` on a recording and draw its predictions; memory does not grow with the clip.

    Args:
        weights: `model.safetensors` of a fine-tuning.
        wanted: name of one of the data set's recordings, which comes with its labels, or path of any other.
        out: folder for the pictures.
        device: where the network runs.
        root: folder of the task's data, in which names are looked up, if there is one.
        clip: first and last second.
        min_score: boxes of a lower score are not drawn.
        sensor_px: size of the recording's sensor, as "640x480", if it does not name it.

    Raises:
        UserError: weights or recording cannot be read, or no window ends within the clip.
    """
    if not 0 <= min_score <= 1:
        raise UserError(f"--min-score {min_score:g}", "is no score", "give a number from 0 to 1")
    recording = find(read_settings(weights), wanted, root, sensor_px)
    if not len(recording):
        raise UserError(recording.path, "is shorter than a window of the training", "give a longer recording")
    ends, (start, end) = _seconds(recording), clip
    windows = np.flatnonzero((ends >= start) & (ends <= end)).tolist()
    if not windows:
        lasts = f"no window ends between {start:g} and {end:g} s; it lasts {ends[-1]:.2f} s"
        raise UserError(recording.path, lasts, "give another --clip")
    labelled = [window for window in windows if _labels(recording, window)]
    in_figure = set(evenly(labelled or windows, ROWS))
    network = _network(weights, recording, device)
    style = _style(network, recording, labelled)
    name = re.sub(r"[^\w.-]+", "_", recording.name)
    figure, video = out / f"{name}.png", out / f"{name}.gif"
    # Not below what viewers of GIF files can show.
    milliseconds = max(20, round(1000 * float(np.median(np.diff(ends[windows]))))) if windows[1:] else round(SEGMENT_MS)
    kept: list[Prediction] = []

    def drawn() -> Iterator[Prediction]:
        for window, prediction in zip(windows, run_inference(network, recording, windows, min_score), strict=True):
            if window in in_figure:
                kept.append(prediction)
            yield prediction

    draw_video(drawn(), style, video, milliseconds)
    draw_figure(kept, style, figure)
    return Drawn(figure, video, len(windows), len(labelled))


def draw_strip(weights: Path, root: Path, device: torch.device, path: Path, split: str = TEST) -> None:
    """Draw labelled moments of the first seconds of the first recording of a split, in `root`, that has some."""
    dataset = open_dataset(read_settings(weights), root)
    for files in dataset.files(split):
        recording = dataset.open_checked(files)
        labelled = np.unique(recording.labelled).tolist()
        if labelled:
            ends = _seconds(recording)
            latest = max(ends[labelled[0]], STRIP_SECONDS)
            windows = evenly([window for window in labelled if ends[window] <= latest], STRIP_ROWS)
            network = _network(weights, recording, device)
            shown = list(run_inference(network, recording, windows, MIN_SCORE))
            draw_figure(shown, _style(network, recording, windows), path)
            return
    raise UserError(root, f"no recording of the split {split} has a label", "check the data")


def find(settings: Finetuning, wanted: str, root: Path | None, sensor_px: str | None = None) -> Recording:
    """The recording of that name or path: of the task's data in `root` with its labels, else any other, without."""
    path, names = Path(wanted), []
    if len(path.parts) > 1 and not path.exists():
        raise UserError(f"--predict {wanted}", "no such file or folder", "check the path")
    if root is not None:
        dataset = open_dataset(replace(settings, sensor_px=sensor_px or settings.sensor_px), root)
        for split in dataset.splits:
            for files in dataset.files(split):
                if files.name == wanted or (path.exists() and files.source.path.resolve() == path.resolve()):
                    return dataset.open_checked(files)
                names.append(files.name)
    if not path.exists():
        there = f"give a path, or one of {', '.join(names[:6])}" if names else "give the path of one"
        raise UserError(f"--predict {wanted}", "no such recording", there)
    window_ms, sensor = settings.window_ms or SEGMENT_MS, parse_size(sensor_px) if sensor_px else None
    return open_recording(path, window_ms, settings.downsample, sensor)


def evenly(windows: Sequence[int], count: int) -> list[int]:
    """At most `count` of the windows, spread over all, the first and the last among them."""
    return [windows[place] for place in np.unique(np.linspace(0, len(windows) - 1, count).round().astype(int))]


def _network(weights: Path, recording: Recording, device: torch.device) -> TrainedNetwork:
    network = load_trained(weights, height=recording.region.height, width=recording.region.width)
    network.model.to(device)
    return network


def _style(network: TrainedNetwork, recording: Recording, labelled: Sequence[int]) -> Style:
    """With the scale of the labels that are drawn, else of what the network's head predicts."""
    _, task, settings = network
    limits = value_limits(task.draw, (_truth(recording, window) for window in labelled))
    if not labelled and "max_depth" in settings.head:
        limits = float(settings.head["min_depth"]), float(settings.head["max_depth"])
    return Style(task.draw, settings.classes, bool(labelled), limits)


def _seconds(recording: Recording) -> Any:
    """(N,) end of each window in s since the recording's start."""
    return (recording.windows[:, 1] - recording.windows[0, 0]) / 1e6


def _labels(recording: Recording, window: int) -> list[int]:
    return list(recording.labels_in(window, 1)) if isinstance(recording, LabelledRecording) else []


def _truth(recording: Any, window: int) -> Any:
    """The last label of a window, None if it has none."""
    labels = _labels(recording, window)
    return recording.labels[labels[-1]] if labels else None

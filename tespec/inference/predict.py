"""Predictions of a trained network on a recording, drawn into a folder."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tespec.core.errors import UserError
from tespec.core.progress import progress
from tespec.core.settings import Finetuning, parse_size
from tespec.datasets.base import TEST, RecordingFiles
from tespec.datasets.recording import LabelledRecording, Recording
from tespec.inference.load import load_trained
from tespec.inference.stream import SEGMENT_MS, open_recording
from tespec.pictures.predictions import Prediction, Style, draw_figure, draw_video
from tespec.tasks.base import Task, open_dataset


@torch.no_grad()
def play(
    model: Any,
    task: type[Task],
    settings: Finetuning,
    recording: Recording,
    clip: tuple[float, float],
    device: torch.device,
) -> Iterator[Prediction]:
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
    lengths = np.diff(recording.windows, axis=1)[:, 0] / 1e3
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
        yield Prediction(float(ends[index]), float(lengths[index]), histogram[0], predicted, _truth(recording, index))


def _truth(recording: Recording, window: int) -> Any:
    if not isinstance(recording, LabelledRecording):
        return None
    labels = recording.labels_in(window, 1)
    return recording.labels[labels[-1]] if len(labels) else None


ROWS = 4  # of the figure


@dataclass(frozen=True)
class Request:
    """What is to be drawn.

    Attributes:
        recording: name of one of the data set's recordings, which comes with its labels, or path of any other.
        out: folder for the pictures.
        clip: first and last second.
        min_score: boxes of a lower score are not drawn.
        sensor_px: size of the recording's sensor, as "640x480", where it does not name it.
    """

    recording: str
    out: Path
    clip: tuple[float, float]
    min_score: float
    sensor_px: str | None = None


@dataclass(frozen=True)
class Drawn:
    """What was written, and of how many windows, and how many of those had a label."""

    figure: Path
    video: Path
    moments: int
    labelled: int


def predict(weights: Path, request: Request, root: Path | None, device: torch.device) -> Drawn:
    """Play a recording through the network of `weights`, and draw what it says.

    Args:
        weights: `model.safetensors` of a fine-tuning.
        request: what is drawn, and where.
        root: folder of the task's data, in which names are looked up; None where there is none.
        device: where the network runs.

    Raises:
        UserError: weights or recording cannot be read, or the clip holds nothing.
    """
    settings = load_trained(weights).settings
    recording = find(settings, request.recording, root, request.sensor_px)
    model, task, settings = load_trained(weights, (recording.region.height, recording.region.width))
    model.to(device)
    played = []
    with progress(f"predictions on {recording.name}", "windows") as advance:
        for prediction in play(model, task, settings, recording, request.clip, device):
            played.append(prediction.above(request.min_score))
            advance(len(played), len(played), "")
    request.out.mkdir(parents=True, exist_ok=True)
    name = re.sub(r"[^\w.-]+", "_", recording.name)
    figure, video = request.out / f"{name}.png", request.out / f"{name}.gif"
    style = Style(task.draw, settings.classes)
    draw_figure(chosen(played), style, figure)
    draw_video(played, style, video, _milliseconds(played))
    return Drawn(figure, video, len(played), sum(each.truth is not None for each in played))


def find(settings: Finetuning, wanted: str, root: Path | None, sensor_px: str | None = None) -> Recording:
    """The recording of that name or path: of the task's data with its labels, else any other, without.

    Args:
        settings: of the network's training.
        wanted: name or path.
        root: folder of the task's data; None where there is none.
        sensor_px: size of the recording's sensor, where it does not name it; default, in the task's data: as in the
            training.

    Raises:
        UserError: there is none, or it cannot be read.
    """
    path, names = Path(wanted), []
    if len(path.parts) > 1 and not path.exists():
        raise UserError(f"--predict {wanted}", "no such file or folder", "check the path")
    if root is not None:
        dataset = open_dataset(replace(settings, sensor_px=sensor_px or settings.sensor_px), root)
        for split in dataset.splits:
            for files in dataset.files(split):
                if _is_wanted(files, wanted):
                    return dataset.open_checked(files)
                names.append(files.name)
    if not path.exists():
        there = f"give a path, or one of {', '.join(names[:6])}" if names else "give the path of one"
        raise UserError(f"--predict {wanted}", "no such recording", there)
    sensor = parse_size(sensor_px) if sensor_px else None
    return open_recording(path, settings.window_ms or SEGMENT_MS, settings.downsample, sensor)


def _is_wanted(files: RecordingFiles, wanted: str) -> bool:
    path = Path(wanted)
    return files.name == wanted or (path.exists() and files.source.path.resolve() == path.resolve())


def chosen(played: Sequence[Prediction], rows: int = ROWS) -> list[Prediction]:
    """A few predictions spread over all, of windows with a label if there are any."""
    labelled = [each for each in played if each.truth is not None] or list(played)
    return [labelled[place] for place in evenly(len(labelled), rows)]


def evenly(count: int, rows: int) -> list[int]:
    """At most `rows` of the places 0 to `count` - 1, the first and the last among them."""
    places: list[int] = np.unique(np.linspace(0, count - 1, rows).round().astype(int)).tolist()
    return places


def _milliseconds(played: Sequence[Prediction]) -> int:
    """Typical time between predictions, not below what viewers of GIF files can show."""
    if len(played) < 2:
        return round(SEGMENT_MS)
    return max(20, round(1000 * float(np.median(np.diff([each.seconds for each in played])))))


SECONDS = 8.0  # from the start of a recording; a recurrent network has to see all of them
STRIP_ROWS = 3
MIN_SCORE = 0.3


def draw_strip(weights: Path, root: Path, device: torch.device, path: Path, split: str = TEST) -> None:
    """Draw labelled moments of the first seconds of the first recording of a split that has some.

    Args:
        weights: `model.safetensors` of a fine-tuning.
        root: folder of the task's data.
        device: where the network runs.
        path: of the PNG.
        split: "test" or "val".

    Raises:
        UserError: weights or data cannot be read, or no label is that early.
    """
    settings = load_trained(weights).settings
    dataset = open_dataset(settings, root)
    for files in dataset.files(split):
        recording = dataset.open_checked(files)
        labelled = recording.windows[recording.labelled, 1]
        ends = (labelled - recording.windows[0, 0]) / 1e6
        if not len(ends):
            continue
        early = ends[ends <= max(ends[0], SECONDS)]
        # Seconds of histograms at full size would fill the memory; only those that are drawn are kept.
        wanted = {float(early[place]) for place in evenly(len(early), STRIP_ROWS)}
        clip = (min(wanted), max(wanted))
        model, task, settings = load_trained(weights, (recording.region.height, recording.region.width))
        shown = [
            prediction.above(MIN_SCORE)
            for prediction in play(model.to(device), task, settings, recording, clip, device)
            if prediction.seconds in wanted
        ]
        path.parent.mkdir(parents=True, exist_ok=True)
        draw_figure(shown, Style(task.draw, settings.classes), path)
        return
    raise UserError(root, f"no recording of the split {split} has a label", "check the data")

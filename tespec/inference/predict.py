"""Predictions of a trained network on a recording, drawn into a folder."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from tespec.datasets.base import RecordingFiles
from tespec.datasets.finding import find_recordings
from tespec.datasets.recording import Recording
from tespec.datasets.unlabelled import cut
from tespec.errors import UserError
from tespec.inference.load import load_trained
from tespec.inference.pictures import above, draw_figure, draw_video
from tespec.inference.play import Moment, play
from tespec.sensor import parse_size
from tespec.settings import Finetuning
from tespec.training.labelled import open_dataset
from tespec.training.progress import progress

SEGMENT_MS = 50.0  # of recurrent networks where no label cuts the time (paper, Sec. 4.1)
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
    """What was written."""

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
        for moment in play(model, task, settings, recording, request.clip, device):
            played.append(above(moment, request.min_score))
            advance(len(played), len(played), "")
    request.out.mkdir(parents=True, exist_ok=True)
    name = re.sub(r"[^\w.-]+", "_", recording.name)
    figure, video = request.out / f"{name}.png", request.out / f"{name}.gif"
    draw_figure(chosen(played), settings.classes, figure)
    draw_video(played, settings.classes, video, _milliseconds(played))
    return Drawn(figure, video, len(played), sum(moment.truth is not None for moment in played))


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
        for split in settings.splits:
            for files in dataset.files(split) if settings.splits[split] else ():
                if _is_wanted(files, wanted):
                    return dataset.open(files)
                names.append(files.name)
    if not path.exists():
        there = f"give a path, or one of {', '.join(names[:6])}" if names else "give the path of one"
        raise UserError(f"--predict {wanted}", "no such recording", there)
    (found, *others) = find_recordings(path)
    if others:
        raise UserError(path, f"holds {len(others) + 1} recordings", "name one of them")
    sensor = parse_size(sensor_px) if sensor_px else None
    return cut(path, found, settings.window_ms or SEGMENT_MS, settings.downsample, sensor)


def _is_wanted(files: RecordingFiles, wanted: str) -> bool:
    path = Path(wanted)
    return files.name == wanted or (path.exists() and files.source.path.resolve() == path.resolve())


def chosen(moments: Sequence[Moment], rows: int = ROWS) -> list[Moment]:
    """A few moments spread over all, those with a label if there are any."""
    labelled = [moment for moment in moments if moment.truth is not None] or list(moments)
    return [labelled[place] for place in spread(len(labelled), rows)]


def spread(count: int, rows: int) -> list[int]:
    """At most `rows` of the places 0 to `count` - 1, the first and the last among them."""
    places: list[int] = np.unique(np.linspace(0, count - 1, rows).round().astype(int)).tolist()
    return places


def _milliseconds(moments: Sequence[Moment]) -> int:
    """Typical time between moments, not below what viewers of GIF files can show."""
    if len(moments) < 2:
        return round(SEGMENT_MS)
    return max(20, round(1000 * float(np.median(np.diff([moment.seconds for moment in moments])))))

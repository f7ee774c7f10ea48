"""Predictions of a trained network on a recording, drawn into a folder."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image

from tespec.core.boxes import Boxes
from tespec.core.errors import UserError
from tespec.core.files import whole_file
from tespec.core.progress import progress
from tespec.core.settings import Finetuning, parse_size
from tespec.datasets.base import RecordingFiles
from tespec.datasets.finding import find_recordings
from tespec.datasets.recording import LabelledRecording, Recording
from tespec.datasets.unlabelled import cut
from tespec.inference.load import load_trained
from tespec.pictures.drawing import event_image
from tespec.pictures.labels import add_legend, draw_label, faded_events
from tespec.tasks.base import LabelledTask, open_dataset


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


COLUMNS = ("events", "prediction", "ground truth")
PANEL = 4.0  # inches
FIGURE_DPI, VIDEO_DPI = 100, 80


def draw_figure(moments: Sequence[Moment], classes: Sequence[str], path: Path) -> None:
    """Write a row of two or three pictures for each moment as a PNG."""
    figure = _figure(moments, classes, columns_of(moments))
    with whole_file(path) as unfinished:
        figure.savefig(unfinished, dpi=FIGURE_DPI, format="png", metadata={"Software": None})


def draw_video(moments: Sequence[Moment], classes: Sequence[str], path: Path, milliseconds: int) -> None:
    """Write an animated GIF with a frame of `milliseconds` for each moment; at least one."""
    columns = columns_of(moments)
    pictures = (Image.fromarray(_pixels(moment, classes, columns)) for moment in moments)
    frames = [picture.quantize(dither=Image.Dither.NONE) for picture in pictures]
    how = {"save_all": True, "append_images": frames[1:], "duration": milliseconds, "loop": 0, "optimize": False}
    with whole_file(path) as unfinished:
        frames[0].save(unfinished, format="GIF", **how)


def above(moment: Moment, score: float) -> Moment:
    """The moment without predicted boxes of a lower score."""
    predicted = moment.predicted
    if not isinstance(predicted, Boxes):
        return moment
    return replace(moment, predicted=predicted.keep(predicted.score >= score))


def columns_of(moments: Sequence[Moment]) -> Sequence[str]:
    """What is shown of each moment."""
    return COLUMNS if any(moment.truth is not None for moment in moments) else COLUMNS[:2]


def _figure(moments: Sequence[Moment], classes: Sequence[str], columns: Sequence[str]) -> Figure:
    height, width = moments[0].histogram.shape[1:]
    row = PANEL * height / width + 0.05
    figure = Figure(figsize=(PANEL * len(columns), 0.7 + len(moments) * row), layout="constrained")
    FigureCanvasAgg(figure)
    cells = figure.subplots(len(moments), len(columns), squeeze=False)
    for number, (axes, moment) in enumerate(zip(cells, moments, strict=True)):
        for axis, column in zip(axes, columns, strict=True):
            events = column == COLUMNS[0]
            axis.imshow(event_image(moment.histogram) if events else faded_events(moment.histogram))
            axis.set_xticks([])
            axis.set_yticks([])
            if number == 0:
                axis.set_title(column, fontsize=11)
        axes[0].set_ylabel(f"{moment.seconds:.2f} s", fontsize=9)
        draw_label(axes[1], moment.predicted)
        if moment.truth is not None and len(axes) == len(COLUMNS):
            draw_label(axes[2], moment.truth)
    if classes:
        add_legend(figure, classes)
    return figure


def _pixels(moment: Moment, classes: Sequence[str], columns: Sequence[str]) -> NDArray[np.uint8]:
    """A figure of one moment as (H, W, 3)."""
    figure = _figure([moment], classes, columns)
    figure.set_dpi(VIDEO_DPI)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()


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

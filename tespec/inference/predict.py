"""Run inference on a recording and draw the predictions beside its events."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray

from tespec.core.boxes import Boxes
from tespec.core.errors import UserError
from tespec.core.progress import progress
from tespec.core.settings import Finetuning, parse_size
from tespec.datasets.recording import LabelledRecording, Recording
from tespec.inference.load import SEGMENT_MS, TrainedNetwork, for_size, load_trained, open_recording, read_settings
from tespec.pictures import POLARITIES, add_bar, colours_of, make_panels, save_figure, show_events, show_faded
from tespec.tasks.base import open_dataset

ROWS = 4  # of the figure
MIN_SCORE = 0.3  # of boxes that are drawn
COLUMNS = ("events", "prediction", "ground truth")
PANEL = 4.0  # inches
DPI = 100


@dataclass(frozen=True)
class Prediction:
    """A network's prediction at the end of a window."""

    seconds: float  # since the recording's first window began
    milliseconds: float  # length of the window
    histogram: NDArray[np.uint8]  # (2*bins, H, W) of the window
    predicted: Any  # as the task's scorer takes it: a mask (H, W) uint8, a depth (H, W) float32 in m, `Boxes` ...
    truth: Any  # the last label of the window, in the same form; None where there is none


class Drawn(NamedTuple):
    """Path of the figure, number of windows in the clip, and how many of those have a label."""

    figure: Path
    windows: int
    labelled: int


def predict(
    weights: Path,
    wanted: str,
    out: Path,
    device: torch.device,
    *,
    root: Path | None = None,
    clip: tuple[float, float] = (0.0, 10.0),
    sensor_px: str | None = None,
) -> Drawn:
    """Run the network of `weights` on a recording and draw `ROWS` of its predictions.

    Args:
        weights: `model.safetensors` of a fine-tuning.
        wanted: name of one of the data set's recordings, which comes with its labels, or path of any other.
        out: folder for the figure.
        device: where the network runs.
        root: folder of the task's data, in which names are looked up, if there is one.
        clip: first and last second.
        sensor_px: size of the recording's sensor, as "640x480", if it does not name it.

    Raises:
        UserError: weights or recording cannot be read, or no window ends within the clip.
    """
    recording = find(read_settings(weights), wanted, root, sensor_px)
    if not len(recording):
        raise UserError(recording.path, "is shorter than a window of the training", "give a longer recording")
    ends, (start, end) = _seconds(recording), clip
    windows = np.flatnonzero((ends >= start) & (ends <= end)).tolist()
    if not windows:
        lasts = f"no window ends between {start:g} and {end:g} s; it lasts {ends[-1]:.2f} s"
        raise UserError(recording.path, lasts, "give another --clip")
    labelled = np.intersect1d(windows, getattr(recording, "labelled", [])).tolist()
    shown = labelled or windows
    drawn = sorted({shown[place] for place in np.linspace(0, len(shown) - 1, ROWS).round().astype(int)})
    network = load_trained(weights)
    model = for_size(network.model, (recording.region.height, recording.region.width))
    network = network._replace(model=model.to(device))
    predictions = list(run_inference(network, recording, drawn))
    figure = out / (re.sub(r"[^\w.-]+", "_", recording.name) + ".png")
    save_figure(draw(predictions, network, bool(labelled)), figure, DPI)
    return Drawn(figure, len(windows), len(labelled))


@torch.no_grad()
def run_inference(network: TrainedNetwork, recording: Recording, windows: Sequence[int]) -> Iterator[Prediction]:
    """Predictions at the end of some windows of a recording, indices in rising order, one at a time.

    A recurrent network sees the recording from its start, a feed-forward one each window alone. Boxes of a score below
    `MIN_SCORE` are left out.
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
            predictions, state = model.predict(segments, state, place if index in wanted else place[:0])
            if index in wanted:
                (predicted,) = task.read(predictions)
                if isinstance(predicted, Boxes):
                    predicted = predicted.keep(predicted.score >= MIN_SCORE)
                truth = None
                if isinstance(recording, LabelledRecording) and (labels := recording.labels_in(index, 1)):
                    truth = recording.labels[labels[-1]]
                yield Prediction(float(ends[index]), float(lengths[index]), histogram[0], predicted, truth)
            advance(done + 1, len(steps), "")


def draw(shown: Sequence[Prediction], network: TrainedNetwork, has_truth: bool) -> Figure:
    """A figure with a row of two or three pictures for each prediction; depths have the range of the network's head."""
    _, task, settings = network
    limits = (settings.head["min_depth"], settings.head["max_depth"]) if "max_depth" in settings.head else None
    columns = COLUMNS if has_truth else COLUMNS[:2]
    labels = [label for each in shown for label in (each.predicted, each.truth) if label is not None]
    colours = POLARITIES | colours_of(labels, settings.classes)
    bars = int(limits is not None)
    size, width = shown[0].histogram.shape[1:], PANEL * len(columns) + 0.5 * bars
    figure, panels = make_panels(len(shown), columns, size, width, bars, colours)
    for axes, each in zip(panels, shown, strict=True):
        show_events(axes[0], each.histogram)
        axes[0].set_ylabel(f"{each.seconds:.2f} s\nevents of {each.milliseconds:.0f} ms", fontsize=9)
        images = []
        for axis, label in zip(axes[1:], (each.predicted, each.truth), strict=False):
            show_faded(axis, each.histogram)
            if label is not None and (image := task.draw(axis, label)) is not None:
                images.append(image)
        for image in images:
            image.set_clim(*(limits or images[0].get_clim()))
        if images:
            add_bar(axes[-1], images[-1], str(images[-1].get_label()))
    return figure


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


def _seconds(recording: Recording) -> Any:
    """(N,) end of each window in s since the recording's start."""
    return (recording.windows[:, 1] - recording.windows[0, 0]) / 1e6

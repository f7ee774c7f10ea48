"""Inference with trained networks: load their weights, run them on a recording, and draw their predictions."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic.dataclasses import dataclass

from tespec.core.boxes import Boxes
from tespec.core.errors import UserError
from tespec.core.progress import progress
from tespec.core.settings import Downsample, Finetuning, PositiveFloat, PositiveInt, Rule, Size, build, parse_size
from tespec.datasets.folder import find_recordings, name_of, source_of
from tespec.datasets.recording import LabelledRecording, Recording, fixed_windows
from tespec.models.backbone import Backbone, resized
from tespec.models.layers import padded_size
from tespec.tasks import find_task
from tespec.tasks.base import Network, Task, fresh_backbone, open_dataset
from tespec.weights.files import problem_of, read_recipe, read_tensors
from tespec.weights.load import BESIDE, SENSOR, read_backbone

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LARGEST = 2048  # px of a side; no sensor is larger
SEGMENT_MS = 50.0  # for networks trained on windows from label to label (paper, Sec. 4.1)
ROWS = 4  # of the figure
MIN_SCORE = 0.3  # of boxes that are drawn
COLUMNS = ("events", "prediction", "ground truth")
PANEL = 4.0  # inches


def load(path: str | Path, *, height: int | None = None, width: int | None = None) -> Backbone | Network:
    """Load a trained network in evaluation mode, ready for `tespec.stream` and `.step(histogram, state)`.

    Args:
        path: `backbone.safetensors` of a pre-training, or `model.safetensors` of a fine-tuning.
        height: rows in px of the histograms given to `.step`; default: those of its training.
        width: columns in px; default: those of its training.

    Returns:
        The backbone, whose `step` returns four features; or a task's network, whose `step` returns a mask (B, H, W), a
        depth map (B, H, W) in m, or `Boxes` of each lane.

    Raises:
        UserError: the file is unreadable, has no recipe, or does not fit it; or the size is invalid.
    """
    size, path = _given_size(height, width), Path(path)
    recipe = read_recipe(path)
    network: Backbone | Network = load_trained(path).model if "kind" in recipe else read_backbone(path)
    network.recipe = recipe
    return network if size is None else for_size(network, size)


def _given_size(height: Any, width: Any) -> Size | None:
    """Check height and width in px as given by the user; None if both are None. One without the other is refused."""
    if height is None and width is None:
        return None
    if not all(isinstance(side, int) and 1 <= side <= LARGEST for side in (height, width)):
        raise UserError(f"height={height!r}, width={width!r}", "not a size in px", f"set both, from 1 to {LARGEST}")
    return height, width


class TrainedNetwork(NamedTuple):
    """A network in evaluation mode, its task and its settings."""

    model: Any
    task: type[Task]
    settings: Finetuning


def read_settings(path: Path) -> Finetuning:
    """Read the settings of the fine-tuning that wrote a network from the file's header; a `UserError` if none did."""
    recipe = read_recipe(path)
    if "kind" not in recipe:
        raise UserError(path, "contains no network with a task head", "use a model.safetensors of `tespec run`")
    return build(Finetuning, {key: value for key, value in recipe.items() if key not in BESIDE}, str(path))


def load_trained(path: Path) -> TrainedNetwork:
    """Load a task's network for the histogram size of its training; a `UserError` if the file does not fit it."""
    settings = read_settings(path)
    tensors, recipe = read_tensors(path)
    if SENSOR not in recipe:
        raise UserError(path, "does not store the sensor size of its training", "train it again with this version")
    task = find_task(settings)
    model = task.network(settings, fresh_backbone(settings, tuple(recipe[SENSOR])))
    wanted = model.state_dict()
    for name, target in wanted.items():
        if problem := problem_of(tensors.get(name), target):
            raise UserError(path, f"{name} {problem}", "use the unmodified file of `tespec run`")
    model.load_state_dict({name: tensors[name] for name in wanted})
    return TrainedNetwork(model.eval(), task, settings)


@dataclass(frozen=True)
class Preprocessing:
    """Conversion of events to histograms in a training, from the recipe of its weights."""

    window_ms: PositiveFloat | None
    bins: PositiveInt
    rule: Rule
    downsample: Downsample


def stream(
    recording: str | Path,
    network: str | Path | Backbone | Network,
    *,
    height: int | None = None,
    width: int | None = None,
) -> Iterator[tuple[Any, Any]]:
    """Yield the features of a recording window by window, with the state carried from its first event on.

    Windows, bins, clipping, order of polarities and downsampling are those of the network's training. A network trained
    for another image size is built again for this size, with the same weights. No gradients are computed.

    Args:
        recording: file or folder of events.
        network: network from `tespec.load`, or the path of its weights; it runs on its current device.
        height: rows of the sensor in px, for recordings that do not specify them.
        width: columns of the sensor in px, for recordings that do not specify them.

    Yields:
        the output of `network.step` for each window: four features (1, C, h, w) of a backbone, or the prediction of a
        task's network; and the state after the window.

    Raises:
        UserError: the recording is unreadable or shorter than a window, or the network was not trained on events.
    """
    where, sensor = "network", _given_size(height, width)
    if isinstance(network, str | Path):
        where, network = str(network), load(network)
    backbone, recipe = _backbone(network), network.recipe or {}
    if backbone.in_channels != 2 * backbone.bins:
        what = f"was trained on images of {backbone.in_channels} channels, not on events"
        raise UserError(where, what, "use a network trained on events")
    names = [field.name for field in fields(Preprocessing)]
    if missing := [name for name in names if name not in recipe]:
        what = f"does not specify how events become histograms ({', '.join(missing)})"
        raise UserError(where, what, "load weights trained with tespec, or pass histograms to its step()")
    counted = build(Preprocessing, {name: recipe[name] for name in names}, where)
    length = counted.window_ms or SEGMENT_MS
    opened = open_recording(Path(recording), length, counted.downsample, sensor)
    if not len(opened):
        raise UserError(recording, f"is shorter than a window of {length:g} ms", "use a longer recording")
    # Not a generator itself, so that errors are raised here and not at the first step.
    return _steps(for_size(network, (opened.region.height, opened.region.width)), opened, counted)


def _steps(network: Backbone | Network, recording: Recording, counted: Preprocessing) -> Iterator[tuple[Any, Any]]:
    device, state = next(network.parameters()).device, None
    for window in range(len(recording)):
        histogram = torch.from_numpy(recording.histograms(window, 1, counted.bins, counted.rule))
        features, state = network.step(histogram.to(device), state)
        yield features, state


def open_recording(path: Path, window_ms: float, downsample: Downsample, sensor: Size | None = None) -> Recording:
    """Open the only recording at or under `path`, cut into contiguous windows; a `UserError` unless there is one."""
    found, *others = find_recordings(path)
    if others:
        raise UserError(path, f"contains {len(others) + 1} recordings", "choose one of them")
    return fixed_windows(name_of(path, found), source_of(found, sensor), window_ms, downsample)


def for_size(network: Backbone | Network, size: Size) -> Backbone | Network:
    """Return the network for histograms of `size` (H, W) in px: itself, or a copy with the same weights."""
    backbone, padded = _backbone(network), padded_size(*size)
    if backbone.img_size == padded:
        return network
    # In the copy of the complete network, the resized backbone replaces the original.
    return copy.deepcopy(network, {id(backbone): resized(backbone, padded)})


def _backbone(network: Backbone | Network) -> Backbone:
    return network if isinstance(network, Backbone) else network.backbone


class Prediction(NamedTuple):
    """A network's prediction at the end of a window."""

    seconds: float  # since the start of the recording's first window
    milliseconds: float  # length of the window
    histogram: NDArray[np.uint8]  # (2*bins, H, W) of the window
    predicted: Any  # in the format of the task's scorer: mask (H, W) uint8, depth (H, W) float32 in m, `Boxes` ...
    truth: Any  # last label of the window in the same format, or None


def predict(
    weights: Path,
    wanted: str,
    out: Path,
    device: torch.device,
    *,
    root: Path | None = None,
    clip: tuple[float, float] = (0.0, 10.0),
    sensor_px: str | None = None,
) -> tuple[int, int, Path]:
    """Run the network of `weights` on a recording and draw `ROWS` of its predictions.

    `wanted` is the name of a recording of the task's data in `root`, which is shown with its labels, or the path of any
    other recording. `clip` is start and end in s; `sensor_px`, such as "640x480", is the size of the sensor if the
    recording does not specify it. Returns the number of windows in the clip, the number of these with a label, and the
    path of the figure in the folder `out`.
    """
    recording = find(read_settings(weights), wanted, root, sensor_px)
    if not len(recording):
        raise UserError(recording.path, "is shorter than a training window", "use a longer recording")
    ends, (start, end) = _seconds(recording), clip
    windows = np.flatnonzero((ends >= start) & (ends <= end)).tolist()
    if not windows:
        lasts = f"no window ends between {start:g} and {end:g} s; the recording lasts {ends[-1]:.2f} s"
        raise UserError(recording.path, lasts, "choose another --clip")
    labelled = np.intersect1d(windows, getattr(recording, "labelled", [])).tolist()
    shown = labelled or windows
    drawn = sorted({shown[place] for place in np.linspace(0, len(shown) - 1, ROWS).round().astype(int)})
    network = load_trained(weights)
    model = for_size(network.model, (recording.region.height, recording.region.width))
    network = network._replace(model=model.to(device))
    predictions = list(run_inference(network, recording, drawn))
    from tespec.pictures import save_figure

    figure = out / (re.sub(r"[^\w.-]+", "_", recording.name) + ".png")
    save_figure(draw(predictions, network, bool(labelled)), figure, dpi=100)
    return len(windows), len(labelled), figure


@torch.no_grad()
def run_inference(network: TrainedNetwork, recording: Recording, windows: Sequence[int]) -> Iterator[Prediction]:
    """Yield the predictions at the end of selected windows of a recording, given by their indices in rising order.

    A recurrent network runs from the start of the recording, a feed-forward one on each selected window alone. Boxes
    with a score below `MIN_SCORE` are dropped.
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
    """Draw two or three panels in a row for each prediction; depth has the range of the network's head."""
    from tespec.pictures import POLARITIES, add_bar, colours_of, make_panels, show_events, show_faded

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
    """Open the recording of that name or path: from the task's data in `root` with labels, else without labels."""
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
        there = f"use a path, or one of {', '.join(names[:6])}" if names else "use the path of a recording"
        raise UserError(f"--predict {wanted}", "no such recording", there)
    window_ms, sensor = settings.window_ms or SEGMENT_MS, parse_size(sensor_px) if sensor_px else None
    return open_recording(path, window_ms, settings.downsample, sensor)


def _seconds(recording: Recording) -> Any:
    """End (N,) of each window in s since the start of the first window."""
    return (recording.windows[:, 1] - recording.windows[0, 0]) / 1e6

"""Inference with trained networks: load weights, play them on recordings, draw predictions."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray

from tespec.core.errors import UserError
from tespec.core.settings import Finetuning, HistogramSpec, Size, build, parse_size
from tespec.datasets.archive import source_of
from tespec.datasets.base import RecordingFiles
from tespec.datasets.folder import find_recordings, recording_name
from tespec.datasets.recording import LabelledRecording, Recording, fixed_windows, spread
from tespec.models.backbone import Backbone, resize_backbone
from tespec.models.layers import padded_size
from tespec.tasks import find_task
from tespec.tasks.base import Network, Task, features_player, open_dataset, random_backbone
from tespec.tasks.play import Predictor, play
from tespec.weights.files import load_tensors, read_recipe, read_tensors
from tespec.weights.load import EXTRA_FIELDS, histograms_of, read_backbone

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_SIDE = 2048  # px; no sensor is larger
ROWS = 4  # of the figure
COLUMNS = ("events", "prediction", "ground truth")
PANEL = 4.0  # inches


def load(
    path: str | Path, *, height: int | None = None, width: int | None = None
) -> Backbone | Network:
    """Load a trained network in evaluation mode, ready for `tespec.stream` and `.step`.

    Example:
        >>> import tespec, torch
        >>> network = tespec.load("backbone.safetensors", height=64, width=96)
        >>> histogram = torch.zeros(1, 20, 64, 96, dtype=torch.uint8)  # 10 bins, 2 polarities
        >>> features, state = network.step(histogram)
        >>> [tuple(stage.shape) for stage in features]
        [(1, 24, 16, 24), (1, 48, 8, 12), (1, 96, 4, 6), (1, 192, 2, 3)]
        >>> features, state = network.step(histogram, state)  # the next window of the stream

    Args:
        path: `backbone.safetensors` of a pre-training, `model.safetensors` of a fine-tuning, or a
            published file in a format of `tespec weights list`.
        height: rows in px of the histograms given to `.step`; default: those of its training.
        width: columns in px; default: those of its training.

    Returns:
        The backbone, whose `step` returns four features; or a task's network, whose `step` returns
        a mask (B, H, W), a depth map (B, H, W) in m, or `Boxes` of each recording.

    Raises:
        UserError: the file is unreadable, of an unknown format, or incomplete; or the size is
            invalid.
    """
    path = Path(path)
    size = _checked_size(height, width)
    recipe = read_recipe(path)
    network: Any = load_trained(path).model if "kind" in recipe else read_backbone(path, size)
    network.recipe = recipe
    return network if size is None else for_size(network, size)


def _checked_size(height: int | None, width: int | None) -> Size | None:
    """Check a size in px given by the user; None if neither side is given."""
    if height is None and width is None:
        return None
    if not all(isinstance(side, int) and 1 <= side <= MAX_SIDE for side in (height, width)):
        raise UserError(
            f"height={height!r}, width={width!r}",
            "not a size in px",
            f"set both, from 1 to {MAX_SIDE}",
        )
    return cast("Size", (height, width))


class TrainedNetwork(NamedTuple):
    """A network in evaluation mode, its task, its settings and its histograms."""

    model: Any
    task: type[Task]
    settings: Finetuning
    spec: HistogramSpec

    def player(self, size: Size) -> Predictor:
        """Return the network as it is scored, for histograms of `size` (H, W) in px."""
        model = for_size(self.model, size)
        return self.task.player(
            self.settings, model, self.spec, size, next(model.parameters()).device
        )


def settings_of(recipe: Mapping[str, Any], where: object) -> Finetuning:
    """Read the settings of a fine-tuning from the recipe in its weights file.

    Args:
        recipe: of the file.
        where: the file, for messages.

    Raises:
        UserError: no fine-tuning wrote the file.
    """
    if "kind" not in recipe:
        raise UserError(
            where, "contains no network with a task head", "use a model.safetensors of `tespec run`"
        )
    settings = {key: value for key, value in recipe.items() if key not in EXTRA_FIELDS}
    if unknown := settings.keys() - {field.name for field in fields(Finetuning)}:
        what = f"was written by another version of tespec, with the setting {min(unknown)!r}"
        raise UserError(where, what, "train again")
    return build(Finetuning, settings, str(where))


def load_trained(path: Path) -> TrainedNetwork:
    """Load a task's network for the histogram size of its training, if the file fits it."""
    tensors, recipe = read_tensors(path)
    settings = settings_of(recipe, path)
    spec = histograms_of(recipe, path)
    task = find_task(settings)
    model = task.network(settings, random_backbone(settings, spec.size))
    _require_channels(spec, model.backbone, path)
    load_tensors(model, tensors, path, "use the unmodified file of `tespec run`")
    return TrainedNetwork(model.eval(), task, settings, spec)


def _require_channels(spec: HistogramSpec, backbone: Backbone, where: object) -> None:
    if spec.channels != backbone.in_channels:
        raise UserError(
            where,
            f"its input has {spec.channels} channels, but its network takes {backbone.in_channels}",
            "use the unmodified file",
        )


def stream(
    recording: str | Path,
    network: str | Path | Backbone | Network,
    *,
    data: str | Path | None = None,
    height: int | None = None,
    width: int | None = None,
) -> Iterator[tuple[int, Any]]:
    """Yield the outputs of a network on a recording, window by window.

    Windows, bins, clipping, order of polarities, downsampling and the rule by which the state is
    reset are those of the network's training, test-time augmentation and precision those of its
    evaluation. A network trained for another image size is built again for this size, with the same
    weights. No gradients are computed.

    Example:
        >>> import tespec
        >>> for time, features in tespec.stream("drive.aedat4", "backbone.safetensors"):
        ...     print(time, tuple(features[-1].shape))
        1633953691025950 (192, 3, 4)
        1633953691075950 (192, 3, 4)

    Args:
        recording: file or folder of events, played in contiguous windows of the length of the
            training's; or a recording of `data`, by name or path, played in the windows that are
            scored. A recording shorter than a window is one window.
        network: network from `tespec.load`, or the path of its weights; it runs on its current
            device.
        data: folder of the data set of the network's task.
        height: rows of the sensor in px, for recordings that do not specify them.
        width: columns of the sensor in px, for recordings that do not specify them.

    Yields:
        The end of each window in us, on the clock of the recording (as `t_last` of
        `tespec.events.open_events`), and the output: four features (C, h, w) of a backbone; or a
        task's prediction as it is scored, a mask (H, W) uint8, a depth map (H, W) float32 in m, or
        `Boxes`.

    Raises:
        UserError: the recording is unreadable, or the network was not trained on events.
    """
    sensor = _checked_size(height, width)
    where = "network"
    if isinstance(network, str | Path):
        where = str(network)
        network = load(network)
    recipe = network.recipe or {}
    spec = histograms_of(recipe, where)
    backbone: Any = getattr(network, "backbone", network)
    _require_channels(spec, backbone, where)
    has_task = data is not None or isinstance(network, Network)
    settings = settings_of(recipe, where) if has_task else None
    sensor_px = f"{sensor[1]}x{sensor[0]}" if sensor else None
    opened = find(str(recording), spec, settings, None if data is None else Path(data), sensor_px)
    size = opened.region.height, opened.region.width
    if settings is not None:
        player = TrainedNetwork(network, find_task(settings), settings, spec).player(size)
    else:
        player = features_player(for_size(network, size), spec, next(network.parameters()).device)
    # Not a generator itself, so that errors are raised here and not at the first window.
    outputs = play(player, [opened], windows=[np.arange(len(opened))])
    return ((int(opened.windows[played.position, 1]), played.output) for played in outputs)


def for_size(network: Any, size: Size) -> Any:
    """Return a network for other histograms: itself, or a copy with the same weights.

    Args:
        network: a backbone, or a module with one.
        size: of the histograms, (H, W) in px.
    """
    backbone = getattr(network, "backbone", network)
    padded = padded_size(*size)
    if backbone.img_size == padded:
        return network
    # In the copy of the complete network, the resized backbone replaces the original.
    return copy.deepcopy(network, {id(backbone): resize_backbone(backbone, padded)})


class Prediction(NamedTuple):
    """A network's prediction at the end of a window."""

    seconds: float  # since the start of the recording's first window
    milliseconds: float  # length of the window
    histogram: NDArray[np.uint8]  # (2*bins, H, W) of the window
    # in the format of the task's scorer: mask (H, W) uint8, depth (H, W) float32 in m, `Boxes` ...
    predicted: Any
    truth: Any  # last label of the window in the same format, or None


def predict(
    weights: Path,
    name: str,
    out: Path,
    device: torch.device,
    *,
    root: Path | None = None,
    clip: tuple[float, float] = (0.0, 10.0),
    sensor_px: str | None = None,
) -> tuple[int, int, Path]:
    """Run a trained network on a recording, and draw `ROWS` of its predictions.

    Args:
        weights: `model.safetensors` of a fine-tuning.
        name: name or path of a recording of the task's data, shown in the windows that are scored
            and with its labels; or the path of any other recording.
        out: file, or folder for the figure.
        device: where the network runs.
        root: folder of the task's data.
        clip: first and last second of the recording.
        sensor_px: size of the sensor, such as "640x480", if the recording does not specify it.

    Returns:
        The number of windows, the number of these with a label, and the path of the figure.

    Raises:
        UserError: the files do not fit, or no window ends within `clip`.
    """
    network = load_trained(weights)
    network.model.to(device)
    recording = find(name, network.spec, network.settings, root, sensor_px)
    ends = _window_ends(recording)
    start, end = clip
    windows = np.flatnonzero((ends >= start) & (ends <= end)).tolist()
    if not windows:
        period = f"no window ends between {start:g} and {end:g} s"
        raise UserError(
            recording.path,
            f"{period}; the recording lasts {ends[-1]:.2f} s",
            "choose another --clip",
        )
    label_indices: Any = getattr(recording, "label_indices", [])
    labelled = np.intersect1d(windows, label_indices).tolist()
    candidates = labelled or windows
    drawn = [candidates[index] for index in spread(ROWS, len(candidates))]
    predictions = list(run_inference(network, recording, drawn))
    from tespec.pictures import save_figure_as

    figure = draw(predictions, network, bool(labelled))
    file_name = re.sub(r"[^\w.-]+", "_", recording.name)
    return len(windows), len(labelled), save_figure_as(figure, out, file_name, dpi=100)


def run_inference(
    network: TrainedNetwork, recording: Recording, windows: Sequence[int]
) -> Iterator[Prediction]:
    """Yield the predictions, as they are scored, at the end of some windows.

    Args:
        network: a trained network.
        recording: with or without labels.
        windows: rising indices.
    """
    player = network.player((recording.region.height, recording.region.width))
    ends = _window_ends(recording)
    lengths = np.diff(recording.windows)[:, 0] / 1e3
    label = f"predictions on {recording.name}"
    shown = replace(network.spec, representation="histogram", last_events=None)
    for played in play(player, [recording], windows=[np.array(windows)], label=label):
        window = windows[played.position]
        truth = None
        if isinstance(recording, LabelledRecording) and (labels := recording.labels_in(window, 1)):
            truth = recording.labels[labels[-1]]
        yield Prediction(
            seconds=float(ends[window]),
            milliseconds=float(lengths[window]),
            histogram=recording.histograms(window, 1, shown)[0],
            predicted=played.output,
            truth=truth,
        )


def draw(predictions: Sequence[Prediction], network: TrainedNetwork, has_truth: bool) -> Figure:
    """Draw a row of panels for each prediction.

    Args:
        predictions: of windows with the same size.
        network: gives the names and colours of classes, and the range of depth of its head.
        has_truth: whether to draw a third panel, with the label.
    """
    from tespec.pictures import (
        POLARITIES,
        add_bar,
        colours_of,
        make_panels,
        show_events,
        show_faded,
    )

    head = network.settings.head
    limits = (head["min_depth"], head["max_depth"]) if "max_depth" in head else None
    columns = COLUMNS if has_truth else COLUMNS[:2]
    labels = [(row.predicted, row.truth)[: len(columns) - 1] for row in predictions]
    colours = POLARITIES | colours_of(chain.from_iterable(labels), network.settings.classes)
    bars = int(limits is not None)
    size = predictions[0].histogram.shape[1:]
    width = PANEL * len(columns) + 0.5 * bars
    figure, panels = make_panels(len(predictions), columns, size, width, bars, colours)
    for axes, row, pair in zip(panels, predictions, labels, strict=True):
        show_events(axes[0], row.histogram)
        axes[0].set_ylabel(f"{row.seconds:.2f} s\nevents of {row.milliseconds:.0f} ms", fontsize=9)
        for axis in axes[1:]:
            show_faded(axis, row.histogram)
        drawn = [
            network.task.draw(axis, label)
            for axis, label in zip(axes[1:], pair, strict=True)
            if label is not None
        ]
        images = [image for image in drawn if image is not None]
        for image in images:
            image.set_clim(*(limits or images[0].get_clim()))
        if images:
            add_bar(axes[-1], images[-1], str(images[-1].get_label()))
    return figure


def find(
    name: str,
    spec: HistogramSpec,
    settings: Finetuning | None,
    root: Path | None,
    sensor_px: str | None = None,
) -> Recording:
    """Open the recording of that name or path, with at least one window.

    A recording of the task's data is opened with its labels and the windows that are scored,
    another one in contiguous windows of the length of the training's.

    Args:
        name: as in `predict`.
        spec: histograms of the network.
        settings: of the fine-tuning, to open the task's data.
        root: folder of that data.
        sensor_px: as in `predict`.

    Raises:
        UserError: no such recording, or several, or one that is shorter than a window.
    """
    path = Path(name)
    paths = find_recordings(path) if path.exists() else []
    if len(paths) > 1:
        raise UserError(path, f"contains {len(paths)} recordings", "choose one of them")
    recordings: list[RecordingFiles] = []
    if root is not None and settings is not None:
        dataset = open_dataset(replace(settings, sensor_px=sensor_px or settings.sensor_px), root)
        recordings = [files for split in dataset.splits for files in dataset.files(split)]
    resolved = [path.resolve() for path in paths]
    for files in recordings:
        if files.name == name or files.source.path.resolve() in resolved:
            return dataset.open_checked(files)
    if not paths:
        known = ", ".join(files.name for files in recordings[:6])
        raise UserError(
            name, "no such recording", f"use a path, or one of {known}" if known else "use a path"
        )
    source = source_of(paths[0], parse_size(sensor_px) if sensor_px else None)
    title = recording_name(path, paths[0])
    recording = fixed_windows(title, source, spec.window_ms, spec.downsample, at_least_one=True)
    if not len(recording):
        raise UserError(
            path, f"is shorter than a window of {spec.window_ms:g} ms", "use a longer recording"
        )
    return recording


def _window_ends(recording: Recording) -> Any:
    """End (N,) of each window in s since the start of the first window."""
    return (recording.windows[:, 1] - recording.windows[0, 0]) / 1e6

"""Inference with trained networks: load their weights, run them on a recording, and draw their predictions."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from tespec.core.boxes import Boxes
from tespec.core.errors import UserError
from tespec.core.settings import Finetuning, HistogramSpec, Size, build, parse_size
from tespec.datasets.archive import source_of
from tespec.datasets.base import RecordingFiles
from tespec.datasets.folder import find_recordings, name_of
from tespec.datasets.recording import LabelledRecording, Recording, fixed_windows
from tespec.models.backbone import Backbone, resized
from tespec.models.layers import padded_size
from tespec.tasks import find_task
from tespec.tasks.base import Network, Task, features_player, fresh_backbone, open_dataset
from tespec.tasks.play import Player, play
from tespec.weights.files import problem_of, read_recipe, read_tensors
from tespec.weights.load import BESIDE, histograms_of, read_backbone

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LARGEST = 2048  # px of a side; no sensor is larger
ROWS = 4  # of the figure
MIN_SCORE = 0.3  # of boxes that are drawn
COLUMNS = ("events", "prediction", "ground truth")
PANEL = 4.0  # inches


def load(
    path: str | Path, *, height: int | None = None, width: int | None = None
) -> Backbone | Network:
    """Load a trained network in evaluation mode, ready for `tespec.stream` and `.step(histogram, state)`.

    Args:
        path: `backbone.safetensors` of a pre-training, or `model.safetensors` of a fine-tuning.
        height: rows in px of the histograms given to `.step`; default: those of its training.
        width: columns in px; default: those of its training.

    Returns:
        The backbone, whose `step` returns four features; or a task's network, whose `step` returns
        a mask (B, H, W), a depth map (B, H, W) in m, or `Boxes` of each lane.

    Raises:
        UserError: the file is unreadable, has no recipe, or does not fit it; or the size is
            invalid.
    """
    size, path = _given_size(height, width), Path(path)
    recipe = read_recipe(path)
    network: Backbone | Network = (
        load_trained(path).model if "kind" in recipe else read_backbone(path)
    )
    network.recipe = recipe
    return network if size is None else for_size(network, size)


def _given_size(height: Any, width: Any) -> Size | None:
    """Check height and width in px as given by the user; None if both are None. One without the other is refused."""
    if height is None and width is None:
        return None
    if not all(isinstance(side, int) and 1 <= side <= LARGEST for side in (height, width)):
        raise UserError(
            f"height={height!r}, width={width!r}",
            "not a size in px",
            f"set both, from 1 to {LARGEST}",
        )
    return height, width


class TrainedNetwork(NamedTuple):
    """A network in evaluation mode, its task, its settings and its histograms."""

    model: Any
    task: type[Task]
    settings: Finetuning
    spec: HistogramSpec

    def player(self, size: Size) -> Player:
        """Return the network as it is scored, for histograms of `size` (H, W) in px."""
        model = for_size(self.model, size)
        return self.task.player(
            self.settings, model, self.spec, size, next(model.parameters()).device
        )


def read_settings(path: Path) -> Finetuning:
    """Read the settings of the fine-tuning that wrote a network from the file's header; a `UserError` if none did."""
    return settings_of(read_recipe(path), path)


def settings_of(recipe: Mapping[str, Any], where: object) -> Finetuning:
    """Settings of the fine-tuning that wrote a recipe; a `UserError` if none did."""
    if "kind" not in recipe:
        raise UserError(
            where, "contains no network with a task head", "use a model.safetensors of `tespec run`"
        )
    return build(
        Finetuning, {key: value for key, value in recipe.items() if key not in BESIDE}, str(where)
    )


def load_trained(path: Path) -> TrainedNetwork:
    """Load a task's network for the histogram size of its training; a `UserError` if the file does not fit it."""
    tensors, recipe = read_tensors(path)
    settings, spec = settings_of(recipe, path), histograms_of(recipe, path)
    require_bins(spec, settings.bins, path)
    task = find_task(settings)
    model = task.network(settings, fresh_backbone(settings, spec.size))
    wanted = model.state_dict()
    for name, target in wanted.items():
        if problem := problem_of(tensors.get(name), target):
            raise UserError(path, f"{name} {problem}", "use the unmodified file of `tespec run`")
    model.load_state_dict({name: tensors[name] for name in wanted})
    return TrainedNetwork(model.eval(), task, settings, spec)


def require_bins(spec: HistogramSpec, bins: int, where: object) -> None:
    """Refuse weights whose histograms have another number of bins than their network takes."""
    if spec.bins != bins:
        what = f"its histograms have {spec.bins} bins, but its network takes {bins}"
        raise UserError(where, what, "use the unmodified file")


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
        the end of each window in us on the clock of the recording (as `t_last` of
        `tespec.events.open_events`), and the
        output: four features (C, h, w) of a backbone; or a task's prediction as it is scored, a
            mask (H, W) uint8, a
        depth map (H, W) float32 in m, or `Boxes`.

    Raises:
        UserError: the recording is unreadable, or the network was not trained on events.
    """
    where, sensor = "network", _given_size(height, width)
    if isinstance(network, str | Path):
        where, network = str(network), load(network)
    recipe = network.recipe or {}
    spec = histograms_of(recipe, where)
    backbone: Any = getattr(network, "backbone", network)
    require_bins(spec, backbone.bins, where)
    settings = (
        settings_of(recipe, where) if data is not None or isinstance(network, Network) else None
    )
    sensor_px = f"{sensor[1]}x{sensor[0]}" if sensor else None
    opened = find(str(recording), spec, settings, None if data is None else Path(data), sensor_px)
    size = opened.region.height, opened.region.width
    if settings is not None:
        player = TrainedNetwork(network, find_task(settings), settings, spec).player(size)
    else:
        player = features_player(for_size(network, size), spec, next(network.parameters()).device)
    # Not a generator itself, so that errors are raised here and not at the first window.
    every = play(player, [opened], windows=[np.arange(len(opened))])
    return ((int(opened.windows[played.position, 1]), played.output) for played in every)


def for_size(network: Any, size: Size) -> Any:
    """Return the network for histograms of `size` (H, W) in px: itself, or a copy with the same weights."""
    backbone, padded = getattr(network, "backbone", network), padded_size(*size)
    if backbone.img_size == padded:
        return network
    # In the copy of the complete network, the resized backbone replaces the original.
    return copy.deepcopy(network, {id(backbone): resized(backbone, padded)})


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
    wanted: str,
    out: Path,
    device: torch.device,
    *,
    root: Path | None = None,
    clip: tuple[float, float] = (0.0, 10.0),
    sensor_px: str | None = None,
) -> tuple[int, int, Path]:
    """Run the network of `weights` on a recording and draw `ROWS` of its predictions.

    `wanted` is the name or path of a recording of the task's data in `root`, which is shown in the
    windows that are scored and with its labels, or the path of any other recording. `clip` is start
    and end in s; `sensor_px`, such as "640x480", is the size of the sensor if the recording does
    not specify it. Returns the number of windows in the clip, the number of these with a label, and
    the path of the figure in the folder `out`.
    """
    recipe = read_recipe(weights)
    recording = find(
        wanted, histograms_of(recipe, weights), settings_of(recipe, weights), root, sensor_px
    )
    ends, (start, end) = _seconds(recording), clip
    windows = np.flatnonzero((ends >= start) & (ends <= end)).tolist()
    if not windows:
        lasts = (
            f"no window ends between {start:g} and {end:g} s; the recording lasts {ends[-1]:.2f} s"
        )
        raise UserError(recording.path, lasts, "choose another --clip")
    labelled = np.intersect1d(windows, getattr(recording, "labelled", [])).tolist()
    shown = labelled or windows
    drawn = sorted(
        {shown[place] for place in np.linspace(0, len(shown) - 1, ROWS).round().astype(int)}
    )
    network = load_trained(weights)
    network.model.to(device)
    predictions = list(run_inference(network, recording, drawn))
    from tespec.pictures import save_figure

    figure = out / (re.sub(r"[^\w.-]+", "_", recording.name) + ".png")
    save_figure(draw(predictions, network, bool(labelled)), figure, dpi=100)
    return len(windows), len(labelled), figure


def run_inference(
    network: TrainedNetwork, recording: Recording, windows: Sequence[int]
) -> Iterator[Prediction]:
    """Yield the predictions, as they are scored, at the end of windows given by their indices in rising order."""
    player = network.player((recording.region.height, recording.region.width))
    ends, lengths = _seconds(recording), np.diff(recording.windows)[:, 0] / 1e3
    for played in play(
        player, [recording], windows=[np.array(windows)], label=f"predictions on {recording.name}"
    ):
        window, truth = windows[played.position], None
        if isinstance(recording, LabelledRecording) and (labels := recording.labels_in(window, 1)):
            truth = recording.labels[labels[-1]]
        histogram = played.histogram.numpy()
        yield Prediction(
            float(ends[window]), float(lengths[window]), histogram, played.output, truth
        )


def draw(shown: Sequence[Prediction], network: TrainedNetwork, has_truth: bool) -> Figure:
    """Draw two or three panels in a row for each prediction; depth has the range of the network's head."""
    from tespec.pictures import (
        POLARITIES,
        add_bar,
        colours_of,
        make_panels,
        show_events,
        show_faded,
    )

    task, settings = network.task, network.settings
    shown = [each._replace(predicted=confident(each.predicted)) for each in shown]
    limits = (
        (settings.head["min_depth"], settings.head["max_depth"])
        if "max_depth" in settings.head
        else None
    )
    columns = COLUMNS if has_truth else COLUMNS[:2]
    labels = [
        label for each in shown for label in (each.predicted, each.truth) if label is not None
    ]
    colours = POLARITIES | colours_of(labels, settings.classes)
    bars = int(limits is not None)
    size, width = shown[0].histogram.shape[1:], PANEL * len(columns) + 0.5 * bars
    figure, panels = make_panels(len(shown), columns, size, width, bars, colours)
    for axes, each in zip(panels, shown, strict=True):
        show_events(axes[0], each.histogram)
        axes[0].set_ylabel(
            f"{each.seconds:.2f} s\nevents of {each.milliseconds:.0f} ms", fontsize=9
        )
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


def confident(predicted: Any) -> Any:
    """Drop boxes with a score below `MIN_SCORE`, of which there are hundreds; other predictions stay as they are."""
    return (
        predicted.keep(predicted.score >= MIN_SCORE) if isinstance(predicted, Boxes) else predicted
    )


def find(
    wanted: str,
    spec: HistogramSpec,
    settings: Finetuning | None,
    root: Path | None,
    sensor_px: str | None = None,
) -> Recording:
    """Open the recording of that name or path, with at least one window.

    A recording of the task's data in `root` is opened with its labels and the windows that are
    scored, another one in contiguous windows of the length of the training's. `sensor_px` is as in
    `predict`.
    """
    path, recordings = Path(wanted), list[RecordingFiles]()
    paths = find_recordings(path) if path.exists() else []
    if len(paths) > 1:
        raise UserError(path, f"contains {len(paths)} recordings", "choose one of them")
    if root is not None and settings is not None:
        dataset = open_dataset(replace(settings, sensor_px=sensor_px or settings.sensor_px), root)
        recordings = [files for split in dataset.splits for files in dataset.files(split)]
    for files in recordings:
        if files.name == wanted or files.source.path.resolve() in [
            found.resolve() for found in paths
        ]:
            return dataset.open_checked(files)
    if not paths:
        names = ", ".join(files.name for files in recordings[:6])
        raise UserError(
            wanted, "no such recording", f"use a path{names and f', or one of {names}'}"
        )
    source = source_of(paths[0], parse_size(sensor_px) if sensor_px else None)
    recording = fixed_windows(
        name_of(path, paths[0]), source, spec.window_ms, spec.downsample, at_least_one=True
    )
    if not len(recording):
        raise UserError(
            path, f"is shorter than a window of {spec.window_ms:g} ms", "use a longer recording"
        )
    return recording


def _seconds(recording: Recording) -> Any:
    """End (N,) of each window in s since the start of the first window."""
    return (recording.windows[:, 1] - recording.windows[0, 0]) / 1e6

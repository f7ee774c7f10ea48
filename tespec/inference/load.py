"""Load a trained network from the weights that a run wrote, and step it over a recording as its training counted it."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

import torch
from pydantic.dataclasses import dataclass

from tespec.core.errors import UserError
from tespec.core.settings import Downsample, Finetuning, PositiveFloat, PositiveInt, Rule, Size, build
from tespec.datasets.folder import find_recordings, fixed_windows, name_of, source_of
from tespec.datasets.recording import Recording
from tespec.models.backbone import Backbone, resized
from tespec.models.layers import padded_size
from tespec.tasks import find_task
from tespec.tasks.base import Network, Task, fresh_backbone
from tespec.weights.files import problem_of, read_recipe, read_tensors
from tespec.weights.load import BESIDE, SENSOR, read_backbone

LARGEST = 2048  # px of a side; no sensor is larger
SEGMENT_MS = 50.0  # of networks trained on windows from label to label (paper, Sec. 4.1)


def load_network(path: str | Path, *, height: int | None = None, width: int | None = None) -> Backbone | Network:
    """A trained network in evaluation mode, ready for `tespec.stream` and `.step(histogram, state)`.

    Args:
        path: `backbone.safetensors` of a pre-training, or `model.safetensors` of a fine-tuning.
        height: rows in px of the histograms given to `.step`; default: those of its training.
        width: columns, likewise.

    Returns:
        The backbone, whose steps give four features; or a task's network, whose steps give a mask (B, H, W), depths
        (B, H, W) in m, or `Boxes` of each lane.

    Raises:
        UserError: unreadable file, one without a recipe, or a size that is none.
    """
    size, path = _given_size(height, width), Path(path)
    recipe = read_recipe(path)
    network: Backbone | Network = load_trained(path).model if "kind" in recipe else read_backbone(path)
    network.recipe = recipe
    return network if size is None else for_size(network, size)


def _given_size(height: Any, width: Any) -> Size | None:
    """Height and width in px that the user gives, None where there are none; half a size is refused."""
    if height is None and width is None:
        return None
    if not all(isinstance(side, int) and 1 <= side <= LARGEST for side in (height, width)):
        raise UserError(f"height={height!r}, width={width!r}", "no size in px", f"give both, from 1 to {LARGEST}")
    return height, width


class TrainedNetwork(NamedTuple):
    """A network in evaluation mode, its task and its settings."""

    model: Any
    task: type[Task]
    settings: Finetuning


def read_settings(path: Path) -> Finetuning:
    """Settings of the fine-tuning that wrote a network, from the file's header; a `UserError` if none did."""
    recipe = read_recipe(path)
    if "kind" not in recipe:
        raise UserError(path, "holds no network with a task's head", "give a model.safetensors that run.py wrote")
    return build(Finetuning, {key: value for key, value in recipe.items() if key not in BESIDE}, str(path))


def load_trained(path: Path) -> TrainedNetwork:
    """A task's network for histograms of the size of its training; a `UserError` as above."""
    settings = read_settings(path)
    tensors, recipe = read_tensors(path)
    if SENSOR not in recipe:
        raise UserError(path, "does not say what size it was trained for", "train it again with this version")
    task = find_task(settings)
    model = task.network(settings, fresh_backbone(settings, tuple(recipe[SENSOR])))
    wanted = model.state_dict()
    for name, target in wanted.items():
        if problem := problem_of(tensors[name], target) if name in tensors else "is missing":
            raise UserError(path, f"{name} {problem}", "give the file as run.py wrote it")
    model.load_state_dict({name: tensors[name] for name in wanted})
    return TrainedNetwork(model.eval(), task, settings)


@dataclass(frozen=True)
class Preprocessing:
    """How a training made histograms of events, as the recipe of its weights names it."""

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
    """Features of a recording, one window of events after the other, the state carried from its first event on.

    Windows, bins, clipping, order of polarities and downsampling are those of the network's training; a network trained
    for another image size is built again for this one with the same weights. No gradients are kept.

    Args:
        recording: file or folder of events.
        network: what `tespec.load` gives, or the path it takes; runs on its device.
        height: rows of the sensor in px, for recordings that do not name it.
        width: columns, likewise.

    Yields:
        what `network.step` returns for each window: four features (1, C, h, w) of a backbone, or the prediction of a
        task's network; and the state after it.

    Raises:
        UserError: the recording cannot be read or is shorter than a window, or the network does not say how it was
            trained, or was trained on images.
    """
    where, sensor = "network", _given_size(height, width)
    if isinstance(network, str | Path):
        where, network = str(network), load_network(network)
    backbone, recipe = _backbone(network), network.recipe or {}
    if backbone.in_channels != 2 * backbone.bins:
        what = f"was trained on images of {backbone.in_channels} channels, not on events"
        raise UserError(where, what, "give a network trained on events")
    names = [field.name for field in fields(Preprocessing)]
    if missing := [name for name in names if name not in recipe]:
        what = f"does not say how its training made histograms of events ({', '.join(missing)})"
        raise UserError(where, what, "load weights that were trained here, or give histograms to its step()")
    counted = build(Preprocessing, {name: recipe[name] for name in names}, where)
    length = counted.window_ms or SEGMENT_MS
    opened = open_recording(Path(recording), length, counted.downsample, sensor)
    if not len(opened):
        raise UserError(recording, f"is shorter than a window of {length:g} ms", "give a longer recording")
    # What is wrong is said here, and not at the first step.
    return _steps(for_size(network, (opened.region.height, opened.region.width)), opened, counted)


def _steps(network: Backbone | Network, recording: Recording, counted: Preprocessing) -> Iterator[tuple[Any, Any]]:
    device, state = next(network.parameters()).device, None
    for window in range(len(recording)):
        histogram = torch.from_numpy(recording.histograms(window, 1, counted.bins, counted.rule))
        features, state = network.step(histogram.to(device), state)
        yield features, state


def open_recording(path: Path, window_ms: float, downsample: Downsample, sensor: Size | None = None) -> Recording:
    """The only recording at or under `path`, cut into contiguous windows; a `UserError` if there is not one."""
    found, *others = find_recordings(path)
    if others:
        raise UserError(path, f"holds {len(others) + 1} recordings", "name one of them")
    return fixed_windows(name_of(path, found), source_of(found, sensor), window_ms, downsample)


def for_size(network: Backbone | Network, size: Size) -> Backbone | Network:
    """The network for histograms of `size` (H, W) in px: itself, or a copy with the same weights."""
    backbone, padded = _backbone(network), padded_size(*size)
    if backbone.img_size == padded:
        return network
    # In the copy of the whole network, the resized backbone takes the place of its own.
    return copy.deepcopy(network, {id(backbone): resized(backbone, padded)})


def _backbone(network: Backbone | Network) -> Backbone:
    return network if isinstance(network, Backbone) else network.backbone

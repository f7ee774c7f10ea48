"""Loads a trained network, a backbone or one with a task's head, from the weights file that a run wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from tespec.core.errors import UserError
from tespec.core.settings import Finetuning, build
from tespec.models import Backbone
from tespec.models.layers import padded_size
from tespec.tasks import find_task
from tespec.tasks.base import Task, fresh_backbone
from tespec.tasks.network import Network
from tespec.weights.files import read_weights
from tespec.weights.load import BESIDE, SENSOR, read_backbone

PREFIX = "backbone."


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
        UserError: unreadable file, or one without a recipe.
    """
    path = Path(path)
    _, recipe = read_weights(path)
    if "kind" not in recipe:
        return read_backbone(path, height=height, width=width)
    rows, columns = sensor_of(path, recipe)
    model: Network = load_trained(path, (height or rows, width or columns)).model
    model.recipe = recipe
    return model


class TrainedNetwork(NamedTuple):
    """A network in evaluation mode, its task and its settings."""

    model: Any
    task: type[Task]
    settings: Finetuning


def load_trained(path: Path, size: tuple[int, int] | None = None) -> TrainedNetwork:
    """A task's network for histograms of `size` (H, W) in px, default those of its training.

    Raises:
        UserError: unreadable file, one that no fine-tuning of this version wrote, or a head larger than any.
    """
    tensors, recipe = read_weights(path)
    if "kind" not in recipe:
        raise UserError(path, "holds no network with a task's head", "give a model.safetensors that run.py wrote")
    trained_on = sensor_of(path, recipe)
    settings = build(Finetuning, {key: value for key, value in recipe.items() if key not in BESIDE}, str(path))
    task = find_task(settings)
    model = task.network(settings, fresh_backbone(settings, size or trained_on))
    of_backbone = {name.removeprefix(PREFIX): each for name, each in tensors.items() if name.startswith(PREFIX)}
    fitted = model.backbone.resize(of_backbone, padded_size(*trained_on))
    _load_whole(model, tensors | {PREFIX + name: each for name, each in fitted.items()}, path)
    return TrainedNetwork(model.eval(), task, settings)


def sensor_of(path: Path, recipe: dict[str, Any]) -> tuple[int, int]:
    """Size (H, W) in px of the histograms that a network was trained on.

    Raises:
        UserError: the file does not say.
    """
    if SENSOR not in recipe:
        raise UserError(path, "does not say what size it was trained for", "train it again with this version")
    rows, columns = recipe[SENSOR]
    return int(rows), int(columns)


def _load_whole(model: nn.Module, tensors: dict[str, Any], path: Path) -> None:
    wanted = model.state_dict()
    for name, target in wanted.items():
        if name not in tensors or tensors[name].shape != target.shape:
            found = f"is {tuple(tensors[name].shape)}, not {tuple(target.shape)}" if name in tensors else "is missing"
            raise UserError(path, f"{name} {found}", "give the file as run.py wrote it")
    model.load_state_dict({name: tensors[name] for name in wanted})

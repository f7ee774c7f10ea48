"""Curves and results in a tracker beside the plain files, through mmengine's visualizer back ends; never required."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import tespec.compat  # noqa: F401  # before mmengine

from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.registry import VISBACKENDS

from tespec.errors import UserError
from tespec.registry import HOOKS
from tespec.training.loop import Loop

FOLDER = "tracking"
PROJECT = "tespec"
# Name on the command line: mmengine's back end, and the package it needs.
TRACKERS = {
    "files": ("LocalVisBackend", ""),
    "tensorboard": ("TensorboardVisBackend", "tensorboard"),
    "wandb": ("WandbVisBackend", "wandb"),
    "mlflow": ("MLflowVisBackend", "mlflow"),
}


class Curve(Protocol):
    """What keeps the loss curve: its last point is the newest."""

    curve: list[dict[str, float]]


@HOOKS.register_module()
class TrackHook(Hook):
    """Hands each new point of the curve to a tracker, and the result at the end.

    Stands behind the hook that keeps the curve. A run that is stopped closes its tracker; a resumed one opens it anew.
    """

    def __init__(self, name: str, run: str, folder: Path, curve: Curve, settings: Mapping[str, Any]) -> None:
        self._tracker = _open(name, run, folder / FOLDER)
        self._tracker.add_config(Config(dict(settings)))
        self._curve, self._seen = curve, 0

    def before_run(self, loop: Loop) -> None:
        """Pass over what was tracked before the run was stopped."""
        self._seen = len(self._curve.curve)

    def after_train_iter(self, loop: Loop, step: int, batch: Any = None, outputs: Any = None) -> None:
        """Hand over new points."""
        for point in self._curve.curve[self._seen :]:
            losses = {f"train/{key}": value for key, value in point.items() if key != "step"}
            self._tracker.add_scalars(losses, step=int(point["step"]))
        self._seen = len(self._curve.curve)

    def after_run(self, loop: Loop) -> None:
        """Close the tracker of a run that was stopped."""
        if loop.step < loop.settings.steps:
            self._tracker.close()

    def result(self, metrics: Mapping[str, float], step: int) -> None:
        """Hand over the scores and close."""
        self._tracker.add_scalars({f"result/{name}": value for name, value in metrics.items()}, step=step)
        self._tracker.close()


def check_tracker(name: str | None) -> None:
    """Refuse a tracker whose package is not there, before anything is computed.

    Raises:
        UserError: the package is not installed.
    """
    if name is not None and (package := TRACKERS[name][1]) and find_spec(package) is None:
        raise UserError(f"--track {name}", f"the package {package} is not installed", f"pip install {package}")


def _open(name: str, run: str, folder: Path) -> Any:
    kind, _ = TRACKERS[name]
    # mmengine and the trackers announce themselves on the root logger.
    logging.getLogger("mmengine").setLevel(logging.ERROR)
    folder.mkdir(parents=True, exist_ok=True)
    settings: dict[str, Any] = {"type": kind, "save_dir": str(folder)}
    if name == "wandb":
        settings["init_kwargs"] = {"project": PROJECT, "name": run}
    if name == "mlflow":
        settings |= {"exp_name": PROJECT, "run_name": run}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return VISBACKENDS.build(settings)

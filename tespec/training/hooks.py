"""Beside the training steps: the loss curve, checkpoints, trackers."""

from __future__ import annotations

import logging
import signal
import time
import warnings
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Any

import tespec.core.compat  # noqa: F401  # before mmengine

import torch
from mmengine import visualization
from mmengine.config import Config
from mmengine.hooks import Hook
from torch import Tensor

from tespec.core.distributed import all_gather, barrier, is_first, world_size
from tespec.core.errors import Preempted, UserError
from tespec.training.checkpoint import RUNNING, save_checkpoint, write_status
from tespec.training.trainer import Trainer

STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
PROBES = 4  # times that `probe_fn` is called in a training


class CurveHook(Hook):
    """Keeps the mean of every loss over intervals of steps, and what is measured beside the training.

    Args:
        interval: in steps.
        probe_fn: measures numbers by name, and leaves the network as it was; the first process calls it `PROBES` times,
            evenly over the training and at its end.

    Attributes:
        curve: {"step", name: mean} of each interval.
        probed: {"step", name: number} of each time.
    """

    def __init__(self, interval: int, probe_fn: Callable[[], Mapping[str, float]] | None = None) -> None:
        self.curve: list[dict[str, float]] = []
        self.probed: list[dict[str, float]] = []
        self._interval, self._probe_fn = interval, probe_fn
        self._sums: dict[str, Tensor] = {}
        self._count = 0

    def after_train_iter(self, trainer: Trainer, step: int, batch: Any = None, outputs: Any = None) -> None:
        """Add the losses of one step."""
        for name, value in outputs.items():
            self._sums[name] = self._sums[name] + value if name in self._sums else value.clone()
        self._count += 1
        steps = trainer.settings.steps
        if trainer.step % self._interval == 0 or trainer.step == steps:
            self._close(trainer.step)
        due = trainer.step in {-(-steps * time // PROBES) for time in range(1, PROBES + 1)}
        if self._probe_fn and due and is_first():
            self.probed.append({"step": trainer.step, **self._probe_fn()})

    def _close(self, step: int) -> None:
        means = {name: (total / self._count).item() for name, total in self._sums.items()}
        self.curve.append({"step": step, **means})
        self._sums, self._count = {}, 0

    def state_dict(self) -> dict[str, Any]:
        """The curves so far and the sums of the interval that is open."""
        return {"curve": self.curve, "probed": self.probed, "sums": self._sums, "count": self._count}

    def load_state_dict(self, content: dict[str, Any], device: torch.device) -> None:
        """Go on where `state_dict` was taken."""
        self.curve, self.probed, self._count = content["curve"], content["probed"], content["count"]
        self._sums = {name: value.to(device) for name, value in content["sums"].items()}


class CheckpointHook(Hook):
    """Saves a checkpoint every `seconds`, at the last step, and when a stop is asked for; writes the step into status.

    A stop is asked for by Ctrl-C, by SIGTERM, or by SIGUSR1, which SLURM sends before it takes a job away; the step
    under way is finished first.

    Attributes:
        before: seconds of training up to the checkpoint that the run goes on from.
    """

    def __init__(self, folder: Path, curve: CurveHook, seconds: float) -> None:
        self._folder, self._curve, self._seconds = folder, curve, seconds
        self.before = 0.0
        self._began = self._last = time.monotonic()
        self._signals: dict[int, Any] = {}
        self._stop: int | None = None

    def before_run(self, trainer: Trainer) -> None:
        """Take over the signals until the training ends."""
        self._began = time.monotonic()
        self._signals = {number: signal.signal(number, self._request_stop) for number in STOPS}

    def after_train_iter(self, trainer: Trainer, step: int, batch: Any = None, outputs: Any = None) -> None:
        """Save if the last checkpoint is older than the interval, a stop was asked for, or this step is the last."""
        # All ranks save the same step, whichever of them was asked to stop; a single one need not wait to hear of it.
        if world_size() > 1 and not trainer.is_sync_step:
            return
        due = time.monotonic() - self._last >= self._seconds
        save, stop = map(max, zip(*all_gather((due and is_first(), self._stop or 0)), strict=True))
        if not (save or stop or trainer.step == trainer.settings.steps):
            return
        trainer.require_finite()
        self._last = time.monotonic()
        content = {
            "run": self._folder.name,
            "trainer": trainer.state_dict(),
            "curve": self._curve.state_dict(),
            "seconds": self.before + self._last - self._began,
        }
        if is_first():
            path = save_checkpoint(self._folder, trainer.step, content)
            write_status(self._folder, RUNNING, trainer.step)
        barrier()
        if stop:
            said = f"stopped after step {trainer.step}, saved as {path}; the same command goes on" if is_first() else ""
            raise KeyboardInterrupt(said) if stop == signal.SIGINT else Preempted(said)

    def after_run(self, trainer: Trainer) -> None:
        """Give the signals back."""
        for number, previous in self._signals.items():
            signal.signal(number, previous)

    def _request_stop(self, number: int, frame: FrameType | None) -> None:
        if self._stop is not None and number == signal.SIGINT:
            raise KeyboardInterrupt("stopped at once; the checkpoints saved before are whole")
        self._stop = number


# Name on the command line: mmengine's back end, the package it needs, and its options for a run.
TRACKERS: Mapping[str, tuple[str, str, Callable[[str], dict[str, Any]]]] = {
    "files": ("LocalVisBackend", "", lambda run: {}),
    "tensorboard": ("TensorboardVisBackend", "tensorboard", lambda run: {}),
    "wandb": ("WandbVisBackend", "wandb", lambda run: {"init_kwargs": {"project": "tespec", "name": run}}),
    "mlflow": ("MLflowVisBackend", "mlflow", lambda run: {"exp_name": "tespec", "run_name": run}),
}


class TrackHook(Hook):
    """Hands each new point of the curve to a tracker, and the result at the end.

    Stands behind the hook that keeps the curve. A run that is stopped closes its tracker; a resumed one opens it anew.
    """

    def __init__(self, name: str, run: str, folder: Path, curve: CurveHook, settings: Mapping[str, Any]) -> None:
        kind, _, options = TRACKERS[name]
        folder = folder / "tracking"
        folder.mkdir(parents=True, exist_ok=True)
        # mmengine and the trackers announce themselves on the root logger.
        logging.getLogger("mmengine").setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._tracker = getattr(visualization, kind)(str(folder), **options(run))
        self._tracker.add_config(Config(dict(settings)))
        self._curve, self._seen = curve, 0

    def before_run(self, trainer: Trainer) -> None:
        """Pass over what was tracked before the run was stopped."""
        self._seen = len(self._curve.curve)

    def after_train_iter(self, trainer: Trainer, step: int, batch: Any = None, outputs: Any = None) -> None:
        """Hand over new points."""
        for point in self._curve.curve[self._seen :]:
            losses = {f"train/{key}": value for key, value in point.items() if key != "step"}
            self._tracker.add_scalars(losses, step=int(point["step"]))
        self._seen = len(self._curve.curve)

    def after_run(self, trainer: Trainer) -> None:
        """Close the tracker of a run that was stopped."""
        if trainer.step < trainer.settings.steps:
            self._tracker.close()

    def result(self, metrics: Mapping[str, float]) -> None:
        """Hand over the scores and close."""
        step = int(self._curve.curve[-1]["step"])
        self._tracker.add_scalars({f"result/{name}": value for name, value in metrics.items()}, step=step)
        self._tracker.close()


def check_tracker(name: str | None) -> None:
    """Refuse a tracker whose package is not there, before anything is computed.

    Raises:
        UserError: the package is not installed.
    """
    if name is not None and (package := TRACKERS[name][1]) and find_spec(package) is None:
        raise UserError(f"--track {name}", f"the package {package} is not installed", f"pip install {package}")

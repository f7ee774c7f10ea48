"""What happens beside the training steps: progress, the loss curve, checkpoints."""

from __future__ import annotations

import logging
import signal
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Any

import tespec.core.compat  # noqa: F401  # before mmengine

import torch
from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.registry import VISBACKENDS
from torch import Tensor

from tespec.core.distributed import all_reduce_max, barrier, is_first, world_size
from tespec.core.errors import Preempted, UserError
from tespec.core.progress import Advance, progress
from tespec.training.checkpoint import save_checkpoint
from tespec.training.loop import Loop
from tespec.training.status import RUNNING, write_status

PREEMPTIONS = (signal.SIGTERM, signal.SIGUSR1)


class ProgressHook(Hook):
    """Shows steps, rate, loss and time left; the loss is that of the newest step that was looked at."""

    def __init__(self, label: str) -> None:
        self._label, self._note = label, ""
        self._stack = ExitStack()
        self._advance: Advance = lambda done, total, note: None

    def before_run(self, loop: Loop) -> None:
        """Open the display."""
        self._advance = self._stack.enter_context(progress(self._label, "steps", loop.step))

    def after_train_iter(self, loop: Loop, step: int, batch: Any = None, outputs: Any = None) -> None:
        """Advance by one step; the loss is read where it costs nothing, or the loop waits for the device anyway."""
        if loop.looks:
            self._note = f"loss {outputs['loss'].item():.4f}"
        self._advance(loop.step, loop.settings.steps, self._note)

    def after_run(self, loop: Loop) -> None:
        """Close the display."""
        self._stack.close()


class StatusHook(Hook):
    """Writes the step into the run's status, every `seconds`."""

    def __init__(self, folder: Path, seconds: float) -> None:
        self._folder, self._seconds = folder, seconds
        self._last = time.monotonic()

    def after_train_iter(self, loop: Loop, step: int, batch: Any = None, outputs: Any = None) -> None:
        """Write it where it is due; a disk without room for it is no reason to stop."""
        if is_first() and time.monotonic() - self._last >= self._seconds:
            self._last = time.monotonic()
            with suppress(OSError):
                write_status(self._folder, RUNNING, loop.step)


WATCHES = 4  # times that what is measured beside a training is


class CurveHook(Hook):
    """Keeps the mean of every loss over intervals of steps, and what is measured beside the training.

    An interval also ends where a new phase of the training has other losses.

    Args:
        interval: in steps.
        watch: measures numbers by name, and leaves the network as it was; the first process asks it `WATCHES` times,
            evenly over the training and at its end, but not before its last phase.

    Attributes:
        curve: {"step", name: mean} of each interval.
        watched: {"step", name: number} of each time.
    """

    def __init__(self, interval: int, watch: Callable[[], Mapping[str, float]] | None = None) -> None:
        self.curve: list[dict[str, float]] = []
        self.watched: list[dict[str, float]] = []
        self._interval, self._watch = interval, watch
        self._sums: dict[str, Tensor] = {}
        self._count = 0

    def after_train_iter(self, loop: Loop, step: int, batch: Any = None, outputs: Any = None) -> None:
        """Add the losses of one step."""
        if self._sums and self._sums.keys() != outputs.keys():
            self._close(step)
        for name, value in outputs.items():
            self._sums[name] = self._sums[name] + value if name in self._sums else value.clone()
        self._count += 1
        if loop.step % self._interval == 0 or loop.step == loop.settings.steps:
            self._close(loop.step)
        if self._watch and is_first() and loop.in_last_phase and loop.step in _evenly(loop.settings.steps):
            self.watched.append({"step": loop.step, **self._watch()})

    def _close(self, step: int) -> None:
        means = {name: (total / self._count).item() for name, total in self._sums.items()}
        self.curve.append({"step": step, **means})
        self._sums, self._count = {}, 0

    def state_dict(self) -> dict[str, Any]:
        """The curves so far and the sums of the interval that is open."""
        return {"curve": self.curve, "watched": self.watched, "sums": self._sums, "count": self._count}

    def load_state_dict(self, content: dict[str, Any], device: torch.device) -> None:
        """Go on where `state_dict` was taken."""
        # Earlier versions watched nothing.
        self.curve, self.watched, self._count = content["curve"], content.get("watched", []), content["count"]
        self._sums = {name: value.to(device) for name, value in content["sums"].items()}


def _evenly(steps: int) -> set[int]:
    """The steps at which a training is watched."""
    return {-(-steps * time // WATCHES) for time in range(1, WATCHES + 1)}


class CheckpointHook(Hook):
    """Saves a checkpoint every `seconds`, at the last step, and when a stop is asked for, after the step under way.

    A stop is asked for by Ctrl-C, by SIGTERM, or by SIGUSR1, which SLURM sends before it takes a job away.

    Attributes:
        before: seconds of training up to the checkpoint that the run goes on from.
    """

    def __init__(self, folder: Path, run: str, curve: CurveHook, seconds: float) -> None:
        self._folder, self._run, self._curve, self._seconds = folder, run, curve, seconds
        self.before = 0.0
        self._began = self._last = time.monotonic()
        self._stack = ExitStack()
        self._stop: int | None = None

    def before_run(self, loop: Loop) -> None:
        """Take over the signals until the training ends."""
        self._began = time.monotonic()
        for number in (signal.SIGINT, *PREEMPTIONS):
            previous = signal.signal(number, self._request_stop)
            self._stack.callback(signal.signal, number, previous)

    def after_train_iter(self, loop: Loop, step: int, batch: Any = None, outputs: Any = None) -> None:
        """Save if the last checkpoint is older than the interval, a stop was asked for, or this step is the last."""
        # All ranks save the same step, whichever of them was asked to stop; a single one need not wait to hear of it.
        if world_size() > 1 and not loop.looks:
            return
        due = time.monotonic() - self._last >= self._seconds
        save, stop = all_reduce_max([int(due and is_first()), self._stop or 0])
        if not (save or stop or loop.step == loop.settings.steps):
            return
        loop.require_finite()
        self._last = time.monotonic()
        state = loop.state_dict()
        weights = state.pop("model")
        seconds = self.before + self._last - self._began
        rest = {"run": self._run, "loop": state, "curve": self._curve.state_dict(), "seconds": seconds}
        path = save_checkpoint(self._folder, loop.step, weights, rest) if is_first() else self._folder
        barrier()
        if stop:
            said = f"stopped after step {loop.step}, saved as {path}; the same command goes on" if is_first() else ""
            raise KeyboardInterrupt(said) if stop == signal.SIGINT else Preempted(said)

    def after_run(self, loop: Loop) -> None:
        """Give the signals back."""
        self._stack.close()

    def _request_stop(self, number: int, frame: FrameType | None) -> None:
        if self._stop is not None and number == signal.SIGINT:
            raise KeyboardInterrupt("stopped at once; the checkpoints saved before are whole")
        self._stop = number


FOLDER = "tracking"
PROJECT = "tespec"
# Name on the command line: mmengine's back end, and the package it needs.
TRACKERS = {
    "files": ("LocalVisBackend", ""),
    "tensorboard": ("TensorboardVisBackend", "tensorboard"),
    "wandb": ("WandbVisBackend", "wandb"),
    "mlflow": ("MLflowVisBackend", "mlflow"),
}


class TrackHook(Hook):
    """Hands each new point of the curve to a tracker, and the result at the end.

    Stands behind the hook that keeps the curve. A run that is stopped closes its tracker; a resumed one opens it anew.
    """

    def __init__(self, name: str, run: str, folder: Path, curve: CurveHook, settings: Mapping[str, Any]) -> None:
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

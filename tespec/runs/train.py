"""Train the model of a run, with loss curves, checkpoints and resuming."""

from __future__ import annotations

import logging
import signal
import time
import warnings
from pathlib import Path
from types import FrameType
from typing import Any

import tespec.core.compat  # noqa: F401  # before mmengine

import torch
from mmengine import visualization
from mmengine.config import Config
from mmengine.hooks import Hook
from torch import Tensor, nn

from tespec.core.distributed import all_gather, barrier, broadcast, is_first, world_size
from tespec.core.errors import Preempted, UserError
from tespec.core.progress import say
from tespec.core.settings import Finetuning, Pretraining
from tespec.models import build_backbone
from tespec.models.backbone import execute
from tespec.pretraining.method import pretrain_method
from tespec.runs.run import Run, Trained
from tespec.runs.setup import Setup
from tespec.training.checkpoint import newest_whole, read_checkpoint, save_checkpoint, tidy
from tespec.training.loading import MicroBatches, micro_batches
from tespec.training.trainer import Trainer

SIZE = (256, 320)  # px; input size of networks that only check options or weights
SECONDS_BETWEEN_CHECKPOINTS = 300.0
POINTS_ON_CURVE = 200
STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
TRACKERS = {
    "files": "LocalVisBackend",
    "tensorboard": "TensorboardVisBackend",
    "wandb": "WandbVisBackend",
    "mlflow": "MLflowVisBackend",
}


def require_trainable(settings: Finetuning | Pretraining, setup: Setup, setting: str = "batch_size") -> None:
    """Refuse options that do not fit the batch or the backbone, before data is read or another network is trained.

    `setting` is what messages call the batch size.

    Raises:
        UserError: the batch does not divide evenly, a pre-training's loss would compare or normalise too few samples,
            or the backbone's activations cannot be recomputed.
    """
    micro_batches(settings.batch_size, setup.accumulate, setting)
    least = pretrain_method(settings).min_batch_size if isinstance(settings, Pretraining) else 1
    if (size := settings.batch_size // setup.accumulate) < least:
        what = f"{size} per micro-batch is too small: samples are compared or normalised over it"
        raise UserError(setting, what, f"set it to {least * setup.accumulate} or more, or lower --accumulate")
    if setup.recompute:
        with torch.device("meta"):
            execute(build_backbone(settings.width, settings.recurrent, settings.bins, SIZE), recompute=True)


def train(run: Run, model: nn.Module, batches: MicroBatches) -> Trained:
    """Train `model` in place, saving checkpoints to the run's folder and resuming from the newest one.

    The checkpoint of the last step remains, so a failure after the training does not lose it.

    Args:
        run: the run with its settings.
        model: network with `.loss(batch, state)`.
        batches: micro-batches of this rank.

    Raises:
        UserError: the checkpoint belongs to another run, a loss is not finite, or a worker died.
    """
    setup, settings, folder = run.setup, run.settings.optimisation, run.folder
    if is_first():
        folder.mkdir(parents=True, exist_ok=True)
        tidy(folder)
    if batches.left_out:
        say(f"skipped, shorter than {batches.segments} windows: {', '.join(batches.left_out)}")
    if batches.has_no_continuation:
        what = f"no recording or labelled part has two chunks of {batches.segments} windows in a row"
        say(f"{what}, so training carries no state; set fewer segments (more for sparse labels), or sampling: clips")
    tracker = _open_tracker(setup.track, run) if setup.track and is_first() else None
    curve = CurveHook(max(1, settings.steps // POINTS_ON_CURVE), tracker)
    save = CheckpointHook(folder, curve, SECONDS_BETWEEN_CHECKPOINTS)
    execute(model, recompute=setup.recompute, compiled=setup.compiled, fast=setup.fast)
    hooks = [curve, save]
    trainer = Trainer(model, batches, settings, seed=run.seed, device=run.device, hooks=hooks, workers=setup.workers)
    _resume(trainer, curve, save, folder)
    began = time.monotonic()
    try:
        trainer.run()
    except (KeyboardInterrupt, Exception):
        if tracker is not None:
            tracker.close()
        raise
    seconds = save.before + time.monotonic() - began
    return Trained(curve.curve, seconds, save.before, tracker)


def _resume(trainer: Trainer, curve: CurveHook, save: CheckpointHook, folder: Path) -> None:
    """Resume from the run's newest complete checkpoint, if there is one; each rank reads it.

    Raises:
        UserError: the checkpoint has another network or optimizer, from another run or version of the harness.
    """
    path, damaged = broadcast(newest_whole(folder) if is_first() else (None, []))
    for name in damaged:
        say(f"{folder / name}: incomplete checkpoint, skipped")
    if path is None:
        return
    content = read_checkpoint(path, folder.name)
    try:
        trainer.load_state_dict(content["trainer"])
        curve.load_state_dict(content["curve"], trainer.device)
        save.before = content["seconds"]
    except (RuntimeError, KeyError, ValueError, TypeError) as error:
        remedy = "give --overwrite to start the run again"
        raise UserError(folder, f"its checkpoint does not fit this version ({error})", remedy) from error
    say(f"resuming at step {trainer.step} (--overwrite starts again)")


def _open_tracker(name: str, run: Run) -> visualization.BaseVisBackend:
    """Start mmengine's backend of a tracker, which logs the loss curve, and the final scores."""
    options: dict[str, Any] = {
        "wandb": {"init_kwargs": {"project": "tespec", "name": run.name}},
        "mlflow": {"exp_name": "tespec", "run_name": run.name},
    }
    folder = run.folder / "tracking"
    folder.mkdir(parents=True, exist_ok=True)
    # Silence the start-up messages of mmengine and the trackers.
    logging.getLogger("mmengine").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tracker: visualization.BaseVisBackend = getattr(visualization, TRACKERS[name])(
            str(folder), **options.get(name, {})
        )
    tracker.add_config(Config(dict(run.config)))
    return tracker


class CurveHook(Hook):
    """Record the mean of every loss over intervals of steps.

    Args:
        interval: length of an interval in steps.
        tracker: receives each new point of the curve.

    Attributes:
        curve: {"step", name: mean} for each interval.
    """

    def __init__(self, interval: int, tracker: visualization.BaseVisBackend | None = None) -> None:
        self.curve: list[dict[str, float]] = []
        self._interval, self._tracker = interval, tracker
        self._sums: dict[str, Tensor] = {}
        self._count = 0

    def after_train_iter(self, trainer: Trainer, step: int, batch: Any = None, outputs: Any = None) -> None:
        """Add the losses of one step."""
        for name, value in outputs.items():
            self._sums[name] = self._sums[name] + value if name in self._sums else value.clone()
        self._count += 1
        if trainer.step % self._interval == 0 or trainer.step == trainer.settings.steps:
            means = {name: (total / self._count).item() for name, total in self._sums.items()}
            self.curve.append({"step": trainer.step, **means})
            self._sums, self._count = {}, 0
            if self._tracker is not None:
                self._tracker.add_scalars({f"train/{name}": mean for name, mean in means.items()}, step=trainer.step)

    def state_dict(self) -> dict[str, Any]:
        """Return the curve so far and the sums of the current interval."""
        return {"curve": self.curve, "sums": self._sums, "count": self._count}

    def load_state_dict(self, content: dict[str, Any], device: torch.device) -> None:
        """Restore the state returned by `state_dict`."""
        self.curve, self._count = content["curve"], content["count"]
        self._sums = {name: value.to(device) for name, value in content["sums"].items()}


class CheckpointHook(Hook):
    """Save a checkpoint every `seconds`, at the last step, and when a stop is requested.

    A stop is requested by Ctrl-C, SIGTERM, or SIGUSR1, which SLURM can send before it ends a job; the current step is
    completed first.

    Attributes:
        before: seconds of training up to the checkpoint that the run was resumed from.
    """

    def __init__(self, folder: Path, curve: CurveHook, seconds: float) -> None:
        self._folder, self._curve, self._seconds = folder, curve, seconds
        self.before = 0.0
        self._began = self._last = time.monotonic()
        self._signals: dict[int, Any] = {}
        self._stop: int | None = None

    def before_run(self, trainer: Trainer) -> None:
        """Install the signal handlers."""
        self._began = time.monotonic()
        self._signals = {number: signal.signal(number, self._request_stop) for number in STOPS}

    def after_train_iter(self, trainer: Trainer, step: int, batch: Any = None, outputs: Any = None) -> None:
        """Save if the last checkpoint is older than the interval, a stop was requested, or this step is the last."""
        # Ranks synchronise only at some steps, so that all save the same step, whichever of them was asked to stop.
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
        barrier()
        if stop:
            said = f"stopped after step {trainer.step}, saved as {path}; the same command resumes" if is_first() else ""
            raise KeyboardInterrupt(said) if stop == signal.SIGINT else Preempted(said)

    def after_run(self, trainer: Trainer) -> None:
        """Restore the previous signal handlers."""
        for number, previous in self._signals.items():
            signal.signal(number, previous)

    def _request_stop(self, number: int, frame: FrameType | None) -> None:
        if self._stop is not None and number == signal.SIGINT:
            raise KeyboardInterrupt("stopped immediately; earlier checkpoints are complete")
        self._stop = number

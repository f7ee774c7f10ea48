"""Train the model of a run, with loss curves, checkpoints and resuming."""

import logging
import signal
import time
import warnings
from pathlib import Path
from statistics import median
from types import FrameType
from typing import Any

import tespec.core.compat  # noqa: F401  # before mmengine

import torch
from mmengine import visualization
from mmengine.config import Config
from torch import Tensor, nn

from tespec.core.config import Settings
from tespec.core.distributed import all_gather, barrier, broadcast, is_first, world_size
from tespec.core.errors import Preempted, UserError
from tespec.core.progress import say
from tespec.core.settings import Pretraining, Size
from tespec.models import build_backbone
from tespec.models.backbone import execute
from tespec.models.layers import MatrixPool, replace_modules
from tespec.pretraining.method import pretrain_method
from tespec.runs.run import Run, Trained, on_signals
from tespec.runs.setup import Setup
from tespec.training.checkpoint import newest_whole, read_checkpoint, save_checkpoint, tidy
from tespec.training.loading import MicroBatches
from tespec.training.trainer import Trainer

SIZE = (256, 320)  # px; input size of networks that only check options or weights
SECONDS_BETWEEN_CHECKPOINTS = 300.0
POINTS_ON_CURVE = 200
TIMED_STEPS = 5  # of inference
STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
# of mmengine
TRACKERS = {"files": "Local", "tensorboard": "Tensorboard", "wandb": "Wandb", "mlflow": "MLflow"}


def sizes_of(network: Any) -> dict[str, float]:
    """Count a network's parameters, for records.

    Args:
        network: module whose attribute `backbone` is the backbone.

    Returns:
        "backbone_parameters", and "head_parameters" of everything else that is trained, in
        millions.
    """
    backbone = {id(each) for each in network.backbone.parameters()}
    others = [
        each for each in network.parameters() if each.requires_grad and id(each) not in backbone
    ]
    return {
        "backbone_parameters": sum(each.numel() for each in network.backbone.parameters()) / 1e6,
        "head_parameters": sum(each.numel() for each in others) / 1e6,
    }


@torch.no_grad()
def inference_ms(network: Any, size: Size, device: torch.device) -> float:
    """Measure the inference of one window of one recording, state included.

    Args:
        network: a task's network in evaluation mode, on `device`.
        size: rows and columns of the histogram in px.
        device: where the network is.

    Returns:
        Median of `TIMED_STEPS` steps in ms, after one step that is not counted.
    """
    histogram = torch.zeros(
        1, network.backbone.in_channels, *size, dtype=torch.uint8, device=device
    )
    state, seconds = None, []
    for _ in range(1 + TIMED_STEPS):
        start = time.perf_counter()
        _, state = network.step(histogram, state)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - start)
    return 1000 * median(seconds[1:])


def require_trainable(
    settings: Settings, setup: Setup, setting: str = "batch_size", processes: int = 0
) -> None:
    """Refuse options that do not fit the batch size, the setting `setting`, or the backbone, before data is read."""
    processes = processes or world_size()
    parts = processes * setup.accumulate
    if settings.batch_size % parts:
        shared = (
            f"among {processes} processes with {setup.accumulate} gradient accumulation steps each"
        )
        larger = -(-settings.batch_size // parts) * parts
        what = f"{settings.batch_size} does not divide evenly {shared}"
        raise UserError(setting, what, f"use --set {setting}={larger}, or another --accumulate")
    least = pretrain_method(settings).min_batch_size if isinstance(settings, Pretraining) else 1
    if (size := settings.batch_size // setup.accumulate) < least:
        what = f"{size} per micro-batch is too small: samples are compared or normalised over it"
        raise UserError(
            setting, what, f"set it to {least * setup.accumulate} or more, or lower --accumulate"
        )
    if setup.recompute:
        with torch.device("meta"):
            execute(
                build_backbone(settings.backbone, settings.recurrent, settings.bins, SIZE),
                recompute=True,
            )


def train(run: Run, model: nn.Module, batches: MicroBatches) -> Trained:
    """Train `model` in place, saving checkpoints to the run's folder and resuming from the newest one.

    The checkpoint of the last step remains, so a failure after the training does not lose it.
    """
    setup, settings, folder = run.setup, run.settings.optimisation, run.folder
    if is_first():
        folder.mkdir(parents=True, exist_ok=True)
        tidy(folder)
    part = batches.parts[0]
    if left_out := getattr(part, "left_out", ()):
        say(f"skipped, shorter than {part.segments} windows: {', '.join(left_out)}")
    if getattr(part, "has_no_continuation", False):
        what = f"no recording or labelled part has two chunks of {part.segments} windows in a row"
        say(
            f"{what}, so training carries no state; set fewer segments (more for sparse labels), or sampling: random"
        )
    tracker = _open_tracker(setup.track, run) if setup.track and is_first() else None
    curve = CurveHook(max(1, settings.steps // POINTS_ON_CURVE), tracker)
    save = CheckpointHook(folder, curve)
    if setup.deterministic:
        replace_modules(model, nn.AdaptiveAvgPool2d, lambda pool: MatrixPool(pool.output_size))
    execute(model, recompute=setup.recompute, compiled=setup.compiled, fast=setup.fast)
    hooks = [curve, save]
    trainer = Trainer(
        model,
        batches,
        settings,
        seed=run.seed,
        device=run.device,
        hooks=hooks,
        workers=setup.workers,
    )
    _resume(trainer, curve, save, folder)
    try:
        with on_signals(STOPS, save.request_stop):
            trainer.run()
    except BaseException:
        if tracker is not None:
            tracker.close()
        raise
    return Trained(curve.curve, save.seconds, tracker)


def _resume(trainer: Trainer, curve: "CurveHook", save: "CheckpointHook", folder: Path) -> None:
    """Resume from the run's newest complete checkpoint, if there is one; each rank reads it."""
    path, damaged = broadcast(newest_whole(folder) if is_first() else (None, []))
    for name in damaged:
        say(f"{folder / name}: incomplete checkpoint, skipped")
    if path is None:
        return
    content = read_checkpoint(path, folder.name)
    try:
        trainer.load_state_dict(content["trainer"])
        curve.load_state_dict(content["curve"])
        save.began -= content["seconds"]
    except (RuntimeError, KeyError, ValueError, TypeError) as error:
        remedy = "give --overwrite to start the run again"
        raise UserError(
            folder, f"its checkpoint does not fit this version ({error})", remedy
        ) from error
    say(f"resuming at step {trainer.step} (--overwrite starts again)")


def _open_tracker(name: str, run: Run) -> visualization.BaseVisBackend:
    """Start mmengine's backend of a tracker, which logs the loss curve, and the final scores."""
    options: dict[str, Any] = {
        "wandb": {"init_kwargs": {"project": "tespec", "name": run.name}},
        "mlflow": {"exp_name": "tespec", "run_name": run.name},
    }
    # Silence the start-up messages of mmengine and the trackers.
    logging.getLogger("mmengine").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        kind: type[visualization.BaseVisBackend] = getattr(
            visualization, f"{TRACKERS[name]}VisBackend"
        )
        tracker = kind(str(run.folder / "tracking"), **options.get(name, {}))
    tracker.add_config(Config(dict(run.config)))
    return tracker


class CurveHook:
    """Record the mean of every loss over intervals of steps, and send it to the tracker."""

    def __init__(self, interval: int, tracker: visualization.BaseVisBackend | None = None) -> None:
        self.curve: list[dict[str, float]] = []  # {"step", name: mean} for each interval
        self._interval, self._tracker = interval, tracker
        self._sums: dict[str, Tensor] = {}
        self._count = 0

    def after_train_iter(
        self, trainer: Trainer, step: int, batch: Any = None, outputs: Any = None
    ) -> None:
        """Add the losses of one step."""
        self._sums |= {name: self._sums.get(name, 0) + value for name, value in outputs.items()}
        self._count += 1
        if trainer.step % self._interval == 0 or trainer.step == trainer.settings.steps:
            means = {name: (total / self._count).item() for name, total in self._sums.items()}
            self.curve.append({"step": trainer.step, **means})
            self._sums, self._count = {}, 0
            if self._tracker is not None:
                self._tracker.add_scalars(
                    {f"train/{name}": mean for name, mean in means.items()}, step=trainer.step
                )

    def state_dict(self) -> dict[str, Any]:
        """Return the curve so far and the sums of the current interval."""
        return {"curve": self.curve, "sums": self._sums, "count": self._count}

    def load_state_dict(self, content: dict[str, Any]) -> None:
        """Restore the state returned by `state_dict`."""
        self.curve, self._sums, self._count = content["curve"], content["sums"], content["count"]


class CheckpointHook:
    """Save a checkpoint at intervals, at the last step, and when a stop is requested.

    A stop is requested by Ctrl-C, SIGTERM, or SIGUSR1, which SLURM can send before it ends a job;
    the current step is completed first.
    """

    def __init__(self, folder: Path, curve: CurveHook) -> None:
        self._folder, self._curve = folder, curve
        # Start of the training; in a resumed run, earlier by the seconds up to its checkpoint.
        self.began = self._last = time.monotonic()
        self._stop: int | None = None

    @property
    def seconds(self) -> float:
        """Duration of the training so far."""
        return time.monotonic() - self.began

    def after_train_iter(
        self, trainer: Trainer, step: int, batch: Any = None, outputs: Any = None
    ) -> None:
        """Save if the last checkpoint is older than the interval, a stop was requested, or this step is the last."""
        # Ranks synchronise only at some steps, so that all save the same step, whichever of them
        # was asked to stop.
        if world_size() > 1 and not trainer.is_sync_step:
            return
        due = time.monotonic() - self._last >= SECONDS_BETWEEN_CHECKPOINTS
        save, stop = map(max, zip(*all_gather((due and is_first(), self._stop or 0)), strict=True))
        if not (save or stop or trainer.step == trainer.settings.steps):
            return
        trainer.require_finite()
        self._last = time.monotonic()
        content = {
            "run": self._folder.name,
            "trainer": trainer.state_dict(),
            "curve": self._curve.state_dict(),
            "seconds": self.seconds,
        }
        if is_first():
            path = save_checkpoint(self._folder, trainer.step, content)
        barrier()
        if stop:
            said = (
                f"stopped after step {trainer.step}, saved as {path}; the same command resumes"
                if is_first()
                else ""
            )
            raise KeyboardInterrupt(said) if stop == signal.SIGINT else Preempted(said)

    def request_stop(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal; a second Ctrl-C stops immediately."""
        if self._stop is not None and number == signal.SIGINT:
            raise KeyboardInterrupt("stopped immediately; earlier checkpoints are complete")
        self._stop = number

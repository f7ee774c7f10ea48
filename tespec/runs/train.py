"""Train the model of a run, with loss curves, checkpoints and resuming."""

import logging
import signal
import time
import warnings
from collections.abc import Callable
from functools import cache, partial
from statistics import median
from types import FrameType
from typing import Any

import tespec.core.compat  # noqa: F401  # before mmengine

import torch
from mmengine.config import Config
from mmengine.registry import VISBACKENDS
from mmengine.visualization import BaseVisBackend
from torch import Tensor, nn

from tespec.comparison.records import Record
from tespec.core.distributed import all_gather, barrier, broadcast, is_first, world_size
from tespec.core.errors import Preempted, UserError
from tespec.core.progress import log
from tespec.core.settings import Size
from tespec.core.signals import on_signals
from tespec.models.backbone import execute
from tespec.models.layers import MatrixPool, replace_modules
from tespec.runs.cost import require_memory
from tespec.runs.run import FIRST, Outcome, Run, Trained, run_or_load
from tespec.training.checkpoint import (
    newest_complete,
    read_checkpoint,
    remove_unfinished,
    require_space,
    save_checkpoint,
)
from tespec.training.loading import MicroBatches, split_batches
from tespec.training.trainer import Trainer

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
    backbone = list(network.backbone.parameters())
    in_backbone = set(map(id, backbone))
    head = [
        parameter
        for parameter in network.parameters()
        if parameter.requires_grad and id(parameter) not in in_backbone
    ]
    return {
        "backbone_parameters": sum(parameter.numel() for parameter in backbone) / 1e6,
        "head_parameters": sum(parameter.numel() for parameter in head) / 1e6,
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
    shape = (1, network.backbone.in_channels, *size)
    histogram = torch.zeros(shape, dtype=torch.uint8, device=device)
    state = None
    seconds = []
    for _ in range(1 + TIMED_STEPS):
        start = time.perf_counter()
        _, state = network.step(histogram, state)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - start)
    return 1000 * median(seconds[1:])


def train_or_load(run: Run, model: nn.Module, data: Any, evaluate: Callable[[], Outcome]) -> Record:
    """Train and evaluate a model, or load the record if the run is complete.

    Args:
        run: the run.
        model: randomly initialised or pre-trained; trained in place.
        data: task or pre-training data, with training batches of histograms of its size.
        evaluate: as in `run_or_load`.

    Returns:
        The record.
    """
    batches = split_batches(data.steps, run.seed, run.setup.accumulate)
    step_seconds = cache(partial(require_memory, run.settings, data.size, run.setup, run.device))
    return run_or_load(
        run,
        evaluate,
        lambda: train(run, model, batches, step_seconds()),
        [step_seconds, partial(require_space, run.folder, model)],
    )


def train(
    run: Run, model: nn.Module, batches: MicroBatches, step_seconds_at_peak: float = 0.0
) -> Trained:
    """Train a model in place, with checkpoints in the run's folder.

    The checkpoint of the last step remains, so a failure after the training does not lose it.

    Args:
        run: its newest complete checkpoint is resumed.
        model: on any device; the trainer moves it to the run's device.
        batches: of the training, by step.
        step_seconds_at_peak: as in `Trainer.run`.

    Returns:
        The loss curve, the duration and the tracker.
    """
    setup = run.setup
    settings = run.settings.optimisation
    if is_first():
        run.folder.mkdir(parents=True, exist_ok=True)
        remove_unfinished(run.folder)
    # Only events have recordings that are too short, or state to carry.
    steps: Any = batches.parts[0]
    segments = getattr(steps, "segments", 0)
    if left_out := getattr(steps, "left_out", ()):
        log(f"skipped, shorter than {segments} windows: {', '.join(left_out)}")
    if getattr(steps, "has_no_continuation", False):
        log(
            f"no recording or labelled part has two chunks of {segments} windows in a row, so "
            "training carries no state; set fewer segments (more for sparse labels), or sampling: "
            "random"
        )
    tracker = _open_tracker(setup.track, run) if setup.track and is_first() else None
    curve = CurveHook(max(1, settings.steps // POINTS_ON_CURVE), tracker)
    hook = CheckpointHook(run, curve)
    if setup.deterministic:
        replace_modules(model, nn.AdaptiveAvgPool2d, lambda pool: MatrixPool(pool.output_size))
    execute(model, recompute=setup.recompute, compiled=setup.compiled, fast=setup.fast)
    trainer = Trainer(
        model,
        batches,
        settings,
        seed=run.seed,
        device=run.device,
        hooks=[curve, hook],
        workers=setup.workers,
    )
    hook.resume(trainer)
    try:
        with on_signals(STOPS, hook.request_stop):
            trainer.run(
                "pre-training" if run.cell.kind == "pretraining" else "fine-tuning",
                run.settings.batch_size * run.settings.segments,
                step_seconds_at_peak,
            )
    except BaseException:
        if tracker is not None:
            tracker.close()
        raise
    return Trained(curve.curve, {"train": hook.seconds}, hook.parts, tracker)


def _open_tracker(name: str, run: Run) -> BaseVisBackend:
    """Start mmengine's backend of a tracker, which logs the loss curve, and the final scores."""
    options: dict[str, Any] = {
        "wandb": {"init_kwargs": {"project": "tespec", "name": run.name}},
        "mlflow": {"exp_name": "tespec", "run_name": run.name},
    }
    # Silence the start-up messages of mmengine and the trackers.
    logging.getLogger("mmengine").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tracker: BaseVisBackend = VISBACKENDS.build(
            {
                "type": f"{TRACKERS[name]}VisBackend",
                "save_dir": str(run.folder / "tracking"),
                **options.get(name, {}),
            }
        )
    tracker.add_config(Config(dict(run.config)))
    return tracker


class CurveHook:
    """Record the mean of every loss over intervals of steps, and send it to the tracker.

    Args:
        interval: number of steps.
        tracker: mmengine's backend; None: no tracker.
    """

    def __init__(self, interval: int, tracker: BaseVisBackend | None = None) -> None:
        self.curve: list[dict[str, float]] = []  # {"step", name: mean} for each interval
        self._interval = interval
        self.sums: dict[str, Tensor] = {}  # of the losses of the current interval
        self._tracker = tracker

    def after_train_iter(
        self, trainer: Trainer, step: int, batch: Any = None, outputs: Any = None
    ) -> None:
        """Add the losses of one step.

        Args:
            trainer: of the run.
            step: index of the step.
            batch: unused.
            outputs: losses by name, scalar tensors.
        """
        self.sums |= {name: self.sums.get(name, 0) + value for name, value in outputs.items()}
        if trainer.step % self._interval and trainer.step != trainer.settings.steps:
            return
        count = trainer.step - (self.curve[-1]["step"] if self.curve else 0)
        means = {name: (total / count).item() for name, total in self.sums.items()}
        self.curve.append({"step": trainer.step, **means})
        self.sums = {}
        if self._tracker is not None:
            scalars = {f"train/{name}": mean for name, mean in means.items()}
            self._tracker.add_scalars(scalars, step=trainer.step)


class CheckpointHook:
    """Save a checkpoint at intervals, at the last step, and when a stop is requested.

    A stop is requested by Ctrl-C, SIGTERM, or SIGUSR1, which SLURM can send before it ends a job;
    the current step is completed first.

    Args:
        run: the run.
        curve: part of the checkpoints.
    """

    def __init__(self, run: Run, curve: CurveHook) -> None:
        self._run = run
        self._curve = curve
        self.parts = [{FIRST: 0, **run.environment}]
        # Start of the training; in a resumed run, earlier by the seconds up to its checkpoint.
        self.start_time = time.monotonic()
        self._last_save = self.start_time
        self._stop_signal = 0

    @property
    def seconds(self) -> float:
        """Duration of the training so far."""
        return time.monotonic() - self.start_time

    def resume(self, trainer: Trainer) -> None:
        """Resume from the run's newest complete checkpoint, if any; each rank reads it."""
        folder = self._run.folder
        path, damaged = broadcast(newest_complete(folder) if is_first() else (None, []))
        for name in damaged:
            log(f"{folder / name}: incomplete checkpoint, skipped")
        if path is None:
            return
        content = read_checkpoint(path, folder.name)
        try:
            trainer.load_state_dict(content["trainer"])
            self._curve.curve = content["curve"]["curve"]
            self._curve.sums = content["curve"]["sums"]
            self.start_time -= content["seconds"]
            parts = content["parts"]
            present = {**self._run.environment, FIRST: parts[-1][FIRST]}
            # a part in another environment follows those before
            self.parts = (
                parts if parts[-1] == present else [*parts, present | {FIRST: trainer.step}]
            )
        except (RuntimeError, KeyError, ValueError, TypeError) as error:
            raise UserError(
                folder,
                f"its checkpoint does not fit this version ({error})",
                "remove its step-*.pt to start the run again",
            ) from error
        hint = "" if self._run.setup.overwrite else " (--overwrite starts again)"
        log(f"resuming at step {trainer.step}{hint}")

    def after_train_iter(
        self, trainer: Trainer, step: int, batch: Any = None, outputs: Any = None
    ) -> None:
        """Save a checkpoint, if one is due on any rank.

        The arguments are those of `CurveHook.after_train_iter`.

        Raises:
            KeyboardInterrupt: after Ctrl-C.
            Preempted: after another signal.
        """
        # Ranks synchronise only at some steps, so that all save the same step, whichever of them
        # was asked to stop.
        if world_size() > 1 and not trainer.is_sync_step:
            return
        due = time.monotonic() - self._last_save >= SECONDS_BETWEEN_CHECKPOINTS
        ranks = all_gather((due and is_first(), self._stop_signal))
        any_due = any(rank_due for rank_due, _ in ranks)
        stop_signal = max(rank_signal for _, rank_signal in ranks)
        if not (any_due or stop_signal or trainer.step == trainer.settings.steps):
            return
        trainer.require_finite()
        self._last_save = time.monotonic()
        content = {
            "run": self._run.name,
            "trainer": trainer.state_dict(),
            "curve": {"curve": self._curve.curve, "sums": self._curve.sums},
            "seconds": self.seconds,
            "parts": self.parts,
        }
        message = ""
        if is_first():
            path = save_checkpoint(self._run.folder, trainer.step, content)
            saved = f"stopped after step {trainer.step}, saved as {path}"
            message = f"{saved}; the same command resumes"
        barrier()
        if stop_signal:
            raise (KeyboardInterrupt if stop_signal == signal.SIGINT else Preempted)(message)

    def request_stop(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal; a second Ctrl-C stops immediately.

        Args:
            number: of the signal.
            frame: unused.
        """
        if self._stop_signal and number == signal.SIGINT:
            raise KeyboardInterrupt("stopped immediately; earlier checkpoints are complete")
        self._stop_signal = number

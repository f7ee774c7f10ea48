"""Train the model of a run, with loss curves, checkpoints and resuming."""

import json
import logging
import signal
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from shutil import disk_usage
from statistics import median
from tempfile import NamedTemporaryFile
from types import FrameType
from typing import Any

import tespec.core.compat  # noqa: F401  # before mmengine

import torch
from mmengine import visualization
from mmengine.config import Config
from torch import Tensor, nn

from tespec.core.config import Settings, flattened
from tespec.core.distributed import all_gather, barrier, broadcast, is_first, world_size
from tespec.core.errors import Preempted, UserError
from tespec.core.progress import log
from tespec.core.settings import Pretraining, Size
from tespec.models import build_backbone
from tespec.models.backbone import execute
from tespec.models.layers import MatrixPool, replace_modules
from tespec.pretraining.method import pretrain_method
from tespec.runs.run import FIRST, Run, Trained, on_signals
from tespec.runs.setup import Setup
from tespec.training.checkpoint import (
    KEEP,
    OVERWRITTEN,
    checkpoints,
    newest_complete,
    read_checkpoint,
    remove_unfinished,
    save_checkpoint,
)
from tespec.training.loading import MicroBatches
from tespec.training.trainer import Trainer
from tespec.weights.files import serialised

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


def require_trainable(
    settings: Settings, setup: Setup, setting: str = "batch_size", processes: int = 0
) -> None:
    """Refuse options that do not fit the batch size or the backbone, before data is read.

    Args:
        settings: of the training.
        setup: where and how to run.
        setting: name of the batch size, for the message.
        processes: number of processes; 0: those that are running.

    Raises:
        UserError: names a batch size that fits.
    """
    processes = processes or world_size()
    parts = processes * setup.accumulate
    batch_size = settings.batch_size
    if batch_size % parts:
        larger = -(-batch_size // parts) * parts
        raise UserError(
            setting,
            f"{batch_size} does not divide evenly among {processes} processes with "
            f"{setup.accumulate} gradient accumulation steps each",
            f"use --set {setting}={larger}, or another --accumulate",
        )
    min_size = pretrain_method(settings).min_batch_size if isinstance(settings, Pretraining) else 1
    size = batch_size // setup.accumulate
    if size < min_size:
        raise UserError(
            setting,
            f"{size} per micro-batch is too small: samples are compared or normalised over it",
            f"set it to {min_size * setup.accumulate} or more, or lower --accumulate",
        )
    if setup.recompute:
        with torch.device("meta"):
            backbone = build_backbone(settings.backbone, settings.recurrent, settings.bins, SIZE)
            execute(backbone, recompute=True)


def require_recordable(run: Run, model: nn.Module) -> None:
    """Refuse a run whose checkpoints, weights or record could not be written after its training.

    Args:
        run: gives the folders, and texts of the record.
        model: whose weights will be saved.

    Raises:
        UserError: a text is not UTF-8, weights are of a type that files do not have, a folder
            cannot be written, or its disk is too full.
    """
    recordings = {name.rpartition(": ")[0] for name in run.data}
    for value in (run.setup.command, *recordings, *flattened(run.config).values()):
        text = json.dumps(value, ensure_ascii=False, default=str)
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise UserError(text, "cannot be recorded, as it is not UTF-8", "rename it") from error
    try:
        weights = len(serialised(model.state_dict(), {}))
    except (AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:
        what = f"its state dict cannot be saved as safetensors ({error})"
        raise UserError(type(model).__name__, what, "use plain dense tensors") from error
    results = run.setup.results
    for folder in (results / "runs", results / "pictures", run.folder):
        existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
        try:
            with NamedTemporaryFile(dir=existing, prefix=f".{run.name}"):
                pass
        except OSError as error:
            what = f"files of {run.name} cannot be written ({error.strerror})"
            raise UserError(existing, what, "choose another folder or a shorter name") from error
    moments = sum(2 * weight.nbytes for weight in model.parameters() if weight.requires_grad)
    # An old checkpoint is removed when the new one is complete.
    needed = (1 + KEEP) * (weights + moments)
    available = disk_usage(existing).free
    available += sum(path.stat().st_size for path in checkpoints(run.folder))
    if needed > available:
        what = f"needs {needed / 1e9:.2f} GB for checkpoints, and {available / 1e9:.2f} GB are free"
        raise UserError(run.folder, what, "free disk space, or choose another --runs")


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
        if not setup.overwrite:
            (run.folder / OVERWRITTEN).unlink(missing_ok=True)
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
    hook = CheckpointHook(run.folder, curve, run.environment)
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
    _resume(trainer, curve, hook, run)
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
    return Trained(curve.curve, hook.seconds, hook.parts, tracker)


def _resume(trainer: Trainer, curve: "CurveHook", hook: "CheckpointHook", run: Run) -> None:
    """Resume from the run's newest complete checkpoint, if any; each rank reads it."""
    folder = run.folder
    path, damaged = broadcast(newest_complete(folder) if is_first() else (None, []))
    for name in damaged:
        log(f"{folder / name}: incomplete checkpoint, skipped")
    if path is None:
        return
    content = read_checkpoint(path, folder.name)
    try:
        trainer.load_state_dict(content["trainer"])
        curve.load_state_dict(content["curve"])
        hook.start_time -= content["seconds"]
        hook.resume(trainer.step, content["parts"])
    except (RuntimeError, KeyError, ValueError, TypeError) as error:
        raise UserError(
            folder,
            f"its checkpoint does not fit this version ({error})",
            "remove its step-*.pt to start the run again",
        ) from error
    hint = "" if run.setup.overwrite else " (--overwrite starts again)"
    log(f"resuming at step {trainer.step}{hint}")


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
    """Record the mean of every loss over intervals of steps, and send it to the tracker.

    Args:
        interval: number of steps.
        tracker: mmengine's backend; None: no tracker.
    """

    def __init__(self, interval: int, tracker: visualization.BaseVisBackend | None = None) -> None:
        self.curve: list[dict[str, float]] = []  # {"step", name: mean} for each interval
        self._interval = interval
        self._tracker = tracker
        self._sums: dict[str, Tensor] = {}
        self._count = 0

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
        self._sums |= {name: self._sums.get(name, 0) + value for name, value in outputs.items()}
        self._count += 1
        if trainer.step % self._interval and trainer.step != trainer.settings.steps:
            return
        means = {name: (total / self._count).item() for name, total in self._sums.items()}
        self.curve.append({"step": trainer.step, **means})
        self._sums = {}
        self._count = 0
        if self._tracker is not None:
            scalars = {f"train/{name}": mean for name, mean in means.items()}
            self._tracker.add_scalars(scalars, step=trainer.step)

    def state_dict(self) -> dict[str, Any]:
        """Return the curve so far and the sums of the current interval."""
        return {"curve": self.curve, "sums": self._sums, "count": self._count}

    def load_state_dict(self, content: dict[str, Any]) -> None:
        """Restore the state returned by `state_dict`."""
        self.curve = content["curve"]
        self._sums = content["sums"]
        self._count = content["count"]


class CheckpointHook:
    """Save a checkpoint at intervals, at the last step, and when a stop is requested.

    A stop is requested by Ctrl-C, SIGTERM, or SIGUSR1, which SLURM can send before it ends a job;
    the current step is completed first.

    Args:
        folder: of the run.
        curve: its state is part of a checkpoint.
        environment: of this process; checkpoints hold it.
    """

    def __init__(self, folder: Path, curve: CurveHook, environment: Mapping[str, Any]) -> None:
        self._folder = folder
        self._curve = curve
        self.parts = [{FIRST: 0, **environment}]
        # Start of the training; in a resumed run, earlier by the seconds up to its checkpoint.
        self.start_time = time.monotonic()
        self._last_save = self.start_time
        self._stop_signal = 0

    @property
    def seconds(self) -> float:
        """Duration of the training so far."""
        return time.monotonic() - self.start_time

    def resume(self, step: int, parts: Sequence[dict[str, Any]]) -> None:
        """Keep the parts of a resumed training; a part in another environment follows them.

        Args:
            step: number of steps of these parts.
            parts: of the checkpoint.
        """
        present = self.parts[-1] | {FIRST: parts[-1][FIRST]}
        self.parts = [*parts] if parts[-1] == present else [*parts, present | {FIRST: step}]

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
            "run": self._folder.name,
            "trainer": trainer.state_dict(),
            "curve": self._curve.state_dict(),
            "seconds": self.seconds,
            "parts": self.parts,
        }
        message = ""
        if is_first():
            path = save_checkpoint(self._folder, trainer.step, content)
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

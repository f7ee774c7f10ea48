"""Training within a run: it saves checkpoints, keeps a status, and goes on where it stopped."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from torch import nn

from tespec.core.distributed import broadcast, is_first
from tespec.core.errors import UserError
from tespec.core.progress import say
from tespec.models.backbone import execute
from tespec.runs.run import Run, Trained
from tespec.training.checkpoint import FAILED, PREEMPTED, RUNNING, newest_whole, read_checkpoint, tidy, write_status
from tespec.training.hooks import CheckpointHook, CurveHook, TrackHook
from tespec.training.loading import MicroBatches
from tespec.training.trainer import Trainer

SECONDS_BETWEEN_CHECKPOINTS = 300.0
POINTS_ON_CURVE = 200


def train(
    run: Run, model: nn.Module, batches: MicroBatches, probe_fn: Callable[[], Mapping[str, float]] | None = None
) -> Trained:
    """Train `model` in place, saving checkpoints into the run's folder and going on from the newest one there.

    The checkpoint of the last step stays, so that what comes after the training can fail without losing it.

    Args:
        run: whose settings say how.
        model: has `.loss(batch, state)`.
        batches: what this process trains on.
        probe_fn: measures the model beside its training, see `CurveHook`.

    Raises:
        UserError: the checkpoint belongs to another run, a loss is not finite, or a worker died.
    """
    setup, settings, folder = run.setup, run.settings.optimisation, run.folder
    if is_first():
        folder.mkdir(parents=True, exist_ok=True)
        tidy(folder)
    if batches.left_out:
        say(f"left out, shorter than {batches.segments} windows: {', '.join(batches.left_out)}")
    if batches.has_no_continuation:
        what = f"no stretch with labels has two chunks of {batches.segments} windows in a row"
        say(f"{what}, so that no state is carried in training; set more segments, or sampling: clips")
    curve = CurveHook(interval=max(1, settings.steps // POINTS_ON_CURVE), probe_fn=probe_fn)
    save = CheckpointHook(folder, curve, SECONDS_BETWEEN_CHECKPOINTS)
    tracker = TrackHook(setup.track, run.name, folder, curve, run.config) if setup.track and is_first() else None
    execute(model, recompute=setup.recompute, compiled=setup.compiled, fast=setup.fast)
    hooks = [curve, *([tracker] if tracker else []), save]
    trainer = Trainer(model, batches, settings, seed=run.seed, device=run.device, hooks=hooks, workers=setup.workers)
    _resume(trainer, curve, save, folder)
    began = time.monotonic()
    with _status(folder, trainer):
        trainer.run()
    seconds = save.before + time.monotonic() - began
    return Trained(curve.curve, curve.probed, seconds, save.before, tracker)


@contextmanager
def _status(folder: Path, trainer: Trainer) -> Iterator[None]:
    """Keep the run's status."""

    def write(state: str, reason: str = "") -> None:
        if is_first():
            with suppress(OSError):  # a full disk has no room for a status either
                write_status(folder, state, trainer.step, reason)

    write(RUNNING)
    try:
        yield
    except KeyboardInterrupt as stop:
        write(PREEMPTED, str(stop))
        raise
    except Exception as error:
        write(FAILED, f"{type(error).__name__}: {error}")
        raise


def _resume(trainer: Trainer, curve: CurveHook, save: CheckpointHook, folder: Path) -> None:
    """Go on from the run's newest undamaged checkpoint, where there is one; each rank reads it.

    Raises:
        UserError: it was written by a run, or a version of the harness, with another network or optimizer.
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

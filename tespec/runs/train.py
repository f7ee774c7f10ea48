"""Training within a run: it saves checkpoints, keeps a status, and goes on where it stopped."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from tespec.core.distributed import broadcast, is_first
from tespec.core.errors import UserError
from tespec.core.progress import say
from tespec.core.settings import Optimisation
from tespec.models.execution import execute
from tespec.runs.setup import Setup
from tespec.training.checkpoint import newest_whole, read_checkpoint, tidy
from tespec.training.device import choose_device
from tespec.training.hooks import CheckpointHook, CurveHook, TrackHook
from tespec.training.loading import MicroBatches
from tespec.training.status import FAILED, PREEMPTED, RUNNING, write_status
from tespec.training.trainer import NotFiniteError, Trainer

SECONDS_BETWEEN_CHECKPOINTS = 300.0
POINTS_ON_CURVE = 200


@dataclass(frozen=True)
class Trained:
    """A finished training, or none.

    Attributes:
        curve: mean losses over intervals of steps.
        probed: what was measured beside them.
        seconds: that the training took, those before it was resumed included.
        before: seconds of those up to the checkpoint that it went on from.
        skipped: steps that were passed over, since their numbers were not finite.
        tracker: takes the result, where there is one.
        said: what the record's environment says of it besides.
    """

    curve: list[dict[str, float]]
    seconds: float = 0.0
    before: float = 0.0
    skipped: int = 0
    tracker: TrackHook | None = None
    probed: list[dict[str, float]] = field(default_factory=list)
    said: dict[str, Any] = field(default_factory=dict)

    def counts(self) -> dict[str, float]:
        """What a record says of steps passed over, where there were some."""
        return {"skipped_steps": float(self.skipped)} if self.skipped else {}

    def track(self, metrics: Mapping[str, float]) -> None:
        """Hand the scores to the tracker."""
        if self.tracker is not None:
            self.tracker.result(metrics, int(self.curve[-1]["step"]))


def train(
    model: nn.Module,
    batches: MicroBatches,
    settings: Optimisation,
    *,
    seed: int,
    setup: Setup,
    run: str,
    facts: Mapping[str, Any],
    probe_fn: Callable[[], Mapping[str, float]] | None = None,
) -> Trained:
    """Train `model` in place, saving checkpoints into `setup.runs / run` and going on from the newest one there.

    The checkpoint of the last step stays, so that what comes after the training can fail without losing it.

    Args:
        model: has `.loss(batch, state)`.
        batches: what this process trains on.
        settings: optimizer and schedule.
        seed: the run's seed.
        setup: where and how.
        run: name of the run, its settings' hash included.
        facts: all settings, for a tracker.
        probe_fn: measures the model beside its training, see `CurveHook`.

    Raises:
        UserError: the checkpoint belongs to another run, a loss is not finite, a worker died, or histograms are to be
            counted on the device and the batches hold no packed events.
    """
    folder = setup.runs / run
    if setup.count_on_device:
        batches.count_on_device()
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
    tracker = TrackHook(setup.track, run, folder, curve, facts) if setup.track and is_first() else None
    execute(model, setup.execution, setup.fast)
    trainer = Trainer(
        model,
        batches,
        settings,
        seed=seed,
        device=choose_device(setup.device),
        hooks=[curve, *([tracker] if tracker else []), save],
        workers=setup.workers,
    )
    _resume(trainer, curve, save, folder)
    began = time.monotonic()
    with _status(folder, trainer):
        trainer.run()
    seconds = save.before + time.monotonic() - began
    return Trained(curve.curve, seconds, save.before, trainer.skipped, tracker, curve.probed)


@contextmanager
def _status(folder: Path, trainer: Trainer) -> Iterator[None]:
    """Keep the run's status, and name the newest checkpoint where numbers are not finite."""

    def write(state: str, step: int, reason: str = "") -> None:
        if is_first():
            with suppress(OSError):  # a full disk has no room for a status either
                write_status(folder, state, step, reason)

    write(RUNNING, trainer.step)
    try:
        yield
    except NotFiniteError as error:
        whole, _ = newest_whole(folder)
        kept = f"the last good checkpoint is {whole}" if whole else "and there is no checkpoint yet"
        named = NotFiniteError(error.step, error.recordings, kept)
        write(FAILED, error.step, str(named))
        raise named from error
    except KeyboardInterrupt as stop:
        write(PREEMPTED, trainer.step, str(stop))
        raise
    except Exception as error:
        write(FAILED, trainer.step, f"{type(error).__name__}: {error}")
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

"""What pre-training and fine-tuning runs share: their folders, and training that goes on where it stopped."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from glob import escape
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tespec.core import distributed as processes
from tespec.datasets.batches import Turns
from tespec.core.errors import UserError
from tespec.models.execution import Execution, execute
from tespec.models.execution import has_batch_norm, synced
from tespec.core.settings import Optimisation
from tespec.training.checkpoint import (
    checkpoints,
    clear,
    latest_checkpoint,
    newest_whole,
    require_same_run,
    tidy,
)
from tespec.training.device import be_deterministic
from tespec.training.device import choose_device
from tespec.training.loop import NotFiniteError
from tespec.training.hooks import CheckpointHook, CurveHook, ProgressHook, StatusHook
from tespec.training.launch import require_even
from tespec.training.loop import Loop
from tespec.core.progress import say
from tespec.training.status import DONE, FAILED, PREEMPTED, RUNNING, write_status
from tespec.training.hooks import TrackHook, check_tracker

SECONDS_BETWEEN_CHECKPOINTS = 300.0
SECONDS_BETWEEN_STATUSES = 5.0
POINTS_ON_CURVE = 200


@dataclass(frozen=True)
class Setup:
    """How runs are carried out; on a CPU nothing here but `threads` and `accumulate` changes a result.

    Attributes:
        results: folder of records, tables and pictures.
        runs: folder of checkpoints and weights.
        device: name of the device, None for the best there is.
        workers: processes that build batches beside the training process.
        resume: go on from the run's newest checkpoint.
        overwrite: compute again what a complete record holds.
        command: the command line, for records.
        track: name of a tracker, None for plain files alone.
        deterministic: repeat to the bit on a GPU as well.
        accumulate: turns that a process takes for a step, each on its part of the batch.
        threads: that compute on a CPU, where sums are split among them and round differently; None: what torch took.
        execution: how networks are computed.
        plugins: Python files that the user had imported.
        accept_code: hashes of other code whose results count as those of this code.
    """

    results: Path
    runs: Path
    device: str | None
    workers: int
    resume: bool
    overwrite: bool
    command: str
    track: str | None = None
    deterministic: bool = False
    accumulate: int = 1
    threads: int | None = None
    execution: Execution = field(default_factory=Execution)
    plugins: tuple[Path, ...] = ()
    accept_code: tuple[str, ...] = ()

    def facts(self) -> dict[str, Any]:
        """What a record's environment says of how the run was carried out."""
        return {
            "deterministic": self.deterministic,
            "processes": processes.count(),
            "accumulate": self.accumulate,
            "threads": torch.get_num_threads(),
            **self.execution.facts(),
            **({"accept_code": list(self.accept_code)} if self.accept_code else {}),
        }


@dataclass(frozen=True)
class Trained:
    """A finished training.

    Attributes:
        curve: mean losses over intervals of steps.
        seconds: what this process spent on it.
        before: seconds up to the checkpoint that it went on from.
        skipped: steps that were passed over, since their numbers were not finite.
        tracker: takes the result, where there is one.
    """

    curve: list[dict[str, float]]
    seconds: float
    before: float
    skipped: int
    tracker: TrackHook | None = None

    def counts(self) -> dict[str, float]:
        """What a record says of steps passed over, where there were some."""
        return {"skipped_steps": float(self.skipped)} if self.skipped else {}

    def track(self, metrics: Mapping[str, float]) -> None:
        """Hand the scores to the tracker."""
        if self.tracker is not None:
            self.tracker.result(metrics, int(self.curve[-1]["step"]))


def check_places(setup: Setup) -> None:
    """Make sure of folders and tracker, so that a mistake comes to light before hours of training.

    Raises:
        UserError: one of them cannot be written to, or the tracker is not installed.
    """
    check_tracker(setup.track)
    be_deterministic(setup.deterministic)
    if setup.threads:
        torch.set_num_threads(setup.threads)
    for option, folder in (("--results", setup.results), ("--runs", setup.runs)):
        existing = next(parent for parent in (folder.absolute(), *folder.absolute().parents) if parent.exists())
        if not existing.is_dir() or not os.access(existing, os.W_OK):
            raise UserError(f"{option} {folder}", f"{existing} cannot be written to", "name another folder")


def train(
    model: nn.Module,
    turns: Turns,
    settings: Optimisation,
    *,
    seed: int,
    setup: Setup,
    run: str,
    facts: Mapping[str, Any],
) -> Trained:
    """Train `model` in place, saving checkpoints into `setup.runs / run` and going on from them if asked to.

    The checkpoint of the last step stays until `finish` is called, so that what comes after the training can fail
    without losing it.

    Args:
        model: has `.loss(batch, state)`.
        turns: this process's parts of the batches.
        settings: optimizer and schedule.
        seed: the run's seed.
        setup: where and how.
        run: name of the run, its settings' hash included.
        facts: all settings, for a tracker.

    Raises:
        UserError: the checkpoint belongs to another run, a loss is not finite, or a worker died.
    """
    folder = setup.runs / run
    if processes.is_first():
        folder.mkdir(parents=True, exist_ok=True)
        tidy(folder)
    curve = CurveHook(interval=max(1, settings.steps // POINTS_ON_CURVE))
    if turns.left_out:
        say(f"left out, shorter than {turns.segments} windows: {', '.join(turns.left_out)}")
    device = choose_device(setup.device)
    save = CheckpointHook(folder, run, curve, SECONDS_BETWEEN_CHECKPOINTS)
    tracker = None
    if setup.track and processes.is_first():
        tracker = TrackHook(setup.track, run, folder, curve, facts)
    execute(model, setup.execution)
    loop = Loop(
        synced(model) if processes.count() > 1 else model,
        turns,
        settings,
        seed=seed,
        device=device,
        hooks=[
            ProgressHook("training"),
            StatusHook(folder, SECONDS_BETWEEN_STATUSES),
            curve,
            *([tracker] if tracker else []),
            save,
        ],
        workers=setup.workers,
    )
    if setup.resume:
        _resume(loop, curve, save, folder, setup, device)
    elif checkpoints(folder):
        say(f"{folder}: an unfinished run is started again from its first step (--resume goes on)")
    began = time.monotonic()
    with _status(folder, loop):
        loop.run()
    return Trained(curve.curve, time.monotonic() - began, save.before, loop.skipped, tracker)


@contextmanager
def _status(folder: Path, loop: Loop) -> Iterator[None]:
    """Keep the run's status, and name the last good checkpoint where numbers go wrong."""

    def write(state: str, step: int, reason: str = "") -> None:
        if processes.is_first():
            write_status(folder, state, step, reason)

    write(RUNNING, loop.step)
    try:
        yield
    except NotFiniteError as error:
        whole = newest_whole(folder)
        kept = f"the last good checkpoint is {whole}" if whole else "and there is no checkpoint yet"
        named = NotFiniteError(error.step, error.recordings, kept)
        write(FAILED, error.step, str(named))
        raise named from error
    except KeyboardInterrupt as stop:
        write(PREEMPTED, loop.step, str(stop))
        raise
    except Exception as error:
        # A full disk has no room for a status either.
        with suppress(OSError):
            write(FAILED, loop.step, f"{type(error).__name__}: {error}")
        raise


def deal(steps: Callable[..., Any], seed: int, batch_size: int, setup: Setup) -> Turns:
    """This process's parts of every batch.

    Args:
        steps: called with a seed and a part, gives the batches by step.
        seed: of the run.
        batch_size: of all processes together.
        setup: how many turns each takes.

    Raises:
        UserError: the batch cannot be dealt evenly, or the data is too short.
    """
    require_even(batch_size, processes.count(), setup.accumulate)
    first, parts = processes.number() * setup.accumulate, processes.count() * setup.accumulate
    return Turns([steps(seed, (first + turn, parts)) for turn in range(setup.accumulate)])


def of_turns(setup: Setup, model: nn.Module | None = None) -> dict[str, int]:
    """What turns add to a run's identity.

    Batch statistics are those of a turn, and so are means over labels, of which turns may have different numbers; only
    a `model` that has neither computes the same in turns.
    """
    alike = model is not None and not has_batch_norm(model)
    return {} if alike or setup.accumulate == 1 else {"accumulate": setup.accumulate}


def finish(setup: Setup, run: str, steps: int) -> None:
    """Mark a run as done and remove its checkpoints, once its record is written."""
    if not processes.is_first():
        return
    folder = setup.runs / run
    write_status(folder, DONE, steps)
    clear(folder)


def unfinished_by_other_code(runs: Path, run: str) -> list[Path]:
    """Folders of what `run` is the name of by other code that have a whole checkpoint, oldest first."""
    stem, _, _ = run.rpartition("-")
    others = [(newest_whole(folder), folder) for folder in runs.glob(f"{escape(stem)}-*") if folder.name != run]
    return [folder for _, folder in sorted((path.stat().st_mtime, folder) for path, folder in others if path)]


def _resume(
    loop: Loop, curve: CurveHook, save: CheckpointHook, folder: Path, setup: Setup, device: torch.device
) -> None:
    weights, rest, torn = processes.first_says(_found(folder, setup) if processes.is_first() else ({}, {}, []))
    for name in torn:
        say(f"{folder / name}: not a whole checkpoint, passed over")
    if not rest:
        say(f"{folder}: no checkpoint, starting from the first step")
        return
    loop.load_state_dict(rest["loop"] | {"model": weights})
    curve.load_state_dict(rest["curve"], device)
    save.before = rest.get("seconds", 0.0)  # earlier versions did not keep them
    say(f"going on at step {loop.step}")


def _found(folder: Path, setup: Setup) -> tuple[dict[str, torch.Tensor], dict[str, Any], list[str]]:
    """The run's newest whole checkpoint, else that of the same run by code that the user accepts."""
    weights, rest, torn = latest_checkpoint(folder)
    if rest:
        require_same_run(rest, folder.name, folder)
        return weights, rest, torn
    for other in reversed(unfinished_by_other_code(setup.runs, folder.name)):
        code = other.name.rpartition("-")[2]
        if code in setup.accept_code:
            weights, rest, _ = latest_checkpoint(other)
            require_same_run(rest, other.name, other)
            say(f"{folder.name}: going on from {other}, by other code ({code}), as --accept-code says")
            break
    return weights, rest, torn

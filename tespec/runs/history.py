"""Score a recurrent network by the history it sees, to measure what it gains from its memory."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure

from tespec.comparison.cell import RESULTS_VERSION, run_of
from tespec.comparison.records import Record
from tespec.core.config import as_facts
from tespec.core.distributed import is_first
from tespec.core.errors import require
from tespec.core.files import sha256_of, write_all
from tespec.core.hashes import fingerprint_of
from tespec.core.progress import log, progress
from tespec.core.settings import Finetuning, Pretraining, build
from tespec.datasets.archive import ArchiveSource
from tespec.datasets.recording import LabelledRecording
from tespec.inference import load_trained
from tespec.metrics import Score
from tespec.pictures import class_colour, save_figure
from tespec.pretraining.data import PretrainData
from tespec.pretraining.method import objective_class, open_pretraining
from tespec.pretraining.tespec import Tespec
from tespec.runs.data import Data
from tespec.runs.pretrain import checksums_of
from tespec.runs.references import method_of
from tespec.runs.run import Outcome, Run, run_or_load
from tespec.runs.setup import Setup
from tespec.runs.validation import SEED
from tespec.tasks import build_task
from tespec.weights.files import load_tensors, read_recipe, read_tensors
from tespec.weights.load import RUN

# Windows up to and including the one that ends at a label; of a pre-training, masked sequences.
LENGTHS = (1, 2, 4, 8, 16, 32)
KEYS = ["windows", "rate", "frames"]  # columns of a curve that name a row
ALL = "all"  # windows from the start of the recording; frames of all groups
REACHED = 0.9  # fraction of the gain whose history is given
MARKERS: dict[Any, str] = {1.0: "o-", 2.0: "^", 0.5: "v"}  # of the figure, by window rate
OF_TASK = (
    "state zeroed that many windows before the end of the label; the longest history is the "
    "run's own evaluation. Rate 2: every window is halved. Rate 0.5: a window that ends at a label "
    "is joined to the one before, and labels at odd and at even windows are played apart. These "
    "windows have the bins and the clipping of the training, and its evaluation's state"
)
OF_PRETRAINING = (
    "state of the network zeroed that many windows before the end of a masked sequence; target and "
    "masks as in the validation, of which the longest and the shortest history are the carried and "
    "the zeroed loss"
)


class Measurement(NamedTuple):
    """A trained network with its data, ready to be scored by history."""

    settings: Finetuning | Pretraining  # of its training
    data: Mapping[str, str]  # checksums by name, see `tespec.core.hashes`
    scores: Mapping[str, Score]  # the main one first
    protocol: dict[str, str]
    # Returns the numbers of windows, the window rate relative to the training, the mean time from
    # the start of the history to the scored time, the group of frames, and the scores.
    curve: Callable[[torch.device], pd.DataFrame]


def measure_history(path: Path, data: Data, setup: Setup) -> Record:
    """Measure a trained network's scores by history, or load the record if it is complete.

    `results/pictures/<name of the record>.csv` and `.png` hold the scores and their figure.

    Args:
        path: `model.safetensors` of a fine-tuning, or `pretraining.safetensors` of a pre-training.
        data: of the training.
        setup: where and how to run.

    Returns:
        The record, of kind "history".

    Raises:
        UserError: the network has no memory, or file and data do not fit.
    """
    recipe = read_recipe(path)
    trained = recipe.get(RUN, recipe)
    cell, seed = run_of(trained, path)
    method = method_of(cell)
    require(
        cell.arch == "recurrent",
        path,
        "is feed-forward, so it has no memory",
        "give a recurrent network",
    )
    open_network = open_pretrained if cell.kind == "pretraining" else open_finetuned
    measurement = open_network(path, data.generate().root, cell.split, setup)
    require(
        fingerprint_of(measurement.data) == trained["data_fingerprint"],
        f"--data {data.option}",
        "is not the data of the network's run",
        "give the data that it was trained and scored on",
    )
    sha256 = sha256_of(path)
    run = Run(
        cell=replace(cell, kind="history", results_version=RESULTS_VERSION),
        seed=seed,
        row=method.row,
        settings=measurement.settings,
        config=as_facts(measurement.settings),
        data=measurement.data,
        setup=setup,
        start={"source": path.name, "sha256": sha256},
        start_sha256=sha256,
        pretraining=trained.get("pretraining"),
    )
    return run_or_load(run, partial(_outcome, run, measurement))


def open_finetuned(path: Path, root: Path, split: str, setup: Setup) -> Measurement:
    """Open a fine-tuned network and the data of its run.

    Args:
        path: `model.safetensors`.
        root: folder of the data.
        split: scored by the run.
        setup: where and how to measure.
    """
    network = load_trained(path)
    task = build_task(network.settings, root, split)
    scores = getattr(task, "scores", {})
    require(
        scores,
        f"{type(task).__name__}.scores",
        "is missing, so no score is the main one",
        "define it as in docs/extending.md",
    )
    return Measurement(
        network.settings,
        task.checksums(check=setup.check_data),
        scores,
        task.protocol() | {"scores": task.scorer().definition(), "history": OF_TASK},
        partial(task_curve, task, network.model, workers=setup.workers),
    )


def open_pretrained(path: Path, root: Path, split: str, setup: Setup) -> Measurement:
    """Open a pre-trained network and the data of its run; arguments as in `open_finetuned`."""
    tensors, recipe = read_tensors(path)
    names = {field.name for field in fields(Pretraining)}
    values = {name: value for name, value in recipe.items() if name in names}
    settings = build(Pretraining, values, str(path))
    method = objective_class(settings)
    require(
        issubclass(method, Tespec),
        path,
        f"the loss of {method.row.title} is not a masked one with a carried state",
        "give a network of `tespec pretrain --method tespec`, or a fine-tuned one",
    )
    data = open_pretraining(settings, root)
    model: Any = method.from_data(data)
    load_tensors(model, tensors, path, "give the pretraining.safetensors of `tespec pretrain`")
    return Measurement(
        settings,
        checksums_of(data, setup),
        {model.val_loss: Score("masked loss ↓", "lower")},
        {"history": OF_PRETRAINING},
        partial(pretraining_curve, model, data),
    )


def _outcome(run: Run, measurement: Measurement) -> Outcome:
    """Measure the curve, write the table and the figure, and return the fields of the record."""
    curve = measurement.curve(run.device)
    metric, score = next(iter(measurement.scores.items()))
    gains, summary = summarise(curve, metric, score)
    if is_first():
        figure = run.setup.results / "pictures" / f"{run.name}.png"
        draw(curve, metric, score, figure)
        write_all({figure.with_suffix(".csv"): curve.to_csv(index=False)})
    rows: Any = curve.set_index(KEYS).to_dict("index")
    return {
        "protocol": measurement.protocol | {"memory": summary},
        "metrics": {f"{metric}_gain, {frames}": gain for frames, gain in gains.items()},
        "groups": {
            f"{windows} windows, rate {rate:g}, {frames}": numbers
            for (windows, rate, frames), numbers in rows.items()
        },
        "scores": {name: asdict(value) for name, value in measurement.scores.items()},
    }


def task_curve(
    task: Any, model: Any, device: torch.device, workers: int | None = None
) -> pd.DataFrame:
    """Score a fine-tuned network by history, and at twice and half the window rate.

    If the run's evaluation resets the state, its clips are the longest history.

    Args:
        task: with the scored recordings.
        model: recurrent network.
        device: where to compute.
        workers: number of processes that load the data.

    Returns:
        DataFrame with columns windows, rate, history_ms, frames and the task's metrics.
    """
    spec = task.histogram_spec
    scored: list[LabelledRecording] = task.scored
    lengths = [length for length in LENGTHS if not spec.reset or length < spec.segments]
    longest = str(spec.segments) if spec.reset else ALL
    plays = [(str(n), 1.0, replace(spec, reset=True, segments=n), scored) for n in lengths]
    plays.append((longest, 1.0, spec, scored))
    if any(isinstance(recording.source, ArchiveSource) for recording in scored):
        log("stored histograms have one window length: twice and half the rate are left out")
    else:
        joined = [part for recording in scored for part in join_windows(recording)]
        plays.append((longest, 2.0, spec, [halve_windows(recording) for recording in scored]))
        plays.append((longest, 0.5, spec, joined))
    labels = sum(len(recording.label_indices) for recording in scored)
    log(f"{len(plays)} evaluations of {labels:,} labels, after {sum(lengths)} windows each in all")
    rows = []
    for windows, rate, played, recordings in plays:
        scorer = task.evaluate(model.to(device), device, workers, played, recordings)
        facts = {"windows": windows, "rate": rate, "history_ms": history_ms(recordings, played)}
        groups = {ALL: scorer.overall(), **scorer.by("group")}
        rows += [{**facts, "frames": name, **part.metrics()} for name, part in groups.items()]
    return pd.DataFrame(rows)


def history_ms(recordings: Sequence[LabelledRecording], spec: Any) -> float:
    """Mean time in ms from the start of the history that a network sees to the label.

    Args:
        recordings: with labels.
        spec: `HistogramSpec` that says when the state is reset.
    """
    length = spec.segments if spec.reset else max(map(len, recordings))
    times = []
    for recording in recordings:
        first = np.maximum(recording.label_indices - length + 1, 0)
        times.append(recording.label_times - recording.windows[first, 0])
    return float(np.concatenate(times).mean()) / 1000


def halve_windows(recording: LabelledRecording) -> LabelledRecording:
    """Cut every window in two halves, for twice the window rate."""
    start, end = recording.windows.T
    middle = (start + end) // 2
    windows = np.stack([start, middle, middle, end], axis=1).reshape(-1, 2)
    return replace(recording, windows=windows, label_indices=2 * recording.label_indices + 1)


def join_windows(recording: LabelledRecording) -> list[LabelledRecording]:
    """Join every window that may end at a label to the one before, for half the window rate.

    Returns:
        Two recordings of contiguous windows: with the labels at windows of even and of odd index.
        The first window is joined to the time before it, of the same length.
    """
    first, end = recording.windows[0]
    starts = np.append(2 * first - end, recording.windows[:-1, 0])  # of the window before
    joined = np.stack([starts, recording.windows[:, 1]], axis=1)
    parts = []
    for parity in (0, 1):
        part = recording.subset(np.flatnonzero(recording.label_indices % 2 == parity))
        indices = part.label_indices // 2
        parts.append(replace(part, windows=joined[parity::2], label_indices=indices))
    return parts


@torch.no_grad()
def pretraining_curve(model: Tespec, data: PretrainData, device: torch.device) -> pd.DataFrame:
    """Average the masked loss of a pre-trained network over the validation data by history.

    The network plays each masked sequence from a zero state, from the states that saw the 1 to 31
    sequences before, and from the state carried along the recording.

    Args:
        model: pre-trained network.
        data: opened data with a validation split.
        device: where to compute.

    Returns:
        DataFrame as of `task_curve`, with the masked loss and the error of predicting zero.
    """
    log(f"each masked sequence of the validation is played {LENGTHS[-1] + 1} times")
    model.to(device).eval()
    segments = data.settings.segments
    # by the number of sequences that the network saw before; last: all
    states: list[Any] = [None] * (LENGTHS[-1] + 1)
    target: Any = None  # state of the target, which is made of all events
    position = -1  # of the sequence in its recording
    rows = []
    with progress("history", "sequences") as advance:
        for number, batch in enumerate(data.val_batches(device)):
            torch.manual_seed(SEED + number)  # the same mask as in the validation
            mask = model.draw_mask(batch["histograms"])
            position = 0 if batch["is_first"].item() else position + 1
            played = [model.masked_losses(batch, (state, target), mask) for state in states]
            for length in (*LENGTHS, len(states)):
                losses = played[length - 1][0]
                # up to the middle of the sequence
                windows = min(length - 1, position) * segments + (segments + 1) / 2
                rows.append(
                    {
                        "windows": str(length * segments) if length < len(states) else ALL,
                        "rate": 1.0,
                        "history_ms": windows * data.settings.window_ms,
                        "frames": ALL,
                        model.val_loss: losses[model.val_loss].item(),
                        "loss_zero": losses["loss_zero"].item(),
                    }
                )
            *limited, carried = [state for _, (state, _) in played]
            states = [None, *limited[:-1], carried]
            target = played[0][1][1]
            advance(number + 1, None, "")
    return pd.DataFrame(rows).groupby(KEYS, sort=False).mean().reset_index()


def summarise(curve: pd.DataFrame, metric: str, score: Score) -> tuple[dict[str, float], str]:
    """Compute what the longest history gains over the shortest.

    Args:
        curve: as measured, the shortest history first.
        metric: the main one.
        score: its description.

    Returns:
        The gains by group of frames, positive if memory helps; and one line with them and the
        shortest measured history that reaches 90 % of the gain on all frames.
    """
    sign = 1 if score.better == "higher" else -1
    curve = curve[curve["rate"] == 1]
    by_frames = curve.groupby("frames", sort=False)[metric]
    gained = sign * (curve[metric] - by_frames.transform("first"))
    gains = dict(zip(curve["frames"], gained, strict=True))  # the last of each group
    parts = ", ".join(f"{gain:.3g} ({frames} frames)" for frames, gain in gains.items())
    text = f"memory improves {score.title.rstrip(' ↑↓')} by {parts}"
    if gains[ALL] > 0:
        reached = curve[(curve["frames"] == ALL) & (gained >= REACHED * gains[ALL])].iloc[0]
        seconds = reached["history_ms"] / 1000
        text += f"; {REACHED:.0%} of it within {seconds:.2g} s ({reached['windows']} windows)"
    return gains, text


def draw(curve: pd.DataFrame, metric: str, score: Score, path: Path) -> None:
    """Draw the main metric over the history, a curve for each group of frames.

    Args:
        curve: as measured; scores at another window rate are drawn as triangles.
        metric: the main one.
        score: its description.
        path: PNG file to write.
    """
    figure = Figure(figsize=(8.4, 4.0), layout="constrained")
    axes = figure.subplots()
    for number, (frames, scores) in enumerate(curve.groupby("frames", sort=False)):
        colour = class_colour(number)
        for rate, points in scores.groupby("rate", sort=False):
            note = "" if rate == 1 else f", {rate:g} times the window rate"
            label = f"{frames} frames{note}"
            seconds = points["history_ms"] / 1000
            axes.plot(seconds, points[metric], MARKERS[rate], color=colour, mfc="none", label=label)
    ylabel = " ".join(filter(None, (score.title, score.unit)))
    axes.set(xscale="log", xlabel="history up to the scored time in s", ylabel=ylabel)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.grid(alpha=0.3)
    figure.legend(loc="outside right upper", frameon=False, fontsize=8)
    save_figure(figure, path, dpi=120)

"""Save the predictions that are scored, and score predictions from files by the same protocol."""

import json
import secrets
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from tespec.comparison.cell import Cell, start_of
from tespec.comparison.records import Numbers, Record
from tespec.core.config import as_facts
from tespec.core.distributed import barrier, broadcast, is_first, rank_zero_first
from tespec.core.errors import UserError
from tespec.core.files import sha256_of
from tespec.core.hashes import fingerprint_of
from tespec.core.progress import log, progress
from tespec.datasets.base import TRAIN
from tespec.datasets.recording import LabelledRecording
from tespec.inference import load_trained
from tespec.models.backbone import execute
from tespec.pretraining.method import Method, TableRow
from tespec.runs.data import Data, find_data, settings_of
from tespec.runs.finetune import hash_task, outcome_of
from tespec.runs.identity import finetuning_cell
from tespec.runs.references import method_of
from tespec.runs.run import Outcome, Run, run_or_load
from tespec.runs.setup import Setup
from tespec.runs.train import require_recordable
from tespec.tasks import build_task
from tespec.tasks.predictions import (
    DESCRIPTION,
    Description,
    find_predictions,
    format_of,
    frame_name,
    read_description,
)
from tespec.training.device import choose_device
from tespec.weights.files import read_recipe
from tespec.weights.load import RUN

# Settings that determine the scores of given predictions, for their record.
PROTOCOL = ("task", "version", "kind", "dataset", "classes", "splits", "protocol", "downsample")
ACCUMULATE = "accumulate"  # among changed settings, though it is none of `Finetuning`
AUGMENTATION = "test_time_augmentation"


def save_predictions(weights: Path, given: Path | None, out: Path, setup: Setup) -> Numbers:
    """Evaluate a trained network as its run did, and save all predictions.

    Args:
        weights: `model.safetensors` of a fine-tuning.
        given: data as the user gave it to the run, see `find_data`.
        out: folder to create; with `setup.overwrite`, a folder of predictions is replaced.
        setup: where and how to evaluate.

    Returns:
        The scores of the saved predictions by metric.

    Raises:
        UserError: the file names no run, the data is not the run's, or the folder exists.
    """
    recipe = read_recipe(weights)
    trained = recipe.get(RUN, {})
    cell, seed = start_of(trained, "", weights)
    if not isinstance(cell, Cell):
        remedy = "give the model.safetensors of `tespec run`"
        raise UserError(weights, "does not name the run that fine-tuned it", remedy)
    if out.exists() and not (setup.overwrite and (out / DESCRIPTION).is_file()):
        raise UserError(out, "already exists", "choose a new folder")
    network = load_trained(weights)
    settings = network.settings
    target = format_of(settings.kind)
    data = find_data(settings.task, given, settings.profile).generate()
    with rank_zero_first():
        task: Any = build_task(settings, data.root, cell.split, int(seed or 0))
    fingerprint = fingerprint_of(hash_task(task, setup))
    if fingerprint != trained["data_fingerprint"]:
        what = "is not the data of the network's run"
        remedy = "give the data that it was trained and scored on"
        raise UserError(f"--data {given or ''}".rstrip(), what, remedy)
    unfinished = out.with_name(f".{broadcast(secrets.token_hex(8))}.part")

    def save(predicted: Any, recording: LabelledRecording, label: int) -> None:
        path = unfinished / f"{frame_name(recording, label)}{target.suffixes[0]}"
        path.parent.mkdir(parents=True, exist_ok=True)
        target.write(path, predicted)

    device = choose_device(setup.device)
    model = network.model.to(device)
    execute(model, compiled=setup.compiled, fast=setup.fast)
    try:
        scorer = task.evaluate(model, device, setup.workers, save=save)
        metrics = scorer.overall().metrics()
        if is_first():
            row = method_of(cell).row
            protocol = task.protocol()
            height, width = task.size
            description = Description(
                method=cell.method,
                task=cell.task,
                arch=cell.arch,
                height=height,
                width=width,
                split=cell.split,
                data=cell.data,
                data_fingerprint=fingerprint,
                task_version=settings.version,
                classes=settings.classes,
                seed=int(seed or 0),
                profile=cell.profile,
                overrides={k: v for k, v in cell.overrides.items() if k != AUGMENTATION},
                label_fraction=cell.label_fraction,
                frozen=cell.frozen,
                test_time_augmentation=settings.test_time_augmentation,
                events=f"{protocol['events']}; {protocol['histograms']}",
                pretraining_data=cell.pretraining_data,
                title=row.title,
                citation=row.citation,
                licence=row.licence,
                metrics=metrics,
            )
            (unfinished / DESCRIPTION).write_text(json.dumps(asdict(description), indent=1))
            if out.exists():
                shutil.rmtree(out)
            unfinished.rename(out)
        barrier()
    finally:
        if is_first():
            shutil.rmtree(unfinished, ignore_errors=True)
    return dict(metrics)


def score_predictions(
    folder: Path, name: str, data: Data, split: str, profile: str | None, setup: Setup
) -> Record:
    """Score predictions by a task's protocol without a network, or load their record.

    Args:
        folder: contains `predictions.json`, and a folder with predictions for each recording.
        name: of the task.
        data: whose labels are the ground truth.
        split: of the data.
        profile: given by the user; default: as in `predictions.json`.
        setup: where to write the record.

    Returns:
        The record, of kind "predictions".

    Raises:
        UserError: predictions are missing, doubled, surplus or invalid, or are for something else.
    """
    start_time = time.monotonic()
    described = read_description(folder)
    changes = [f"{k}={json.dumps(v)}" for k, v in described.overrides.items() if k != ACCUMULATE]
    profile = profile or described.profile or None
    settings = settings_of(data, name, described.arch, profile, changes, frozen=described.frozen)
    suffixes = format_of(settings.kind).suffixes
    with rank_zero_first():
        task = build_task(settings, data.root, split)
    hashed = hash_task(task, setup)
    height, width = task.size
    scored = {
        "task": name,
        "split": split,
        "data": data.label,
        "task_version": settings.version,
        "classes": settings.classes,
        "height": height,
        "width": width,
        "data_fingerprint": fingerprint_of(hashed),
    }
    require_declared(folder / DESCRIPTION, described, scored)
    files = find_predictions(folder, task.scored, suffixes)
    cell = finetuning_cell(
        "predictions",
        described.method,
        Method,
        settings,
        data.label,
        of_data=data.description.overrides(),
        split=split,
    )
    overrides = dict(cell.overrides)
    if ACCUMULATE in described.overrides:
        overrides[ACCUMULATE] = described.overrides[ACCUMULATE]
    if described.test_time_augmentation != settings.test_time_augmentation:
        overrides[AUGMENTATION] = described.test_time_augmentation
    fraction = described.label_fraction
    facts = as_facts(settings)
    sha256 = sha256_of(folder / DESCRIPTION, *files.values())
    run = Run(
        cell=replace(cell, backbone="", label_fraction=fraction, overrides=overrides),
        seed=described.seed,
        row=TableRow(
            title=described.title or described.method,
            group="Scored from predictions",
            backbone="-",
            pretraining_data=described.pretraining_data,
            citation=described.citation,
            licence=described.licence,
        ),
        settings=settings,
        config={key: facts[key] for key in PROTOCOL} | {"predictions": asdict(described)},
        data=hashed,
        setup=setup,
        start={"source": folder.name, "sha256": sha256},
        start_sha256=sha256,
        start_time=start_time,
    )
    requirements = [
        partial(require_valid, task, files),
        partial(require_recordable, run, nn.Module()),
    ]
    return run_or_load(run, partial(scores_of, task, files, described), requirements=requirements)


def require_declared(where: Path, described: Description, scored: Mapping[str, Any]) -> None:
    """Refuse predictions for another task, split, size or data.

    Args:
        where: file of the description.
        described: what the predictions are for.
        scored: values by name of the field, for the labels that are to be scored.
    """
    for key, value in scored.items():
        declared = getattr(described, key)
        if declared not in (None, value):
            what = f"is {declared}, but {value} is scored"
            raise UserError(f"{where}, {key}", what, "score what the predictions were made for")


def read_all(
    task: Any, files: Mapping[str, Path], label: str
) -> Iterator[tuple[LabelledRecording, int, Any]]:
    """Yield each scored recording, the index of a label, and the prediction for the label.

    Args:
        task: with the scored recordings.
        files: of the predictions, by `frame_name`.
        label: title of the progress bar.

    Raises:
        UserError: a file is not a valid prediction.
    """
    settings = task.settings
    read = format_of(settings.kind).read
    with progress(label, "labels") as advance:
        done = 0
        for recording in task.scored:
            for index in range(len(recording.label_indices)):
                path = files[frame_name(recording, index)]
                yield recording, index, read(path, task.size, len(settings.classes))
                done += 1
                advance(done, len(files), "")


def require_valid(task: Any, files: Mapping[str, Path]) -> None:
    """Read all predictions; arguments and errors as in `read_all`."""
    for _ in read_all(task, files, "checking predictions"):
        pass


def scores_of(task: Any, files: Mapping[str, Path], described: Description) -> Outcome:
    """Score predictions, and log where the scores differ from those that their author states.

    Args:
        task: with the scored recordings.
        files: of the predictions, by `frame_name`.
        described: facts about them.

    Returns:
        Fields of the record.
    """
    scorer = task.scorer()
    for recording, label, predicted in read_all(task, files, "scoring predictions"):
        task.score(scorer, predicted, recording.labels[label], recording, label)
    outcome = dict(
        outcome_of(
            task,
            scorer,
            events=described.events or "not described",
            scored=f"every {task.split} label once, predictions read from files; "
            f"test-time augmentation: {described.test_time_augmentation}",
        )
    )
    # Facts about a training that the predictions need not come from.
    outcome["protocol"] = {
        name: text
        for name, text in outcome["protocol"].items()
        if name not in (TRAIN, "histograms")
    }
    metrics = outcome["metrics"]
    for name, stated in described.metrics.items():
        if metrics.get(name) != stated:
            log(f"{name}: {DESCRIPTION} states {stated}, computed: {metrics.get(name)}")
    return outcome

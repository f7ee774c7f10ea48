"""Save the predictions that are scored, and score predictions from files by the same protocol."""

import json
import secrets
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from tespec.comparison.cell import RESULTS_VERSION, run_of
from tespec.comparison.records import Numbers, Record
from tespec.core.config import as_facts, changed_settings
from tespec.core.distributed import broadcast, is_first
from tespec.core.errors import UserError, require
from tespec.core.files import sha256_of
from tespec.core.hashes import fingerprint_of
from tespec.core.progress import progress
from tespec.datasets.recording import LabelledRecording
from tespec.inference import load_trained
from tespec.models.backbone import backbones, execute
from tespec.runs.data import Data, settings_of
from tespec.runs.finetune import outcome_of
from tespec.runs.references import method_of
from tespec.runs.run import Outcome, Run, run_or_load
from tespec.runs.setup import Setup
from tespec.tasks import build_task
from tespec.tasks.predictions import (
    HEADER,
    HEADERS,
    PredictionsHeader,
    find_predictions,
    prediction_format,
    prediction_path,
    read_json_as,
)
from tespec.training.device import choose_device
from tespec.weights.files import read_recipe
from tespec.weights.load import RUN

# Settings, or groups of them, that determine the scored labels and the scores of predictions.
PROTOCOL = ("kind", "dataset", "classes", "splits", "protocol", "downsample", "sensor_px", "head")
UNKNOWN = "not known, since predictions were read from files"


def save_predictions(weights: Path, data: Data, out: Path, setup: Setup) -> Numbers:
    """Evaluate a trained network as its run did, and save every prediction.

    Args:
        weights: `model.safetensors` of a fine-tuning.
        data: of the run.
        out: new folder; with `setup.overwrite`, a folder of predictions is replaced.
        setup: where and how to evaluate.

    Returns:
        The scores of the saved predictions by metric.

    Raises:
        UserError: the file names no run, its recipe is damaged, or the folder exists.
    """
    of_run = read_recipe(weights).get(RUN, {})
    cell, seed = run_of(of_run, weights)
    is_old = (out / HEADER).is_file() and not out.is_symlink()
    may_write = not out.exists() or (setup.overwrite and is_old)
    require(may_write, out, "already exists", "choose a new folder")
    device = choose_device(setup.device)
    network = load_trained(weights)
    settings = network.settings
    target = prediction_format(settings.kind)
    task: Any = build_task(settings, data.generate().root, cell.split)
    protocol = task.protocol()
    try:
        header = PredictionsHeader(
            cell=replace(cell, kind="predictions", data=data.label),
            facts=method_of(cell).row,
            height=task.size[0],
            width=task.size[1],
            seed=seed,
            events=f"{protocol['events']}; {protocol['histograms']}",
            classes=settings.classes,
            data_fingerprint=fingerprint_of(
                broadcast(task.checksums(check=setup.check_data) if is_first() else {})
            ),
            weights=of_run.get("weights", {"doubt": "initial weights not described"}),
        )
    except ValidationError as error:
        raise UserError(weights, "its recipe is damaged", "copy the file again") from error
    unfinished = out.with_name(f".{broadcast(secrets.token_hex(8))}.part")

    def save(predicted: Any, recording: LabelledRecording, label: int) -> None:
        path = prediction_path(unfinished, recording, label, target.suffixes[0])
        path.parent.mkdir(parents=True, exist_ok=True)
        target.write(path, predicted)

    execute(network.model, compiled=setup.compiled, fast=setup.fast)
    try:
        scorer = task.evaluate(network.model.to(device), device, setup.workers, save=save)
        if is_first():
            (unfinished / HEADER).write_bytes(HEADERS.dump_json(header, indent=1))
            if out.exists():
                shutil.rmtree(out)
            unfinished.rename(out)
    finally:
        if is_first():
            shutil.rmtree(unfinished, ignore_errors=True)
    return dict(scorer.overall().metrics())


def score_predictions(folder: Path, name: str, data: Data, setup: Setup) -> Record:
    """Score predictions by a task's protocol without a network, or load their record.

    Args:
        folder: contains `predictions.json`, and a folder with predictions for each recording.
        name: of the task.
        data: whose labels are the ground truth.
        setup: where to write the record.

    Returns:
        The record, of kind "predictions".

    Raises:
        UserError: predictions are missing, doubled, surplus or invalid, or are for something else,
            or a changed setting is unknown or invalid.
    """
    where = folder / HEADER
    header = read_json_as(HEADERS, where)
    cell = header.cell
    overrides = cell.overrides.items()
    of_run = {key: value for key, value in overrides if key == "accumulate"}
    changes = [f"{key}={json.dumps(value)}" for key, value in overrides if key not in of_run]
    network = cell.backbone if cell.backbone in backbones() else "swin"  # gives defaults
    settings = settings_of(
        data, name, cell.arch, cell.profile, changes, network, frozen=cell.frozen
    )
    changed = changed_settings(settings, settings.backbone, data.description.overrides())
    source = prediction_format(settings.kind)
    task: Any = build_task(settings, data.generate().root, cell.split)
    hashed = task.checksums(check=setup.check_data)
    fingerprint = fingerprint_of(hashed)
    for field, declared, scored in (
        ("cell.kind", cell.kind, "predictions"),
        ("cell.task", cell.task, name),
        ("cell.data", cell.data, data.label),
        ("classes", header.classes or settings.classes, settings.classes),
        ("height, width", (header.height, header.width), task.size),
        ("data_fingerprint", header.data_fingerprint or fingerprint, fingerprint),
    ):
        require(
            declared == scored,
            f"{where}, {field}",
            f"is {declared}, but {scored} is scored",
            "score what the predictions are for",
        )
    predictions = find_predictions(folder, task.scored, source.suffixes)
    scorer = task.scorer()

    def score() -> None:
        with progress("scoring predictions", "labels") as advance:
            for done, (recording, label, path) in enumerate(predictions, start=1):
                predicted = source.read(path, task.size, len(settings.classes))
                task.score(scorer, predicted, recording.labels[label], recording, label)
                advance(done, len(predictions), "")

    def outcome() -> Outcome:
        augmentation = settings.test_time_augmentation
        return outcome_of(
            task,
            scorer,
            train=UNKNOWN,
            histograms=UNKNOWN,
            predictions=UNKNOWN,
            events=header.events,
            scored=f"every {cell.split} label once; test-time augmentation: {augmentation}",
        )

    sha256 = sha256_of(where, *(path for _, _, path in predictions))
    facts = as_facts(settings)
    # Network and pre-training cannot be checked, so `config` has them and the identity has not.
    cell = replace(cell, overrides=changed | of_run, backbone="", start="")
    run = Run(
        cell=replace(cell, task_version=settings.version, results_version=RESULTS_VERSION),
        seed=header.seed,
        row=header.facts,
        settings=settings,
        config={key: facts[key] for key in PROTOCOL} | {"predictions": HEADERS.dump_python(header)},
        data=hashed,
        setup=setup,
        start=header.weights.model_dump() | {"source": folder.name, "sha256": sha256},
        start_sha256=sha256,
    )
    # All predictions are read before anything is written.
    return run_or_load(run, outcome, requirements=[score])

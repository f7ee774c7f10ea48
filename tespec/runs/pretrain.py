"""Pre-train a backbone on recordings, and save it with its recipe, a record and a picture."""

import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

from tespec.comparison.cell import recipe_of
from tespec.comparison.records import Record
from tespec.core.config import as_facts
from tespec.core.distributed import broadcast, is_first, rank_computes, rank_zero_first
from tespec.core.errors import require
from tespec.core.files import sha256_of
from tespec.core.progress import log
from tespec.core.settings import HistogramSpec, Pretraining
from tespec.datasets.recording import Recording, event_corrections, hash_data, require_stored
from tespec.models.backbone import Backbone
from tespec.pretraining.data import EventData, PretrainData
from tespec.pretraining.method import find_method, objective_class, open_pretraining
from tespec.pretraining.tespec import Tespec
from tespec.runs.cost import require_trainable
from tespec.runs.data import Data, same_world
from tespec.runs.identity import pretraining_cell, required_network, required_settings
from tespec.runs.run import Outcome, Run
from tespec.runs.setup import Setup
from tespec.runs.train import sizes_of, train_or_load
from tespec.runs.validation import draw_reconstructions, stage_statistics, validate
from tespec.training.device import choose_device, derive_seed, seed_everything, with_precision
from tespec.weights.files import write_weights
from tespec.weights.load import HISTOGRAMS

WEIGHTS = "backbone.safetensors"
# the complete network of a recurrent pre-training, with its decoder, for `tespec.runs.history`
NETWORK = "pretraining.safetensors"


class Pretrained(NamedTuple):
    """Result of a pre-training: the weights file and the record."""

    weights: Path
    record: Record


def pretrain(
    name: str,
    settings: Pretraining,
    data: Data,
    seed: int,
    setup: Setup,
    *,
    skip_damaged: bool = False,
) -> Pretrained:
    """Pre-train a method, or load the result if the run is complete.

    A network that the method requires is pre-trained first, in a run of its own.

    Args:
        name: registered name of the method.
        settings: of the pre-training.
        data: folder of the data and its name in records; a missing sample world is generated.
        seed: of the initialisation and the order of the data.
        setup: where and how to run.
        skip_damaged: whether to skip unreadable recordings instead of refusing them.

    Raises:
        UserError: if settings, options and data do not fit.
    """
    start_time = time.monotonic()
    cell = pretraining_cell(settings, data.label, setup.accumulate)
    # Settings and options are refused before a required network is pre-trained.
    open_pretraining(settings, None)
    require_trainable(settings, setup)
    data = data.generate()
    with rank_zero_first():
        opened = open_pretraining(settings, data.root, skip_damaged=skip_damaged)
    for note in opened.notes:
        log(note)
    required = pretrain_required(name, settings, data, seed, setup, skip_damaged)
    settings = replace(
        settings, optimisation=with_precision(settings.optimisation, choose_device(setup.device))
    )
    require_stored(recordings_of(opened), settings.downsample, cell.overrides)
    data_checksums = broadcast(checksums_of(opened, setup) if is_first() else {})
    seed_everything(derive_seed(seed, "model"))
    model: Any = objective_class(settings).from_data(opened)
    if required:
        model.load_required(required)
    run = Run(
        cell=cell,
        seed=seed,
        row=find_method(name).row,
        settings=settings,
        config=as_facts(settings),
        data=data_checksums,
        setup=setup,
        start_sha256=sha256_of(required) if required else "",
        start_time=start_time,
    )
    record = train_or_load(
        run,
        model,
        opened,
        lambda: broadcast(validate_and_save(run, opened, model) if is_first() else {}),
    )
    return Pretrained(run.folder / WEIGHTS, record)


def pretrain_required(
    name: str, settings: Pretraining, data: Data, seed: int, setup: Setup, skip_damaged: bool
) -> Path | None:
    """Find the weights of the network that the method requires, or pre-train it first.

    The arguments are those of `pretrain`.

    Returns:
        The file of the weights; None if the method requires no network.

    Raises:
        UserError: if the network learns from other data, which the user has to name.
    """
    required, file = required_network(settings)
    if file or not required:
        return Path(file) if file else None
    recipe = required_settings(settings, required)
    if objective_class(recipe).data_type is not objective_class(settings).data_type:
        require(
            data.is_sample,
            f"--method {name}",
            f"needs a network pre-trained by {required} on other data",
            f"run tespec pretrain --method {required}, and set objective.teacher_weights to "
            "its backbone.safetensors",
        )
        data = same_world(data, recipe.dataset)
    log(f"{name} needs the network of {required}, which is pre-trained first")
    setup = replace(setup, overwrite=False)  # which is about the method's own run
    return pretrain(required, recipe, data, seed, setup, skip_damaged=skip_damaged).weights


def validate_and_save(run: Run, data: PretrainData, model: Any) -> Outcome:
    """Validate the network on this rank alone, draw its figure and save the backbone.

    Args:
        run: of the pre-training.
        data: opened data.
        model: pre-trained network.

    Returns:
        The fields of the record.
    """
    backbone = model.backbone
    stages: dict[str, dict[str, float]] = {}
    with rank_computes(alone=True):
        metrics = validate(model, data, run.device)
        if isinstance(backbone, Backbone):
            stages = stage_statistics(backbone, data, run.device)
        if isinstance(model, Tespec):
            figure = run.setup.results / "pictures" / f"{run.name}.png"
            draw_reconstructions(model, data, run.device, figure)
    settings: Any = run.settings
    spec = HistogramSpec.from_settings(settings, data.size, settings.window_ms)
    learned_from_events = backbone.in_channels == 2 * spec.bins
    recipe = run.config | recipe_of(run.cell, run.seed)
    recipe |= {
        HISTOGRAMS: asdict(spec) if learned_from_events else None,
        "sensor": list(data.size),
        "in_channels": backbone.in_channels,
        "data": run.cell.data,
        "data_fingerprint": run.data_fingerprint,
    }
    sha256 = write_weights(run.folder / WEIGHTS, backbone.state_dict(), recipe)
    if settings.recurrent:
        write_weights(run.folder / NETWORK, model.state_dict(), recipe)
    protocol = {"left out as damaged": ", ".join(data.damaged)} if data.damaged else {}
    return {
        "weights": {"source": WEIGHTS, "sha256": sha256},
        "protocol": protocol | event_corrections(recordings_of(data)),
        "metrics": metrics,
        "groups": stages,
        "recordings": data.recordings(),
        "cost": sizes_of(model),
    }


def checksums_of(data: PretrainData, setup: Setup) -> dict[str, str]:
    """Hash the data; `setup` says whether to read all of it again."""
    return hash_data(data.contents(), recordings_of(data), check=setup.check_data)


def recordings_of(data: PretrainData) -> tuple[Recording, ...]:
    """All recordings that the data consist of; images have none."""
    return (*data.train, *data.held_out) if isinstance(data, EventData) else ()

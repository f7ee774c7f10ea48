"""A pre-training: recordings in, a backbone with its recipe, a record and a picture out."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from tespec.comparison.provenance import plugin_sha256
from tespec.comparison.records import Record
from tespec.core.config import as_facts, changed_pretraining, own_files
from tespec.core.distributed import broadcast, is_first, rank_zero_first, single_rank
from tespec.core.progress import say
from tespec.core.settings import Pretraining
from tespec.models.backbone import Backbone
from tespec.models.layers import with_exact_pools
from tespec.pretraining.data import PretrainData
from tespec.pretraining.health import evaluating
from tespec.pretraining.method import PretrainMethod, find_method, new_network, open_pretraining, pretrain_method
from tespec.runs.data import Data
from tespec.runs.run import Outcome, Run, imported_parts, on_device, run_or_load
from tespec.runs.setup import Setup
from tespec.training.device import derive, seed_everything
from tespec.training.loading import deal
from tespec.weights.files import sha256_of, write_weights

WEIGHTS = "backbone.safetensors"


@dataclass(frozen=True)
class Pretrained:
    """What a pre-training gives: the weights file, its record, and a picture where there is one."""

    weights: Path
    record: Record
    picture: Path | None

    @property
    def metrics(self) -> dict[str, float]:
        """Its record's."""
        return {name: value for name, value in self.record.metrics.items() if value is not None}


def pretrain(name: str, settings: Pretraining, data: Data, seed: int, setup: Setup) -> Pretrained:
    """Pre-train by `settings` on `data`, or take up the complete result of the same run.

    A method that requires another one's network has that pre-trained first, in a run of its own.

    Args:
        name: the method's registered name.
        settings: the resolved recipe.
        data: recordings.
        seed: decides everything random.
        setup: where and how.

    Raises:
        UserError: data that cannot be read, too few windows, settings that do not fit.
    """
    method = find_method(name)
    kind: Any = pretrain_method(settings)
    first: Pretrained | None = None
    if kind.requires:
        first = pretrain(kind.requires, kind.required_settings(settings), data, seed, replace(setup, variant=""))
    began = time.monotonic()
    overrides = changed_pretraining(settings, method.network)
    settings = on_device(settings, setup)
    with rank_zero_first():
        learned = open_pretraining(settings, data.root, skip_damaged=setup.skip_damaged)
    for note in learned.notes:
        say(note)
    seed_everything(derive(seed, "model"))
    model: Any = new_network(settings, learned)
    if first:
        model.take(first.weights)
    run = Run(
        kind="pretraining",
        method_name=name,
        method=method,
        task=data.label,
        settings=settings,
        config=as_facts(settings),
        overrides=overrides,
        data=data.label,
        data_fingerprint=learned.fingerprint(),
        seed=seed,
        setup=setup,
        plugin=plugin_sha256(
            {method, type(model.backbone), *imported_parts(model)},
            own_files(profiles=settings.profile),
        ),
        start={"requires": first.record.name, "start_sha256": first.record.weights["sha256"]} if first else {},
        began=began,
    )
    if setup.deterministic:
        with_exact_pools(model)
    batches = deal(learned.steps, seed, settings.batch_size, setup.accumulate)
    record = run_or_load(
        run,
        partial(_validated, run, learned, model),
        model,
        batches,
        partial(_missing, setup),
        partial(_last_stage, run, learned, model) if isinstance(model.backbone, Backbone) else None,
    )
    weights, picture = setup.runs / record.name / WEIGHTS, setup.picture(record.name)
    return Pretrained(weights, record, picture if picture.is_file() else None)


def _last_stage(run: Run, data: PretrainData, model: PretrainMethod) -> dict[str, float]:
    """Spread and rank of the last stage's features, on a small part of the data held out, by this rank alone."""
    with single_rank(), evaluating(model):
        (found,) = model.stage_spreads(data, run.device, [3]).values()
    return {name: found[name] for name in ("std", "rank")}


def _validated(run: Run, data: PretrainData, model: PretrainMethod) -> Outcome:
    """Score the network on validation data, draw a picture and write the backbone, all on rank 0."""
    metrics, stages, seconds, sha256 = {}, {}, 0.0, ""
    if is_first():
        with single_rank():
            began = time.monotonic()
            metrics = model.validate(data, run.device)
            stages = model.stage_spreads(data, run.device) if isinstance(model.backbone, Backbone) else {}
            seconds = time.monotonic() - began
            model.draw(data, run.device, run.setup.picture(run.name))
        recipe = run.config | {
            "method": run.method_name,
            "overrides": dict(run.choices["overrides"]),
            "seed": run.seed,
            "sensor": list(data.size),
            "in_channels": model.backbone.in_channels,
            "data": run.data,
            "data_fingerprint": run.data_fingerprint,
        }
        sha256 = write_weights(run.folder / WEIGHTS, model.backbone.state_dict(), recipe)
    metrics, stages, seconds, sha256 = broadcast((metrics, stages, seconds, sha256))
    return Outcome(
        seconds=seconds,
        weights={"source": WEIGHTS, "sha256": sha256, **run.start},
        protocol=model.protocol(data),
        metrics=metrics,
        groups=stages,
        recordings=data.recordings(),
    )


def _missing(setup: Setup, record: Record) -> str:
    """What is wrong with the weights that a record names, "" for nothing."""
    weights = setup.runs / record.name / WEIGHTS
    if not weights.is_file():
        return f"its weights {weights} are gone"
    return "" if sha256_of(weights) == record.weights["sha256"] else f"{weights} is not the file its record names"

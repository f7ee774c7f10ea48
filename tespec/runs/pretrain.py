"""Pre-train a backbone on recordings, and save it with its recipe, a record and a picture."""

import time
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from tespec.comparison.records import Record
from tespec.core.config import UPSTREAM, as_facts, changed_settings
from tespec.core.distributed import broadcast, is_first, rank_computes, rank_zero_first
from tespec.core.errors import UserError
from tespec.core.files import sha256_of
from tespec.core.progress import say
from tespec.core.settings import HistogramSpec, Pretraining
from tespec.datasets.recording import event_corrections, require_stored
from tespec.models.backbone import Backbone
from tespec.pretraining.data import PretrainData
from tespec.pretraining.method import (
    find_method,
    new_network,
    open_pretraining,
    own_settings,
    pretrain_method,
)
from tespec.runs.cost import require_memory
from tespec.runs.data import Data, sibling
from tespec.runs.run import Outcome, Run, plugin_of, run_or_load
from tespec.runs.setup import Setup
from tespec.runs.train import require_trainable, sizes_of, train
from tespec.training.device import choose_device, derive, seed_everything, with_precision
from tespec.training.loading import deal
from tespec.weights.files import write_weights
from tespec.weights.load import HISTOGRAMS

WEIGHTS = "backbone.safetensors"


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
    """Pre-train the method `name` on `data`, or load the result if the run is complete.

    If the method needs the network of another one, that is pre-trained first, in a separate run.
    """
    began, method = time.monotonic(), find_method(name)
    overrides, given = identity_of(settings)
    # Settings and options are refused before another network is pre-trained.
    open_pretraining(settings, None)
    require_trainable(settings, setup)
    with rank_zero_first():
        learned = open_pretraining(settings, data.root, skip_damaged=skip_damaged)
    for note in learned.notes:
        say(note)
    upstream = _upstream(name, settings, data, seed, setup, skip_damaged)
    settings = replace(
        settings, optimisation=with_precision(settings.optimisation, choose_device(setup.device))
    )
    # images have no recordings
    learned_from = (*getattr(learned, "train", ()), *getattr(learned, "held_out", ()))
    require_stored(learned_from, settings.downsample, overrides)
    seed_everything(derive(seed, "model"))
    model: Any = new_network(settings, learned)
    if upstream:
        model.load_upstream(upstream)
    run = Run(
        kind="pretraining",
        method_name=name,
        method=method,
        task=data.label,
        settings=settings,
        config=as_facts(settings) | given,
        overrides=overrides,
        data=data.label,
        data_fingerprint=learned.fingerprint(),
        seed=seed,
        setup=setup,
        start={"start_sha256": sha256_of(upstream)} if upstream else {},
        plugin=plugin_of(model, {method, type(model.backbone)}, profiles=settings.profile),
        began=began,
    )
    batches = deal(learned.steps, seed, setup.accumulate)
    require = partial(require_memory, settings, learned.size, setup, run.device)
    record = run_or_load(
        run, partial(_validated, run, learned, model), partial(train, run, model, batches), require
    )
    return Pretrained(run.folder / WEIGHTS, record)


def identity_of(settings: Pretraining) -> tuple[dict[str, Any], dict[str, str]]:
    """Settings that differ from the recipe's, without the file of another network, and that file's hash, if given.

    A changed setting without effect on the method is refused.
    """
    changed = changed_settings(settings, find_method(settings.name).network)
    method = pretrain_method(settings)
    if unused := [key for key in changed if key.partition(".")[0] in method.unused]:
        where = "--backbone" if unused[0] == "backbone" else unused[0]
        raise UserError(
            where, f"has no effect on the pre-training of {method.title}", "leave it unchanged"
        )
    _, file = method.upstream(own_settings(settings.objective))
    if not file:
        return changed, {}
    overrides = {
        key: each
        for key, each in changed.items()
        if not (isinstance(each, str) and Path(each) == Path(file))
    }
    return overrides, {UPSTREAM: sha256_of(Path(file))}


def _upstream(
    name: str, settings: Pretraining, data: Data, seed: int, setup: Setup, skip_damaged: bool
) -> Path | None:
    """Return the other network that the method needs, if any; without a file from the user, it is pre-trained first."""
    method = pretrain_method(settings)
    first, file = method.upstream(own_settings(settings.objective))
    if file or not first:
        return Path(file) if file else None
    recipe = method.upstream_settings(settings, first)
    same = pretrain_method(recipe).data_type is method.data_type
    if not same and not data.is_sample:
        what = f"needs a network pre-trained by {first} on other data"
        remedy = f"run tespec pretrain --method {first}, and set objective.teacher_weights to its backbone.safetensors"
        raise UserError(f"--method {name}", what, remedy)
    say(f"{name} needs the network of {first}, which is pre-trained first")
    where = data if same else sibling(data, recipe.dataset)
    return pretrain(
        first, recipe, where, seed, replace(setup, variant=""), skip_damaged=skip_damaged
    ).weights


def _validated(run: Run, data: PretrainData, model: Any) -> Outcome:
    """On rank 0, validate the network, draw a picture and save the backbone."""
    metrics, stages, sha256 = {}, dict[str, Any](), ""
    settings: Any = run.settings
    if is_first():
        with rank_computes(alone=True):
            metrics = model.validate(data, run.device)
            stages = (
                model.stage_spreads(data, run.device)
                if isinstance(model.backbone, Backbone)
                else {}
            )
            model.draw(data, run.device, run.setup.results / "pictures" / f"{run.name}.png")
        spec = HistogramSpec.of(settings, data.size, settings.window_ms)
        recipe = run.config | {
            # None: of images
            HISTOGRAMS: asdict(spec) if model.backbone.in_channels == 2 * spec.bins else None,
            "method": run.method_name,
            "overrides": dict(run.choices["overrides"]),
            "seed": run.seed,
            "sensor": list(data.size),
            "in_channels": model.backbone.in_channels,
            "data": run.data,
            "data_fingerprint": run.data_fingerprint,
        }
        sha256 = write_weights(run.folder / WEIGHTS, model.backbone.state_dict(), recipe)
    metrics, stages, sha256 = broadcast((metrics, stages, sha256))
    protocol = {"left out as damaged": ", ".join(data.damaged)} if data.damaged else {}
    protocol |= event_corrections((*getattr(data, "train", ()), *getattr(data, "held_out", ())))
    return {
        "weights": {"source": WEIGHTS, "sha256": sha256, **run.start},
        "protocol": protocol,
        "metrics": metrics,
        "groups": stages,
        "recordings": data.recordings(),
        "cost": sizes_of(model),
    }

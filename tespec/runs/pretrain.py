"""A pre-training run: data in, a backbone with its recipe, a record and a picture out."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from tespec.comparison.identity import plugin_files, run_code
from tespec.comparison.identity import environment
from tespec.comparison.identity import identity, record_name
from tespec.comparison.records import Record, new_record, write_record
from tespec.core.config import as_facts
from tespec.pretraining.method import Method
from tespec.core.distributed import alone, first_goes_first, first_says, is_first
from tespec.core.settings import Pretraining
from tespec.runs.data import Data
from tespec.training.device import prepare
from tespec.training.device import choose_device, describe, with_precision
from tespec.pretraining.objective import build_objective
from tespec.runs.once import once
from tespec.core.progress import say
from tespec.runs.cost import start
from tespec.runs.setup import Setup, check_places, deal, finish, of_turns, train
from tespec.training.device import derive, seed_everything
from tespec.weights.files import sha256_of, write_weights

WEIGHTS = "backbone.safetensors"


@dataclass(frozen=True)
class Pretrained:
    """What a pre-training gives: the weights file, its record's metrics, and a picture where there is one."""

    weights: Path
    metrics: dict[str, float]
    picture: Path | None


def pretrain(name: str, method: Method, settings: Pretraining, data: Data, seed: int, setup: Setup) -> Pretrained:
    """Pre-train by `settings` on `data`, or take up the complete result of the same run.

    Args:
        name: the method's registered name.
        method: whose facts go into the record.
        settings: the resolved recipe.
        data: recordings.
        seed: decides everything random.
        setup: where and how.

    Raises:
        UserError: data that cannot be read, too few windows, settings that do not fit.
    """
    check_places(setup)
    device = choose_device(setup.device)
    # What is computed in determines the result, so it is part of the record's identity.
    settings = replace(settings, optimisation=with_precision(settings.optimisation, device))
    with first_goes_first():
        task = build_objective(settings, data.root)
    for note in task.notes:
        say(note)
    seed_everything(derive(seed, "model"))
    model = task.network()
    facts = as_facts(settings) | of_turns(setup, model)
    data_fingerprint = task.fingerprint()
    plugins = plugin_files(type(method), setup.plugins)
    key: dict[str, Any] = {
        "kind": "pretraining",
        "method": name,
        "task": data.label,
        "arch": settings.arch,
        "profile": settings.profile,
        "seed": seed,
        "config": facts,
        "data_fingerprint": data_fingerprint,
        "weights_sha256": "",
        "code": run_code(plugins),
    }
    run = record_name("pretraining", name, data.label, settings.arch, seed, identity(**key))
    turns = deal(task.steps, seed, settings.batch_size, setup)

    def make(how: Setup) -> Record:
        began, meter = time.monotonic(), start(device)
        prepare(model, setup.deterministic)
        trained = train(model, turns, settings.optimisation, seed=seed, setup=how, run=run, facts=facts)

        metrics, evaluated = _held_out(task, model, device, _picture(setup, run))
        metrics |= trained.counts()
        recipe = facts | {
            "method": name,
            "seed": seed,
            "sensor": list(task.size),
            "in_channels": model.backbone.in_channels,
            "data": data.label,
            "data_fingerprint": data_fingerprint,
        }
        sha256 = first_says(
            write_weights(setup.runs / run / WEIGHTS, model.backbone.state_dict(), recipe) if is_first() else ""
        )
        record = new_record(
            kind="pretraining",
            method_name=name,
            method=method.facts(),
            task=data.label,
            arch=settings.arch,
            profile=settings.profile,
            data=data.label,
            data_fingerprint=data_fingerprint,
            seed=seed,
            config=facts,
            protocol=task.protocol(),
            metrics=metrics,
            groups={},
            recordings=task.recordings(),
            classes={},
            weights={"source": WEIGHTS, "sha256": sha256},
            command=setup.command,
            environment=environment(describe(device), plugins) | setup.facts(),
            resources=meter.resources(),
            time={
                "train": trained.before + trained.seconds,
                "evaluate": evaluated,
                "total": trained.before + time.monotonic() - began,
            },
            curve=trained.curve,
            code=key["code"],
        )
        if is_first():
            write_record(record, setup.results / "runs")
        trained.track(metrics)
        finish(setup, run, settings.optimisation.steps)
        return record

    record = once(setup, run, settings.optimisation.steps, make, partial(_damage, setup))
    picture = _picture(setup, record["name"])
    weights = setup.runs / record["name"] / WEIGHTS
    return Pretrained(weights, record["metrics"], picture if picture.is_file() else None)


def _held_out(task: Any, model: Any, device: torch.device, picture: Path) -> tuple[dict[str, float], float]:
    """Scores on data held out and the seconds they took, and a picture drawn; the first process computes."""
    found: tuple[dict[str, float], float] = ({}, 0.0)
    if is_first():
        with alone():
            began = time.monotonic()
            metrics = task.evaluate(model, device)
            found = (metrics, time.monotonic() - began)
            task.draw(model, device, picture)
    return first_says(found)


def _picture(setup: Setup, run: str) -> Path:
    return setup.results / "pictures" / f"{run}.png"


def _damage(setup: Setup, record: Record) -> str:
    """What is wrong with the weights that a record names, "" for nothing."""
    weights = setup.runs / record["name"] / WEIGHTS
    if not weights.is_file():
        return f"its weights {weights} are gone"
    return "" if sha256_of(weights) == record["weights"]["sha256"] else f"{weights} is not the file its record names"

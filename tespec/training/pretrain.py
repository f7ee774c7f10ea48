"""A pre-training run: data in, a backbone with its recipe, a record and a picture out."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tespec.pretraining.objectives  # noqa: F401  # registers the objectives
from tespec.comparison.environment import environment
from tespec.comparison.records import find_record, identity, new_record, record_name, write_record
from tespec.config import as_facts
from tespec.datasets.fingerprint import fingerprint
from tespec.datasets.steps import PretrainSteps
from tespec.datasets.unlabelled import divide
from tespec.discovery import find_registered
from tespec.errors import UserError
from tespec.method import Method
from tespec.models import EventSwin
from tespec.models.padding import padded_size
from tespec.registry import MODELS
from tespec.settings import Pretraining
from tespec.training.data import Data
from tespec.training.device import choose_device, describe, with_precision
from tespec.training.held_out import HeldOut, held_out_losses
from tespec.training.moments import draw_held_out
from tespec.training.runs import Setup, check_places, clear, say, train
from tespec.training.seeding import derive, seed_everything
from tespec.weights.files import sha256_of, write_weights

WEIGHTS = "backbone.safetensors"

PROTOCOL = {
    "split": "held-out recordings, or the last quarter of the time where there are fewer than five",
    "loss": "mean squared error on the hidden patches of the patch-normalised intensity video",
    "loss_masked_carried": "backbone state carried from chunk to chunk",
    "loss_masked_zeroed": "backbone state zeroed at each chunk, intensity image carried",
    "loss_zero": "zero predicted everywhere",
}


@dataclass(frozen=True)
class Pretrained:
    """What a pre-training gives: the weights file, its record's metrics, and the picture of held-out moments."""

    weights: Path
    metrics: dict[str, float]
    picture: Path


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
    division = divide(data.root, settings.window_ms, settings.downsample)
    for path, count in division.clamped.items():
        say(f"{path}: {count:,} event times stepped back and were raised to the latest time before them")
    if max(map(len, division.held_out)) < settings.segments:
        raise UserError(data.root, f"nothing held out has {settings.segments} windows", "set fewer segments")
    facts = as_facts(settings)
    data_fingerprint = fingerprint(division.train, division.held_out)
    key: dict[str, Any] = {
        "kind": "pretraining",
        "method": name,
        "task": data.label,
        "arch": "recurrent",
        "profile": settings.profile,
        "seed": seed,
        "config": facts,
        "data_fingerprint": data_fingerprint,
        "weights_sha256": "",
    }
    run = record_name("pretraining", name, data.label, "recurrent", seed, identity(**key))
    weights = setup.runs / run / WEIGHTS
    picture = setup.results / "pictures" / f"{run}.png"
    known = find_record(setup.results / "runs", run)
    if known is not None and not setup.overwrite and _is_whole(weights, known["weights"]["sha256"]):
        say(f"{run} is complete already (--overwrite computes it again)")
        return Pretrained(weights, known["metrics"], picture)

    began = time.monotonic()
    seed_everything(derive(seed, "model"))
    model = build_objective(settings, division.size)
    steps = PretrainSteps(division.train, settings, seed)
    trained = train(model, steps, settings.optimisation, seed=seed, setup=setup, run=run)

    held_out = HeldOut(division.held_out, settings, device)
    metrics = held_out_losses(model, held_out)
    draw_held_out(model, held_out, picture, ("moving", "standing") if data.is_sample else ("busy", "quiet"))
    recipe = facts | {
        "method": name,
        "recurrent": True,
        "seed": seed,
        "sensor": list(division.size),
        "data": data.label,
        "data_fingerprint": data_fingerprint,
    }
    sha256 = write_weights(weights, model.backbone.state_dict(), recipe)
    record = new_record(
        kind="pretraining",
        method_name=name,
        method=method.facts(),
        task=data.label,
        arch="recurrent",
        profile=settings.profile,
        data=data.label,
        data_fingerprint=data_fingerprint,
        seed=seed,
        config=facts,
        protocol=PROTOCOL,
        metrics=metrics,
        groups={},
        recordings={},
        classes={},
        weights={"source": WEIGHTS, "sha256": sha256},
        command=setup.command,
        environment=environment(device=describe(device)),
        time={"train": trained.seconds, "total": time.monotonic() - began},
        curve=trained.curve,
    )
    write_record(record, setup.results / "runs")
    clear(setup, run)
    return Pretrained(weights, metrics, picture)


def _is_whole(weights: Path, sha256: str) -> bool:
    if not weights.is_file():
        return False
    if sha256_of(weights) == sha256:
        return True
    say(f"{weights}: not the file its record names, computed again")
    return False


def build_objective(settings: Pretraining, size: tuple[int, int]) -> Any:
    """Objective with a fresh backbone for histograms of `size` (H, W) px."""
    for setting, name in (("objective", settings.objective), ("decoder.type", settings.decoder.get("type", ""))):
        find_registered(MODELS, name, setting)
    backbone = EventSwin(arch=settings.width, bins=settings.bins, img_size=padded_size(*size))
    return MODELS.build(
        {
            "type": settings.objective,
            "backbone": backbone,
            "decoder": settings.decoder,
            "mask_unit": settings.mask.unit,
            "alpha": settings.target.alpha,
            "norm_events": settings.target.norm_events,
            "contrast": settings.target.contrast,
            "bin_seconds": settings.window_ms / 1000 / settings.bins,
            "patch_norm": settings.patch_norm,
            "eps": settings.patch_eps,
            "visible_weight": settings.visible_weight,
        }
    )

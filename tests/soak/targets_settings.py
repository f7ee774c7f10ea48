"""Configs, and what a user sets."""

from __future__ import annotations

import shutil
from pathlib import Path

import yaml
from harm import HOSTILE, Rng, damage, structure, yaml_text
from remembering import remember_yaml
from target import Target

from tespec.core.errors import UserError
from tespec.core.registry import pretrained_methods


def write_configs(folder: Path) -> Path:
    from tespec.core.paths import CONFIGS

    return Path(shutil.copytree(CONFIGS, folder / "configs"))


def read_configs(folder: Path) -> None:
    import tespec.core.config as config

    real = config.CONFIGS
    try:
        config.CONFIGS = folder
        for task in config.names("tasks"):
            config.as_facts(config.finetuning_settings(task, "recurrent", "sample"))
        for recipe in pretrained_methods():
            config.as_facts(config.pretraining_settings(recipe, "sample"))
    finally:
        config.CONFIGS = real


SET_KEYS = (
    "optimisation.steps", "optimisation.peak_lr", "batch_size", "objective", "objective.mask.ratio", "objective.type",
    "augmentation", "augmentation.zoom_in", "splits", "splits.train", "downsample", "downsample.factor", "window_ms",
    "rule", "bins", "head", "head.dropout", "classes", "profile", "arch", "optimisation", "a.b.c", "", ".", "=",
)  # fmt: skip


def write_sets(folder: Path) -> Path:
    (folder / "set").write_text("optimisation.steps=300")
    return folder / "set"


def harm_sets(path: Path, rng: Rng) -> None:
    value = HOSTILE[rng.integers(len(HOSTILE))]
    text = str(value)[:200] if rng.random() < 0.5 else yaml.safe_dump(value, default_flow_style=True)
    path.write_text(f"{SET_KEYS[rng.integers(len(SET_KEYS))]}={text}", errors="replace")
    if rng.random() < 0.2:
        damage(path, rng)


def read_sets(path: Path) -> None:
    from tespec.core.config import as_facts, finetuning_settings, pretraining_settings

    changes = [path.read_bytes().decode("utf-8", errors="replace")]
    refusals = []
    for resolve in (
        lambda: finetuning_settings("ddd17", "recurrent", "sample", changes),
        lambda: pretraining_settings("tespec", "sample", changes),
    ):
        try:
            as_facts(resolve())
        except UserError as error:
            refusals.append(error)
    if refusals:
        raise refusals[0]


def write_remembered_configs(folder: Path) -> Path:
    remember_yaml()
    return write_configs(folder)


def write_remembered_sets(folder: Path) -> Path:
    remember_yaml()
    return write_sets(folder)


SETTINGS: dict[str, Target] = {
    "configs": Target(write_remembered_configs, read_configs, structure(yaml.safe_load, yaml_text), 0.5),
    "set": Target(write_remembered_sets, read_sets, harm_sets),
}

"""What is read from strangers: how each is written, damaged, and read."""

from __future__ import annotations

import io
import json
import shutil
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from fuzzing import READERS, WRITERS, check_whole, damage
from PIL import Image

from tespec.errors import UserError

Rng = np.random.Generator
MARKER = "executed"
HOSTILE: tuple[Any, ...] = (
    None, True, -1, 0, 2**63, 10**400, -1e308, "", "x" * 5000, "../../../etc/passwd", "/etc/passwd", "\x00", "NaN",
    [], {}, [[]], {"": None}, [None] * 50, "<script>alert(1)</script>", "!!python/object/apply:os.system [id]", "1e999",
)  # fmt: skip


@dataclass(frozen=True)
class Target:
    """One kind of input.

    Attributes:
        write: a sound one into a folder; gives its path.
        read: takes a path; refuses by `UserError`, or reads.
        harm: damages the copy at a path.
    """

    write: Callable[[Path], Path]
    read: Callable[[Path], Any]
    harm: Callable[[Path, Rng], None]

    def case(self, sound: Path, folder: Path, rng: Rng) -> str:
        """Copy, damage, read; "refused" or "accepted".

        Raises:
            AssertionError: a refusal of more than one line, or code that was run.
        """
        path = folder / sound.name
        shutil.copytree(sound, path) if sound.is_dir() else shutil.copyfile(sound, path)
        self.harm(path, rng)
        outcome = "accepted"
        try:
            self.read(path)
        except UserError as error:
            outcome, said = "refused", str(error)
        else:
            said = ""
        assert len(said.splitlines()) <= 1, f"more than one line: {said}"
        assert not (folder / MARKER).exists(), "code was run"
        return outcome


def bytes_of_one(path: Path, rng: Rng) -> None:
    """Damage the bytes of a file, or of one of a folder's."""
    files = [path] if path.is_file() else sorted(each for each in path.rglob("*") if each.is_file())
    damage(files[rng.integers(len(files))], rng)


def structure(load: Callable[[str], Any], dump: Callable[[Any], str]) -> Callable[[Path, Rng], None]:
    """Damage a text that has a structure: mostly its values, sometimes its bytes."""

    def harm(path: Path, rng: Rng) -> None:
        files = [path] if path.is_file() else sorted(each for each in path.rglob("*") if each.is_file())
        file = files[rng.integers(len(files))]
        if rng.random() < 0.25:
            damage(file, rng)
            return
        content = load(file.read_text(encoding="utf-8"))
        for _ in range(int(rng.integers(1, 4))):
            content = changed(content, rng)
        file.write_text(dump(content), encoding="utf-8", errors="replace")

    return harm


def changed(value: Any, rng: Rng) -> Any:
    """`value` with one of its parts replaced, removed, doubled or buried deep."""
    if isinstance(value, dict) and value and rng.random() < 0.85:
        key = list(value)[rng.integers(len(value))]
        if rng.random() < 0.12:
            return {each: kept for each, kept in value.items() if each != key}
        if rng.random() < 0.05:
            return {**value, str(HOSTILE[rng.integers(len(HOSTILE))])[:50]: value[key]}
        return {**value, key: changed(value[key], rng)}
    if isinstance(value, list) and value and rng.random() < 0.85:
        index = int(rng.integers(len(value)))
        if rng.random() < 0.1:
            return value[:index] + value[index + 1 :]
        return [*value[:index], changed(value[index], rng), *value[index + 1 :]]
    if rng.random() < 0.03:
        buried: Any = value
        for _ in range(300):
            buried = [buried]
        return buried
    if isinstance(value, int | float) and not isinstance(value, bool) and rng.random() < 0.3:
        return [float("nan"), float("inf"), -value, value * 10**9, str(value)][rng.integers(5)]
    return HOSTILE[rng.integers(len(HOSTILE))]


def json_text(content: Any) -> str:
    return json.dumps(content)


def yaml_text(content: Any) -> str:
    return yaml.safe_dump(content, allow_unicode=True)


# Records: a broken one is named and left out; tables and the report are made from what is left.


def write_records(folder: Path) -> Path:
    runs = folder / "runs"
    runs.mkdir()
    source = Path(__file__).parents[1] / "comparison" / "data" / "records"
    for path in source.glob("*.json"):
        shutil.copy(path, runs)
    from tespec.comparison.records import new_record, write_record

    for name, seed in (("scratch", 0), ("tespec", 0), ("tespec", 1)):
        fields: dict[str, Any] = {
            "kind": "evaluation",
            "method_name": name,
            "method": {"title": name, "backbone": "Swin-T/7", "pretraining_data": "-", "group": ""},
            "task": "ddd17",
            "arch": "recurrent",
            "profile": "sample",
            "data": "sample",
            "data_fingerprint": "0123456789ab",
            "seed": seed,
            "config": {"arch": "recurrent", "deviations": ["a"], "optimisation": {"steps": 3}},
            "protocol": {"scores": "mean"},
            "metrics": {"miou": 40.0 + seed, "mean_class_acc": 50.0},
            "groups": {"moving": {"miou": 3.0}},
            "recordings": {"dir1": {"miou": 40.0}, "dir2": {"miou": 41.0}},
            "classes": {"flat": 80.0},
            "weights": {"source": "a.safetensors", "sha256": "ff", "recipe": {"name": "tespec", "profile": "sample"}},
            "command": "python benchmarks/run.py",
            "environment": {"cpu": "a", "device": "cpu"},
            "time": {"train": 12.5},
            "resources": {"peak_memory_bytes": 5e8},
            "curve": [{"step": 10, "loss": 1.5}],
        }
        write_record(new_record(**fields), runs)
    return runs


def read_all_records(runs: Path) -> None:
    from tespec.comparison.ablation_runs import measured_rows, measured_table
    from tespec.comparison.ablations import ablations
    from tespec.comparison.effects import effects_table
    from tespec.comparison.published import published_table
    from tespec.comparison.records import read_records
    from tespec.comparison.render_csv import render_csv, render_long_csv
    from tespec.comparison.render_latex import render_latex
    from tespec.comparison.render_text import render_text
    from tespec.report.build import report

    records, problems = read_records(runs)
    assert all("\n" not in problem for problem in problems)
    table = published_table("segmentation", records)
    for render in (render_text, render_csv, render_long_csv, render_latex):
        render(table)
    effects_table("segmentation", records, "scratch")
    for ablation in ablations().values():
        for measured in measured_rows(ablation, records):
            measured_table(ablation, measured)
    page = report(records, runs.parent / "pictures")
    assert page.count("<script>") == 1
    if problems:
        raise UserError(runs, "holds files that are no records", "remove them")


# Published numbers, edited by hand.


def write_references(folder: Path) -> Path:
    from tespec.comparison.references import PAPER

    return Path(shutil.copytree(PAPER, folder / "paper"))


def read_references(folder: Path) -> None:
    import tespec.comparison.ablations as ablations_module
    import tespec.comparison.audit as audit_module
    import tespec.comparison.plain as plain_module
    import tespec.comparison.references as references_module
    from tespec.comparison.published import TABLES, published_table
    from tespec.comparison.render_text import render_text

    modules = (ablations_module, audit_module, references_module)
    real, real_file = references_module.PAPER, plain_module.FILE
    try:
        for module in modules:
            module.PAPER = folder
        plain_module.FILE = folder / real_file.name
        for name in TABLES:
            render_text(published_table(name, []))
        for ablation in ablations_module.ablations().values():
            render_text(ablations_module.ablation_table(ablation, {}))
        for table in plain_module.plain_tables().values():
            render_text(table)
        audit_module.render_audit()
    finally:
        for module in modules:
            module.PAPER = real
        plain_module.FILE = real_file


# Settings: configs, and what a user sets.


def write_configs(folder: Path) -> Path:
    from tespec.paths import CONFIGS

    return Path(shutil.copytree(CONFIGS, folder / "configs"))


def read_configs(folder: Path) -> None:
    import tespec.config as config

    real = config.CONFIGS
    try:
        config.CONFIGS = folder
        for task in config.names("tasks"):
            config.as_facts(config.finetuning_settings(task, "recurrent", "sample"))
            config.tolerances(task)
        for recipe in config.names("pretraining"):
            config.as_facts(config.pretraining_settings(recipe, "sample"))
    finally:
        config.CONFIGS = real


SET_KEYS = (
    "optimisation.steps", "optimisation.peak_lr", "batch_size", "objective", "objective.mask.ratio", "objective.type",
    "augmentation", "augmentation.zoom_in", "splits", "splits.train", "downsample", "downsample.factor", "window_ms",
    "rule", "bins", "head", "head.dropout", "classes", "profile", "arch", "optimisation", "a.b.c", "", ".", "=",
)  # fmt: skip


def write_sets(folder: Path) -> Path:
    (folder / "set").write_text("optimisation.steps=3")
    return folder / "set"


def harm_sets(path: Path, rng: Rng) -> None:
    value = HOSTILE[rng.integers(len(HOSTILE))]
    text = str(value)[:200] if rng.random() < 0.5 else yaml.safe_dump(value, default_flow_style=True)
    path.write_text(f"{SET_KEYS[rng.integers(len(SET_KEYS))]}={text}", errors="replace")
    if rng.random() < 0.2:
        damage(path, rng)


def read_sets(path: Path) -> None:
    from tespec.config import as_facts, finetuning_settings, pretraining_settings

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


# Checkpoints and weights.


def write_checkpoint(folder: Path) -> Path:
    import torch

    from tespec.training.checkpoint import save_checkpoint

    run = folder / "run"
    rest = {"run": "a", "loop": {"step": 3, "state": (torch.ones(3), None)}, "curve": {"curve": [{"step": 1.0}]}}
    save_checkpoint(run, 3, {"weight": torch.ones(4, 5)}, rest)
    return run


def read_checkpoint(run: Path) -> None:
    from tespec.training.checkpoint import latest_checkpoint, newest_whole, require_same_run

    weights, rest, torn = latest_checkpoint(run)
    assert bool(torn) == (newest_whole(run) is None)
    if torn:
        raise UserError(run, "torn", "go on from another")
    assert weights["weight"].shape == (4, 5)
    require_same_run(rest, "a", run)


def write_safetensors(folder: Path) -> Path:
    import torch

    from tespec.models import EventSwin
    from tespec.weights.files import write_weights

    torch.manual_seed(0)
    recipe = {"bins": 1, "in_channels": 2, "sensor": [32, 32], "width": "micro", "recurrent": False}
    network = EventSwin("micro", recurrent=False, bins=1, img_size=(32, 32))
    write_weights(folder / "a.safetensors", network.state_dict(), recipe)
    return folder / "a.safetensors"


def write_torch_file(folder: Path) -> Path:
    import torch
    from safetensors.torch import load_file

    torch.save({"state_dict": load_file(write_safetensors(folder))}, folder / "a.pth")
    (folder / "a.safetensors").unlink()
    return folder / "a.pth"


def harm_torch_file(path: Path, rng: Rng) -> None:
    if rng.random() < 0.2:
        import pickle

        class Bomb:
            def __reduce__(self) -> Any:
                return Path.mkdir, (path.parent / MARKER,)

        content = {"state_dict": {"a": Bomb()}}
        if rng.random() < 0.5:
            path.write_bytes(pickle.dumps(content, int(rng.integers(0, 5))))
        else:
            import torch

            torch.save(content, path)
    if rng.random() < 0.8:
        damage(path, rng)


def read_weights_file(path: Path) -> None:
    from tespec.weights.convert.recognise import convert
    from tespec.weights.files import read_weights

    tensors, _ = read_weights(path)
    convert(tensors, 2, where=path)


# Archives.


def write_zip(folder: Path) -> Path:
    with zipfile.ZipFile(folder / "a.zip", "w") as archive:
        for name in ("data/a.txt", "data/b.txt"):
            archive.writestr(name, "x" * 200, compress_type=zipfile.ZIP_DEFLATED)
    return folder / "a.zip"


def write_tar(folder: Path) -> Path:
    with tarfile.open(folder / "a.tar", "w") as archive:
        for name in ("data/a.txt", "data/b.txt"):
            member = tarfile.TarInfo(name)
            member.size = 200
            archive.addfile(member, io.BytesIO(b"x" * 200))
    return folder / "a.tar"


NAMES = (
    "../out.txt",
    "/tmp/out-of-archive.txt",
    "a/../../out.txt",
    "c:\\x",
    "a\x00b",
    "",
    ".",
    "x" * 5000,
    "data/a.txt",
)


def harm_archive(path: Path, rng: Rng) -> None:
    name = NAMES[rng.integers(len(NAMES))]
    kind = rng.integers(6)
    if kind == 0 and path.suffix == ".zip":
        with zipfile.ZipFile(path, "a") as archive:
            archive.writestr(zipfile.ZipInfo(name or "e"), "y" * int(rng.integers(0, 3000)))
    elif kind in (0, 1) and path.suffix == ".tar":
        with tarfile.open(path, "a") as archive:
            member = tarfile.TarInfo(name)
            member.type = [tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE][
                rng.integers(5)
            ]
            member.linkname = NAMES[rng.integers(len(NAMES))]
            archive.addfile(member)
    elif kind == 1:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("bomb", b"\0" * 3_000_000)
    else:
        damage(path, rng)


def read_archive_file(path: Path) -> None:
    from tespec.datasets.care.extract import extract

    extract(path, path.parent / "extracted")
    places = (path.parent, path.parent.parent, Path("/tmp"))
    outside = [place / name for place in places for name in ("out.txt", "out-of-archive.txt")]
    assert not any(each.exists() for each in outside), "escaped"


# Images and descriptions of data.


def write_images(folder: Path) -> Path:
    for name in ("cats", "dogs"):
        (folder / "images" / name).mkdir(parents=True)
        for number in range(2):
            pixels = np.random.default_rng(number).integers(0, 255, (16, 16, 3), np.uint8)
            ending = ("png", "jpg")[number]
            Image.fromarray(pixels).save(folder / "images" / name / f"{number}.{ending}")
    return folder / "images"


def read_images(folder: Path) -> None:
    from tespec.datasets.images import ViewRule, held_out_batch, open_images

    images = open_images(folder)
    paths = [*images.train, *images.held_out]
    held_out_batch(images, paths, ViewRule(size=(16, 16), channels=1, scale=(0.5, 1.0), jitter=0.0, count=1))


def write_description(folder: Path) -> Path:
    content = {"sample": True, "height": 260, "width": 346, "splits": {"train": ["dir0"], "test": ["dir1"]}}
    (folder / "world").mkdir()
    (folder / "world" / "dataset.json").write_text(json.dumps(content))
    return folder / "world"


def read_world(folder: Path) -> None:
    from tespec.datasets.description import read_description

    read_description(folder)


TARGETS: dict[str, Target] = {
    kind: Target(write, READERS.get(kind, lambda path: check_whole(_open(path))), bytes_of_one)
    for kind, write in WRITERS.items()
}


def _open(path: Path) -> Any:
    from tespec.events import open_events

    return open_events(path)


TARGETS |= {
    "records": Target(write_records, read_all_records, structure(json.loads, json_text)),
    "references": Target(write_references, read_references, structure(yaml.safe_load, yaml_text)),
    "configs": Target(write_configs, read_configs, structure(yaml.safe_load, yaml_text)),
    "set": Target(write_sets, read_sets, harm_sets),
    "checkpoint": Target(write_checkpoint, read_checkpoint, bytes_of_one),
    "safetensors": Target(write_safetensors, read_weights_file, bytes_of_one),
    "pth": Target(write_torch_file, read_weights_file, harm_torch_file),
    "zip": Target(write_zip, read_archive_file, harm_archive),
    "tar": Target(write_tar, read_archive_file, harm_archive),
    "images": Target(write_images, read_images, bytes_of_one),
    "description": Target(write_description, read_world, structure(json.loads, json_text)),
}

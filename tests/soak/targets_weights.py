"""Checkpoints and weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from harm import HOSTILE, Rng, bytes_of_one, changed, damage
from target import MARKER, Target

from tespec.core.errors import UserError


def write_checkpoint(folder: Path) -> Path:
    import torch

    from tespec.training.checkpoint import save_checkpoint

    run = folder / "run"
    state = {"step": 3, "model": {"weight": torch.ones(4, 5)}, "state": (torch.ones(3), None)}
    save_checkpoint(run, 3, {"run": "a", "trainer": state, "curve": {"curve": [{"step": 1.0}]}})
    return run


def harm_checkpoint(run: Path, rng: Rng) -> None:
    """Damage the file."""
    (path,) = run.glob("step-*.pt")
    damage(path, rng)


def read_checkpoint(run: Path) -> None:
    from tespec.training.checkpoint import newest_whole, read_checkpoint

    path, damaged = newest_whole(run)
    if path is None:
        raise UserError(run, f"{damaged} damaged", "go on from another")
    read_checkpoint(path, "a")


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
    from tespec.weights.files import read_weights
    from tespec.weights.formats import convert

    tensors, _ = read_weights(path)
    convert(tensors, 2, where=path)


def harm_tensors(path: Path, rng: Rng) -> None:
    """Change names, shapes and dtypes of some tensors, or the recipe, in a file that stays whole."""
    import torch
    from safetensors import safe_open
    from safetensors.torch import save_file

    with safe_open(path, framework="pt") as file:
        recipe = json.loads(file.metadata()["tespec"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # no mapping
    for _ in range(int(rng.integers(1, 4))):
        if rng.random() < 0.5:
            recipe = changed(recipe, rng)
            continue
        name = sorted(tensors)[rng.integers(len(tensors))]
        tensor = tensors.pop(name)
        kind = rng.integers(5)
        if kind == 0:
            name = str(HOSTILE[rng.integers(len(HOSTILE))])[:40] + name
        elif kind == 1:
            tensor = tensor.reshape(-1)
        elif kind == 2:
            tensor = tensor.reshape([1] * int(rng.integers(0, 5)) + list(tensor.shape))
        elif kind == 3:
            dtypes = (torch.float16, torch.float64, torch.int64, torch.bool, torch.float8_e4m3fn, torch.complex64)
            tensor = tensor.to(dtypes[rng.integers(len(dtypes))])
        else:
            tensor = tensor[..., :0] if tensor.ndim else torch.empty(0)
        tensors[name] = tensor.contiguous()
    text = json.dumps(recipe).encode("utf-8", "replace").decode()
    save_file(tensors, path, metadata={"tespec": text} if rng.random() < 0.9 else None)


def read_whole_network(path: Path) -> None:
    from tespec.weights.export import inspect
    from tespec.weights.load import read_backbone

    refusals = []
    for read in (inspect, read_backbone):
        try:
            read(path)
        except UserError as error:
            refusals.append(error)
    if refusals:
        raise refusals[0]


def write_task_network(folder: Path) -> Path:
    import torch

    from tespec.core.config import as_facts, finetuning_settings
    from tespec.tasks import find_task
    from tespec.tasks.base import fresh_backbone
    from tespec.weights.files import write_weights

    torch.manual_seed(0)
    settings = finetuning_settings("gen1", "feedforward", "tiny")
    network = find_task(settings).network(settings, fresh_backbone(settings, (32, 32)))
    write_weights(folder / "a.safetensors", network.state_dict(), as_facts(settings) | {"sensor": [32, 32]})
    return folder / "a.safetensors"


def read_task_network(path: Path) -> None:
    from tespec.inference.load import load_trained

    load_trained(path)


WEIGHTS: dict[str, Target] = {
    "checkpoint": Target(write_checkpoint, read_checkpoint, harm_checkpoint),
    "safetensors": Target(write_safetensors, read_weights_file, bytes_of_one),
    "tensors": Target(write_safetensors, read_whole_network, harm_tensors, 0.1),
    "task network": Target(write_task_network, read_task_network, harm_tensors, 0.1),
    "pth": Target(write_torch_file, read_weights_file, harm_torch_file),
}

"""Dry runs: numbers by hand, by torch and by real steps, for the run that would start."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from tespec.cli.main import main
from tespec.core.config import finetuning_settings, pretraining_settings
from tespec.core.errors import UserError
from tespec.core.registry import register_methods
from tespec.pretraining.method import new_network, open_pretraining
from tespec.runs.cost import (
    ExecutionConfig,
    TrainingEstimate,
    estimate_cell,
    estimate_pretraining,
    known_gpus,
    memory_warning,
)
from tespec.runs.meta import META
from tespec.tasks import find_task
from tespec.tasks.base import fresh_backbone

CPU, SIZE = torch.device("cpu"), (64, 96)


class Small(nn.Module):
    """One matrix product and an activation."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 4)

    def loss(self, batch: dict[str, Tensor], state: None) -> tuple[dict[str, Tensor], None]:
        return {"loss": self.linear(batch["x"]).sigmoid().sum()}, None


def small(batch_size: int = 6) -> TrainingEstimate:
    optimisation = replace(finetuning_settings("ddd17", "recurrent", "sample").optimisation, steps=3600)
    settings: Any = SimpleNamespace(batch_size=batch_size, optimisation=optimisation)
    with META:
        model = Small()
    return TrainingEstimate(settings, model, SIZE, lambda lanes: {"x": torch.zeros(lanes, 8, device=META)})


def test_numbers_by_hand() -> None:
    cost = small().cost(ExecutionConfig(half=False))
    assert small().parameters == {"linear": 8 * 4 + 4}
    assert cost.flops == 2 * (2 * 6 * 8 * 4)  # forward, and the weights' gradient
    assert cost.kept == 4 * 6 * 4 + 4  # what the sigmoid gave, and the loss
    assert cost.fixed == 4 * 36 * 4  # weights, gradients, two moments
    (a100,) = (gpu for gpu in known_gpus() if "A100" in gpu.title)
    assert replace(cost, flops=10**12).hours(a100, 0.5) == pytest.approx(1 / (156 * 0.5))
    assert replace(cost, flops=10**12, config=ExecutionConfig()).hours(a100, 0.5) == pytest.approx(1 / (312 * 0.5))
    shared = small().cost(ExecutionConfig(gpus=2, half=False))
    assert (shared.flops, shared.kept) == (cost.flops / 2, 4 * 3 * 4 + 4)
    with pytest.raises(UserError, match=r"6 lanes do not divide evenly into 4 parts .* choose a multiple of 4"):
        small().cost(ExecutionConfig(gpus=2, accumulate=2))


def test_the_papers_pretraining_step() -> None:
    settings = pretraining_settings("tespec", "paper")
    estimate = estimate_pretraining(settings, (360, 640))
    assert estimate.parameters["backbone"] == 33_816_570
    single, half, fused, recomputing = (
        estimate.cost(ExecutionConfig(half=bool(half), fused=bool(fused), recompute=bool(recompute)))
        for half, fused, recompute in ((0, 0, 0), (1, 0, 0), (1, 1, 0), (1, 0, 1))
    )
    assert single.flops == half.flops == pytest.approx(20.8e12, rel=0.001)
    assert single.kept == pytest.approx(79.0e9, rel=0.002)
    assert 0.5 < half.kept / single.kept < 0.75
    assert fused.kept < 0.9 * half.kept
    assert 1.2 < recomputing.flops / half.flops < 4 / 3
    assert recomputing.memory < 0.5 * half.memory


def saved(model: nn.Module, batch: dict[str, Tensor]) -> int:
    """Bytes that a real step hands to autograd, without its weights."""
    storages: dict[int, Any] = {}

    def note(tensor: Tensor) -> Tensor:
        storages[tensor.untyped_storage()._cdata] = tensor.untyped_storage()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        model.loss(batch, None)  # type: ignore[operator]
    return sum(each.nbytes() for each in storages.values()) - sum(
        each.nbytes for each in model.parameters() if each.requires_grad
    )


@pytest.mark.parametrize(
    ("task", "arch", "network"),
    [("gen1", "recurrent", "swin"), ("ddd17", "recurrent", "swin"), ("mvsec", "feedforward", "resnet")],
)
def test_a_cell_on_meta_is_a_real_step(task: str, arch: str, network: str) -> None:
    changes = ["batch_size=2", *(["segments=3"] if arch == "recurrent" else [])]
    settings = finetuning_settings(task, arch, "sample", changes, network=network)
    kind: Any = find_task(settings)
    model = kind.network(settings, fresh_backbone(settings, SIZE)).train()
    batch = kind.blank_batch(settings, SIZE, 2, CPU)
    cost = estimate_cell(settings, SIZE).cost(ExecutionConfig(half=False, fused=False))
    assert cost.kept == pytest.approx(saved(model, batch), rel=0.03)
    with FlopCounterMode(display=False) as counter:
        model.loss(batch, None)[0]["loss"].backward()
    assert cost.flops == counter.get_total_flops() > 0


@pytest.mark.parametrize("recipe", ["tespec", "moby", "ecddp"])
def test_a_pretraining_on_meta_is_a_real_step(recipe: str) -> None:
    register_methods()
    settings = pretraining_settings(recipe, "sample", ["batch_size=4", *(["segments=3"] if recipe == "tespec" else [])])
    task = open_pretraining(settings, None, SIZE)
    cost = estimate_pretraining(settings, SIZE).cost(ExecutionConfig(half=False, fused=False))
    assert cost.kept == pytest.approx(saved(new_network(settings, task).train(), task.blank_batch(4, CPU)), rel=0.03)


def test_a_run_that_does_not_fit_names_the_options_with_which_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    estimate = estimate_cell(finetuning_settings("ddd17", "recurrent", "sample", ["batch_size=8"]), SIZE)
    plain, recomputing, halved = (
        estimate.cost(config).memory
        for config in (
            ExecutionConfig(),
            ExecutionConfig(recompute=True),
            ExecutionConfig(recompute=True, accumulate=2),
        )
    )
    assert plain > recomputing > halved
    remedies = ("", "give --recompute", "give --recompute --accumulate 2", "use more GPUs")
    for memory, remedy in zip((plain, recomputing, halved, 1000), remedies, strict=True):
        properties = SimpleNamespace(total_memory=memory)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device, found=properties: found)
        warning = memory_warning(estimate, ExecutionConfig(), torch.device("cuda", 0))
        assert warning.partition("; ")[2].startswith(remedy)
        assert bool(warning) == bool(remedy)


def test_a_step_that_looks_at_numbers_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Small, "loss", lambda self, batch, state: ({"loss": float(batch["x"].sum())}, None))
    with pytest.raises(UserError, match=r"Small: its step cannot be counted without data: .*let no shape depend"):
        small().cost(ExecutionConfig())


RUN = ["run", "--method", "scratch", "--task", "ddd17", "--arch", "feedforward"]
PRETRAIN = ["pretrain", "--method", "tespec"]
PLANNED = [
    (RUN, "sample (", "sample", "96 x 160 px"),
    ([*RUN, "--data", "sample", "--profile", "small"], "sample (", "small", "96 x 160 px"),
    ([*RUN, "--data", "mine"], "ddd17 (mine)", "paper", "200 x 346 px"),
    ([*RUN, "--profile", "paper"], "sizes of the official ddd17; a run is refused: ", "paper", "200 x 346 px"),
    ([*RUN, "--data", "mine", "--sensor", "640x480"], "ddd17 (mine)", "paper", "200 x 640 px"),
    ([*PRETRAIN, "--data", "drive.raw"], "drive (drive.raw)", "paper", "360 x 480 px"),
    ([*RUN, "--gpus", "2", "--accumulate", "2"], "sample (", "sample", "96 x 160 px"),
    (["pretrain", "--method", "moby", "--profile", "paper"], "sizes of the official objects", "paper", "224 x 224 px"),
]


@pytest.mark.parametrize(("arguments", "data", "profile", "size"), PLANNED)
def test_the_run_that_would_start_is_priced_and_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    arguments: list[str], data: str, profile: str, size: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TESPEC_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("TESPEC_DATA", raising=False)
    (tmp_path / "mine").mkdir()
    header = b"% evt 3.0\n% format EVT3;height=720;width=960\n% geometry 960x720\n% end\n"
    (tmp_path / "drive.raw").write_bytes(header + b"\0" * 64)
    assert main([*arguments, "--dry-run", "--results", "results", "--runs", "runs"]) == 0
    printed = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines() if line and line[0] in "dpi")
    assert printed["data"].startswith(data)
    assert printed["profile"] == profile
    assert printed["input"].startswith(size)
    assert {path.name for path in tmp_path.iterdir()} == {"mine", "drive.raw"}

"""Dry runs: estimates against numbers by hand, by torch and by real steps."""

import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from short_runs import setup_in
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from tespec.cli.main import main
from tespec.core.config import finetuning_settings, pretraining_settings
from tespec.core.errors import UserError
from tespec.pretraining.method import open_pretraining
from tespec.registry import register_methods
from tespec.runs.cost import (
    TrainingEstimate,
    estimate_training,
    evaluated_windows,
    input_size,
    measured_mfu,
)
from tespec.tasks import find_task
from tespec.tasks.base import random_backbone
from tespec.training.device import peak_throughput
from tespec.training.step_cost import META

CPU, SIZE = torch.device("cpu"), (64, 96)
PLAIN = setup_in(Path(), deterministic=True)  # without fused attention
FP32 = "optimisation.precision=fp32"


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 4)

    def loss(self, batch, state):
        return {"loss": self.linear(batch["x"]).sigmoid().sum()}, None


def small_estimate():
    optimisation = SimpleNamespace(precision="fp32", steps=10)
    settings = SimpleNamespace(
        name="small", batch_size=6, segments=1, kind="depth", optimisation=optimisation
    )
    with META:
        model = Small()
    return TrainingEstimate(
        settings, model, SIZE, lambda lanes: {"x": torch.zeros(lanes, 8, device=META)}
    )


def cost_of_small(gpus=1, **how):
    return small_estimate().cost(replace(PLAIN, **how), gpus)


def test_numbers_by_hand():
    cost = cost_of_small()
    assert cost.flops == 2 * (2 * 6 * 8 * 4)  # forward, and the weights' gradient
    assert cost.activations == 4 * 6 * 4 + 4  # the sigmoid's output, and the loss
    assert cost.fixed == 4 * 36 * 4  # weights, gradients, two moments
    assert cost.fixed + cost.activations + 4 * 6 * 8 <= cost.memory < 2 * cost.fixed
    shared = cost_of_small(gpus=2)
    assert (shared.flops, shared.activations) == (cost.flops / 2, 4 * 3 * 4 + 4)
    parts = cost_of_small(accumulate=2)
    # The second micro-batch is in memory with the first; gradients are kept for it, or in the
    # buffers of an all-reduce.
    assert (parts.flops, parts.memory) == (cost.flops, shared.memory + 4 * 3 * 8)
    assert (
        cost_of_small(2, accumulate=3).memory - cost_of_small(gpus=6).memory == 2 * 4 * 8 + 4 * 36
    )


def test_hours_are_those_of_all_steps_and_of_the_evaluation_at_the_measured_share():
    estimate = small_estimate()
    for gpus in (1, 2):
        cost = estimate.cost(PLAIN, gpus)
        assert (cost.forward, cost.flops) == (384 // gpus, 768 // gpus)
        hours = (10 * 768 + 30 / 6 * 384) / gpus / (0.04 * 494.7e12) / 3600
        assert estimate.hours(cost, "H100 SXM", windows=30) == pytest.approx(hours)


@pytest.mark.parametrize(
    ("gpu", "bf16", "fp32"),
    [
        ("NVIDIA H100 80GB HBM3", 989.4e12, 494.7e12),
        ("H100 SXM", 989.4e12, 494.7e12),
        ("NVIDIA H200", 989.4e12, 494.7e12),
        ("NVIDIA A100-SXM4-80GB", 312e12, 156e12),
        ("NVIDIA RTX 6000 Ada Generation", 364.25e12, 182.1e12),
        # Of the same names, but slower.
        ("NVIDIA H100 PCIe", 0, 0),
        ("NVIDIA H100 NVL", 0, 0),
        ("NVIDIA H200 NVL", 0, 0),
        ("NVIDIA A100 80GB PCIe", 0, 0),
        ("cpu", 0, 0),
    ],
)
def test_only_a_gpu_of_exactly_this_name_has_a_known_peak(gpu, bf16, fp32):
    assert [peak_throughput(gpu, precision) for precision in ("bf16", "fp16", "fp32")] == [
        bf16,
        bf16,
        fp32,
    ]


MEASURED = {
    "a": ("NVIDIA H100 80GB HBM3", "step", "ddd17, bf16", {"mfu": 0.31}),
    "b": ("NVIDIA H200", "step", "ddd17, bf16", {"mfu": 0.17}),
    "c": ("NVIDIA H200", "compiled", "ddd17, bf16", {"mfu": 0.23}),
    "d": ("NVIDIA H200", "step", "gen1, bf16", {"note": "does not fit in GPU memory"}),
}


@pytest.mark.parametrize(
    ("gpu", "task", "compiled", "share", "source"),
    [
        ("NVIDIA H200", "ddd17", False, 17, " (b.json: step, ddd17, bf16)"),
        ("NVIDIA H200", "ddd17", True, 23, " (c.json: compiled, ddd17, bf16)"),
        ("NVIDIA H100 80GB HBM3", "ddd17", False, 31, " (a.json: step, ddd17, bf16)"),
        ("NVIDIA H100 PCIe", "ddd17", False, 12, ""),
        ("NVIDIA H200", "gen1", False, 6, ""),
        ("cpu", "ddd17", False, 12, ""),
    ],
)
def test_a_dry_run_uses_the_share_measured_on_the_gpu_at_hand(
    tmp_path, monkeypatch, gpu, task, compiled, share, source
):
    (tmp_path / "gpu").mkdir()
    for name, (device, stage, case, facts) in MEASURED.items():
        rows = [{"stage": stage, "case": case, **facts}]
        content = {"environment": {"device": device}, "rows": rows}
        (tmp_path / "gpu" / f"{name}.json").write_text(json.dumps(content))
    monkeypatch.setattr("tespec.runs.cost.RESULTS", tmp_path)
    monkeypatch.setattr("tespec.runs.cost.describe", lambda device: gpu)
    settings = finetuning_settings(task, "recurrent", "sample", ["batch_size=2", "segments=1"])
    estimate = estimate_training(settings, SIZE)
    setup = replace(PLAIN, compiled=compiled)
    report = estimate.report("", setup)
    assert report.endswith(
        f" at {share} % of peak throughput{source}, without data loading and evaluation."
    )
    cost = estimate.cost(setup)
    hours = settings.optimisation.steps * cost.flops / (share / 100 * 312e12) / 3600
    assert f"  A100 80GB SXM      80 GB  {hours:,.1f} h\n" in report


def test_a_damaged_file_of_measurements_is_named(tmp_path, monkeypatch):
    (tmp_path / "gpu").mkdir()
    (tmp_path / "gpu" / "x.json").write_text("{")
    monkeypatch.setattr("tespec.runs.cost.RESULTS", tmp_path)
    with pytest.raises(UserError, match=r"x\.json: cannot be read .*; run make gpu again"):
        measured_mfu(finetuning_settings("ddd17", "recurrent", "sample"), compiled=False)


@pytest.mark.slow
@pytest.mark.parametrize("task", ["ddd17", "gen1", "mvsec"])
@pytest.mark.parametrize("arch", ["recurrent", "feedforward"])
def test_a_cell_of_profile_quick_takes_at_most_an_hour_of_an_h100(task, arch):
    settings = finetuning_settings(task, arch, "quick", frozen=True)
    assert settings.optimisation.steps >= 5000
    estimate = estimate_training(settings, input_size(settings, task))
    windows = evaluated_windows(settings)
    assert windows > 1000
    assert estimate.hours(estimate.cost(PLAIN), "H100 SXM", windows) < 1


def test_a_step_that_looks_at_numbers_is_refused_in_one_line(monkeypatch):
    monkeypatch.setattr(
        Small, "loss", lambda self, batch, state: ({"loss": float(batch["x"].sum())}, None)
    )
    with pytest.raises(
        UserError, match=r"Small: the cost of its step cannot be estimated .*; make tensor shapes"
    ):
        cost_of_small()


@pytest.mark.slow
def test_the_papers_pretraining_step():
    recipes = (pretraining_settings("tespec", "paper", changes) for changes in ([], [FP32]))
    half, single = (estimate_training(recipe, (360, 640)) for recipe in recipes)
    exact, unfused, fused = single.cost(PLAIN), half.cost(PLAIN), half.cost(setup_in(Path()))
    recomputing = half.cost(setup_in(Path(), recompute=True))
    assert exact.flops == unfused.flops == pytest.approx(20.8e12, rel=0.001)
    assert exact.activations == pytest.approx(79.0e9, rel=0.002)
    assert 0.5 < unfused.activations / exact.activations < 0.75
    assert fused.activations < 0.9 * unfused.activations
    assert 1.2 < recomputing.flops / fused.flops < 4 / 3
    assert recomputing.memory < 0.5 * fused.memory
    report = half.report("1mpx", setup_in(Path()))
    assert "parameters  33,816,570 backbone" in report
    hours = 400_000 * fused.flops / (0.1 * 989.4e12) / 3600
    assert f"  H100 SXM           80 GB  {hours:.1f} h\n" in report
    assert "RTX 6000 Ada       48 GB  63.7 h\n" in report
    small = (
        r"RTX 6000 Ada       48 GB  .* h; too small: use --recompute, --accumulate N, or more GPUs"
    )
    assert re.search(small, single.report("1mpx", setup_in(Path())))


def require_real_step(estimate, model, batch, rel=0.03):
    """Compare an estimate with a real step: FLOPs, and bytes saved for the backward pass."""
    cost, storages = estimate.cost(PLAIN), {}

    def note(tensor):
        storages[tensor.untyped_storage()._cdata] = tensor.untyped_storage()
        return tensor

    with (
        torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor),
        FlopCounterMode(display=False) as count,
    ):
        model.train().loss(batch, None)[0]["loss"].backward()
    weights = sum(each.nbytes for each in model.parameters() if each.requires_grad)
    assert cost.activations == pytest.approx(
        sum(each.nbytes() for each in storages.values()) - weights, rel=rel
    )
    assert cost.flops == pytest.approx(count.get_total_flops(), rel=0.005)


@pytest.mark.parametrize(
    ("task", "arch", "network", "changes", "frozen"),
    [
        ("gen1", "recurrent", "swin", ["segments=3"], False),
        ("mvsec", "feedforward", "resnet", [], False),
        ("ddd17", "recurrent", "swin", ["segments=3"], True),
    ],
)
def test_a_cell_on_meta_is_a_real_step(task, arch, network, changes, frozen):
    settings = finetuning_settings(
        task, arch, "sample", ["batch_size=2", FP32, *changes], network=network, frozen=frozen
    )
    kind = find_task(settings)
    model = kind.network(settings, random_backbone(settings, SIZE))
    if frozen:
        model.freeze_backbone()
    estimate = estimate_training(settings, SIZE)
    batch = kind.blank_batch(settings, SIZE, 2, CPU)
    # Features of a frozen backbone that no layer saves are in memory too.
    require_real_step(estimate, model, batch, rel=0.05 if frozen else 0.03)


@pytest.mark.parametrize(
    ("recipe", "changes"),
    [("tespec", ["segments=3"]), ("moby", []), pytest.param("ecddp", [], marks=pytest.mark.slow)],
)
def test_a_pretraining_on_meta_is_a_real_step(recipe, changes):
    register_methods()
    settings = pretraining_settings(recipe, "sample", ["batch_size=4", FP32, *changes])
    data = open_pretraining(settings, None, SIZE)
    require_real_step(
        estimate_training(settings, SIZE), data.method.from_data(data), data.blank_batch(4, CPU)
    )


RUN = ["run", "--method", "scratch", "--task", "ddd17", "--arch", "feedforward"]
PLANNED = [
    (RUN, "sample (", "sample", "96 x 160 px"),
    (["run", "--method", "tespec", "--task", "ddd17"], "sample (", "sample", "96 x 160 px"),
    # one label, pooled to one pixel
    ([*RUN, "--set", "batch_size=1"], "sample (", "sample", "96 x 160 px"),
    ([*RUN, "--data", "mine"], "ddd17 (mine)", "paper", "200 x 346 px"),
    (
        [*RUN, "--profile", "paper"],
        "sizes of the official ddd17; a run would be refused: ",
        "paper",
        "200 x 346 px",
    ),
    ([*RUN, "--data", "mine", "--sensor", "640x480"], "ddd17 (mine)", "paper", "200 x 640 px"),
    (
        ["pretrain", "--method", "tespec", "--data", "drive.raw"],
        "drive (drive.raw)",
        "paper",
        "360 x 480 px",
    ),
    ([*RUN, "--gpus", "2", "--accumulate", "2", "--freeze"], "sample (", "sample", "96 x 160 px"),
    (
        ["pretrain", "--method", "moby", "--profile", "paper"],
        "sizes of the official objects",
        "paper",
        "224 x 224 px",
    ),
]


def test_the_advice_of_a_dry_run_prices_its_own_pretraining(without_data, capsys):
    cell = "run --method tespec --task ddd17 --data sample --profile paper --backbone swin_micro"
    assert main([*cell.split(), "--set", "pretraining.batch_size=4", "--dry-run"]) == 0
    *_, advice = capsys.readouterr().out.splitlines()
    words = advice.removeprefix("First, tespec is pre-trained: see tespec ").removesuffix(".")
    assert main(words.split()) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert " data sample (" in printed
    assert " profile paper " in printed
    assert " px, 4 x 15 per step " in printed


@pytest.mark.parametrize(("arguments", "data", "profile", "size"), PLANNED)
def test_a_dry_run_prices_the_run_and_writes_nothing(
    tmp_path, without_data, capsys, arguments, data, profile, size
):
    (tmp_path / "mine").mkdir()
    header = b"% evt 3.0\n% format EVT3;height=720;width=960\n% geometry 960x720\n% end\n"
    (tmp_path / "drive.raw").write_bytes(header + b"\0" * 64)
    assert main([*arguments, "--dry-run", "--results", "results", "--runs", "runs"]) == 0
    lines = capsys.readouterr().out.splitlines()
    first = "First, tespec is pre-trained: see tespec pretrain --method tespec --profile"
    is_first = lines[-1] == f"{first} {profile} --data sample --dry-run."
    assert is_first == (arguments[:3] == ["run", "--method", "tespec"])
    printed = dict(line.split(maxsplit=1) for line in lines if line and line[0] in "dpi")
    assert printed["profile"] == profile
    assert (printed["data"][: len(data)], printed["input"][: len(size)]) == (data, size)
    assert {path.name for path in tmp_path.iterdir()} == {"mine", "drive.raw"}

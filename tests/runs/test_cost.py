"""What a training would take: figures known from elsewhere, and real steps beside those that are counted on `meta`."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from tespec.core.config import finetuning_settings, pretraining_settings
from tespec.core.errors import UserError
from tespec.core.registry import register_methods
from tespec.core.settings import Finetuning
from tespec.pretraining.objective import build_objective
from tespec.runs.cost import GPUS, Blueprint, Way, blueprint_of_cell, find_gpu, gpus, input_of, planned
from tespec.runs.meta import META, CastAsOnCuda, Counter, bytes_saved_for_backward, count_step
from tespec.tasks import find_task
from tespec.tasks.base import fresh_backbone

CPU = torch.device("cpu")


def cell(task: str, arch: str = "recurrent", profile: str = "paper", *changes: str, network: str = "swin") -> Blueprint:
    register_methods()
    return planned(finetuning_settings(task, arch, profile, changes, network=network), task)


def pretraining(recipe: str, *changes: str, profile: str = "paper") -> Blueprint:
    register_methods()
    settings = pretraining_settings(recipe, profile, changes)
    return planned(settings, settings.dataset)


def test_the_papers_pretraining_step() -> None:
    blueprint = pretraining("tespec")
    assert blueprint.size == (360, 640)
    assert blueprint.frames == 8 * 15
    assert blueprint.parameters["backbone"] == 33_816_570
    single, half = blueprint.cost(Way(half=False)), blueprint.cost(Way())
    assert single.flops / 1e12 == pytest.approx(20.8, abs=0.01)
    assert half.flops == single.flops
    assert single.kept / 1e9 == pytest.approx(79.0, abs=0.1)
    assert 0.5 < half.kept / single.kept < 0.75
    recomputing = blueprint.cost(Way(recompute=True))
    assert 1.2 < recomputing.flops / half.flops < 4 / 3
    assert recomputing.training < 0.5 * half.training


def test_a_feedforward_backbone_has_its_known_number_of_parameters() -> None:
    blueprint = cell("ddd17", "feedforward")
    assert blueprint.size == (200, 346)
    assert blueprint.parameters == {"backbone": 27_543_930, "head": 11_289_030}


def test_operations_are_those_that_torch_counts() -> None:
    blueprint = cell("ddd17", "recurrent", "sample")
    model, batch = blueprint.model.train(), blueprint.batch(2)
    with FlopCounterMode(display=False) as counter:
        losses, _ = model.loss(batch, None)
        losses["loss"].backward()
    assert count_step(model, batch, half=False).flops == counter.get_total_flops() > 0


SMALL = ["segments=3", "batch_size=4"]
REAL = {
    "detection": ("gen1", "recurrent", "swin"),
    "segmentation": ("ddd17", "recurrent", "swin"),
    "depth": ("mvsec", "recurrent", "swin"),
    "feedforward": ("dsec", "feedforward", "resnet"),
}


def saved(model: nn.Module, batch: dict[str, torch.Tensor]) -> int:
    """Bytes that a step keeps, without its weights."""
    weights = sum(each.nbytes for each in model.parameters())
    return bytes_saved_for_backward(lambda: model.loss(batch, None)) - weights


@pytest.mark.parametrize("name", sorted(REAL))
def test_a_cell_on_meta_keeps_what_a_real_step_keeps(name: str) -> None:
    task, arch, network = REAL[name]
    changes = [change for change in SMALL if arch == "recurrent" or change != "segments=3"]
    settings = finetuning_settings(task, arch, "sample", changes, network=network)
    size = (64, 96)
    kind = find_task(settings)
    model = kind.network(settings, fresh_backbone(settings, size)).train()
    real = saved(model, kind.blank_batch(settings, size, 2, CPU))
    blueprint = blueprint_of_cell(settings, size)
    counted = count_step(blueprint.model.train(), blueprint.batch(2), half=False)
    assert counted.kept == pytest.approx(real, rel=0.03)
    assert saved(blueprint.model, blueprint.batch(2)) == pytest.approx(real, rel=0.01)


@pytest.mark.parametrize("recipe", ["tespec", "moby", "imagenet", "ecddp", "ecdp", "cm3ae"])
def test_a_pretraining_on_meta_keeps_what_a_real_step_keeps(recipe: str) -> None:
    register_methods()
    settings = pretraining_settings(recipe, "sample", ["segments=3"] if recipe == "tespec" else [])
    size = (64, 96)
    task = build_objective(settings, None, size)
    real = saved(task.network().train(), task.blank_batch(4, CPU))
    with META:
        model = task.network().train()
    assert saved(model, task.blank_batch(4, META)) == pytest.approx(real, rel=0.01)


def test_memory_grows_evenly_with_the_batch() -> None:
    """So that what a small batch keeps on a CPU says what a large one keeps on a GPU."""
    settings = finetuning_settings("ddd17", "recurrent", "sample", SMALL)
    size = (64, 96)
    kind = find_task(settings)
    model = kind.network(settings, fresh_backbone(settings, size)).train()
    one, two = (saved(model, kind.blank_batch(settings, size, lanes, CPU)) for lanes in (1, 2))
    blueprint = blueprint_of_cell(replace(settings, batch_size=32), size)
    extrapolated = one + 31 * (two - one)
    assert blueprint.cost(Way(half=False)).kept == pytest.approx(extrapolated, rel=0.03)


def test_a_counter_follows_storages_as_they_come_and_go() -> None:
    first = torch.zeros(1000, device=META)
    with Counter([first]) as counter:
        second = first + 1
        view = second[:10]
        assert counter.alive == 8000
        del second
        assert counter.alive == 8000
        del view
        assert counter.alive == 4000
    assert (counter.peak, counter.flops) == (8000, 0)


def test_casts_are_those_of_autocast_on_cuda() -> None:
    with META:
        linear, norm = nn.Linear(8, 8), nn.LayerNorm(8)
        values = torch.zeros(4, 8)
    kinds = {}

    def run(values: torch.Tensor) -> torch.Tensor:
        kinds["linear"] = (first := linear(values)).dtype
        kinds["norm"] = (second := norm(first)).dtype
        kinds["relu"] = first.relu().dtype
        kinds["softmax"] = (share := first.softmax(-1)).dtype
        kinds["product"] = (third := share @ share.T).dtype
        kinds["sum"] = third.sum().dtype
        return second.sum() + third.sum()

    half, single = torch.bfloat16, torch.float32
    with CastAsOnCuda():
        run(values)
        assert set(kinds.values()) == {single}
        with torch.autocast("cpu", dtype=half):
            checkpoint(run, values, use_reentrant=False)
    expected = {"linear": half, "norm": single, "relu": half, "softmax": single, "product": half, "sum": single}
    assert kinds == expected


def test_losses_stay_in_fp32_on_meta_too() -> None:
    from tespec.models.layers import in_fp32

    product = in_fp32(torch.matmul)
    with CastAsOnCuda(), torch.autocast("cpu", dtype=torch.bfloat16):
        values = torch.zeros(4, 4, device=META)
        assert (values @ values).dtype == torch.bfloat16
        assert product(values, values).dtype == torch.float32


def test_parts_of_a_batch_take_less() -> None:
    blueprint = cell("ddd17", "recurrent", "sample", "batch_size=8")
    one, eight, four = (blueprint.cost(way) for way in (Way(), Way(gpus=8), Way(accumulate=4)))
    assert one.flops == pytest.approx(8 * eight.flops, rel=0.01)
    assert one.kept == pytest.approx(8 * eight.kept, rel=0.05)
    assert four.flops == pytest.approx(one.flops, rel=0.01)
    assert four.training < one.training
    with pytest.raises(UserError, match="8 lanes do not divide evenly among 3 GPUs; choose a multiple of 3"):
        blueprint.cost(Way(gpus=3))


def test_what_does_not_fit_names_the_switch_that_makes_it_fit() -> None:
    blueprint = cell("ddd17", "recurrent", "sample", "batch_size=8")
    plain, recomputing = blueprint.cost(Way()), blueprint.cost(Way(recompute=True))
    gpu = find_gpu("h100")
    holds = {
        "": plain.memory,
        "--recompute": recomputing.memory,
        "--accumulate 2": blueprint.cost(Way(accumulate=2)).memory,
    }
    for switches, memory in holds.items():
        found = blueprint.fitting(replace(gpu, memory=memory))
        assert found is not None
        assert found.memory <= memory
        if switches in ("", "--recompute"):
            assert found.way.switches == switches
    assert blueprint.fitting(replace(gpu, memory=1000.0)) is None


def test_hours_follow_from_operations_and_a_share_of_the_peak() -> None:
    cost = replace(cell("ddd17", "feedforward", "sample").cost(Way()), flops=10**12, steps=3600)
    assert cost.hours(find_gpu("a100"), 0.5) == pytest.approx(1 / (312 * 0.5))
    single = replace(cost, way=Way(half=False))
    assert single.hours(find_gpu("a100"), 0.5) == pytest.approx(1 / (156 * 0.5))


def test_equal_networks_and_batches_are_counted_once() -> None:
    first, second = (cell("ddd17", "recurrent", "sample", f"optimisation.steps={steps}") for steps in (300, 600))
    assert first.model is second.model
    assert [each.cost(Way()).steps for each in (first, second)] == [300, 600]
    assert cell("ddd17", "recurrent", "sample", "segments=2").model is not first.model


def test_every_gpu_states_where_its_figures_are_from() -> None:
    assert {"rtx6000", "a100", "h100", "h200"} <= set(gpus())
    for gpu in gpus().values():
        assert "datasheet" in gpu.source
        assert gpu.tflops["bf16"] > gpu.tflops["tf32"] > gpu.tflops["fp32"] > 0
        assert 1e10 < gpu.memory < 1e12


def test_mistakes_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    with pytest.raises(UserError, match="--gpu h10: unknown GPU; did you mean 'h100'"):
        find_gpu("h10")
    settings = finetuning_settings("ddd17", "recurrent", "paper")
    with pytest.raises(UserError, match=r"data set mine: is not at hand.*give --sensor WIDTHxHEIGHT, or --data"):
        input_of(settings, "mine")
    assert input_of(replace(settings, sensor_px="640x480"), "mine").size == (200, 640)
    broken = tmp_path / "gpus.yaml"
    broken.write_text("h100: {title: H100}")
    monkeypatch.setattr("tespec.runs.cost.GPUS", broken)
    with pytest.raises(UserError, match="does not describe GPUs"):
        gpus()
    assert GPUS.is_file()


class Curious(nn.Module):
    """A network whose step looks at a number on the device."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))

    def loss(self, batch: dict[str, torch.Tensor], state: None) -> tuple[dict[str, torch.Tensor], None]:
        return {"loss": self.weight * float(batch["histograms"].sum())}, None


def test_a_step_that_looks_at_numbers_is_refused_in_one_line() -> None:
    settings: Finetuning = finetuning_settings("ddd17", "recurrent", "sample")
    with META:
        curious = Curious()
    blueprint = Blueprint(settings, curious, (64, 96), lambda lanes: {"histograms": torch.zeros(lanes, device=META)}, 0)
    with pytest.raises(UserError, match=r"Curious: its step cannot be counted without data: .*let no shape depend"):
        blueprint.cost(Way())

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
from tespec.models.execution import Execution, execute
from tespec.pretraining.objective import build_objective
from tespec.runs.cost import (
    GPUS,
    Blueprint,
    Evaluated,
    Played,
    Way,
    blueprint_of_cell,
    find_gpu,
    gpus,
    input_of,
    known_evaluation,
    planned,
)
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
    single, half = blueprint.cost(Way(half=False, fused=False)), blueprint.cost(Way(fused=False))
    assert single.flops / 1e12 == pytest.approx(20.8, abs=0.01)
    assert half.flops == single.flops
    assert single.kept / 1e9 == pytest.approx(79.0, abs=0.1)
    assert 0.5 < half.kept / single.kept < 0.75
    recomputing = blueprint.cost(Way(recompute=True, fused=False))
    assert 1.2 < recomputing.flops / half.flops < 4 / 3
    assert recomputing.training < 0.5 * half.training
    fused = blueprint.cost(Way())
    assert fused.kept < 0.9 * half.kept
    assert fused.memory < half.memory
    assert fused.flops == pytest.approx(half.flops, rel=0.05)


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


def without_tables(model: nn.Module) -> None:
    """Train the network without its position biases."""
    for name, parameter in model.named_parameters():
        if name.endswith("position_bias_table"):
            parameter.requires_grad_(False)


@pytest.mark.parametrize("name", ["segmentation", "detection"])
def test_fused_attention_on_meta_keeps_what_it_keeps_in_a_real_step(name: str) -> None:
    """A CPU has another kernel than a GPU: it gives a mask no gradient, and does not pad it to whole eights."""
    task, arch, network = REAL[name]
    settings = finetuning_settings(task, arch, "sample", SMALL, network=network)
    size = (64, 96)
    kind = find_task(settings)
    model = kind.network(settings, fresh_backbone(settings, size)).train()
    batch = kind.blank_batch(settings, size, 2, CPU)
    without_tables(model)
    plain = saved(model, batch)
    execute(model, Execution(fused_attention=True))
    real = saved(model, batch)
    blueprint = blueprint_of_cell(replace(settings, batch_size=2), size)
    without_tables(blueprint.model)
    assert real < 0.97 * plain
    assert blueprint.cost(Way(half=False)).kept == pytest.approx(real, rel=0.05)
    assert blueprint.cost(Way(half=False, fused=False)).kept == pytest.approx(plain, rel=0.03)


def test_the_hours_of_an_evaluation_are_those_of_its_windows_and_labels() -> None:
    settings = finetuning_settings("gen1", "recurrent", "sample", ["evaluation_lanes=2", *SMALL])
    size = (64, 96)
    blueprint, kind = blueprint_of_cell(settings, size), find_task(settings)
    batch = kind.blank_batch(settings, size, 2, CPU)
    model = kind.network(settings, fresh_backbone(settings, size)).eval()
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        _, state = model.backbone(batch["histograms"])
        before = counter.get_total_flops()
        model.predict(batch["histograms"], state, batch["label_place"])
    labels, gpu = len(batch["label_place"]), find_gpu("h100")
    for way in (Way(fused=False), Way(gpus=2, fused=False)):
        hours = blueprint.evaluation_hours(Evaluated(6, labels, ""), way, gpu, 0.5)
        counted = hours * 3600 * gpu.peak(True) * 0.5 * way.gpus
        assert counted == pytest.approx(counter.get_total_flops() - before, rel=0.01)


def test_what_an_evaluation_plays_is_known_of_the_large_archives() -> None:
    def played(task: str, arch: str, *changes: str) -> Evaluated | None:
        return known_evaluation(finetuning_settings(task, arch, "paper", changes), task)

    whole = played("gen1", "recurrent")
    assert whole is not None
    assert whole.windows == 470 * 1179 == pytest.approx(560_000, rel=0.02)
    alone = played("gen1", "feedforward")
    assert alone is not None
    assert alone.windows == alone.labels == whole.labels
    clips = played("gen1", "recurrent", "sampling=clips")
    assert clips is not None
    assert clips.windows == 21 * whole.labels
    assert played("gen1", "recurrent", "window_ms=25") is None
    assert played("ddd17", "recurrent") is None


@pytest.mark.parametrize("recipe", ["tespec", "moby", "imagenet", "ecddp", "ecdp", "mem", "cm3ae"])
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
    assert blueprint.cost(Way(half=False, fused=False)).kept == pytest.approx(extrapolated, rel=0.03)


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
    blank = {"histograms": torch.zeros(4, device=META)}
    blueprint = Blueprint(settings, curious, (64, 96), lambda lanes: blank, lambda: Played(0))
    with pytest.raises(UserError, match=r"Curious: its step cannot be counted without data: .*let no shape depend"):
        blueprint.cost(Way())

"""Optimizer, schedules, weight decay and clipping match the publications of the recipes."""

import dataclasses
import math

import pytest
import torch
from loss_cases import CASES, ecdp
from torch import nn

from tespec.core.config import finetuning_settings, pretraining_settings
from tespec.core.errors import UserError
from tespec.core.settings import Decay, GradientClipping
from tespec.registry import pretrained_methods
from tespec.training.optimizer import build_optimizer, learning_rate, parameter_groups, weight_decay
from tespec.training.trainer import Trainer

NORMS = (nn.LayerNorm, nn.BatchNorm1d, nn.BatchNorm2d)
ECDDP = pretraining_settings("ecddp", "paper").optimisation
PAPER = finetuning_settings("ddd17", "recurrent", "paper").optimisation

# Values that the publication of each recipe trains with; the recipe's comments, and for scaleevent
# the table "Fidelity" of docs/pretraining.md, name the files of the authors' code. Of tespec: the
# paper's appendix, table of implementation settings; values that it omits are from uzh-rpg/RVT,
# config/general.yaml. Factors of a rate are batch / 256 or / 512.
PUBLISHED = {
    # optimizer, batch, peak, first and last learning rate, warm-up as a scale, clip, decay, drop
    # path, patch embedding
    "moby": ("AdamW", 512, 1e-3, 5e-7, 5e-6, 5 / 300, ("norm", 5.0), (0.05, 0.05), 0.2, 1.0),
    "imagenet": (
        "AdamW",
        1024,
        2 * 5e-4,
        2 * 5e-7,
        2 * 5e-6,
        20 / 300,
        ("norm", 5.0),
        (0.05, 0.05),
        0.2,
        1.0,
    ),
    "ecddp": ("AdamW", 1024, 4 * 5e-4, 1e-6, 1e-6, 10 / 300, ("norm", 3.0), (0.04, 0.4), 0.0, 0.2),
    "ecdp": ("AdamW", 1024, 4 * 1.5e-4, 0.0, 0.0, 40 / 300, ("none", None), (0.03, 0.03), 0.0, 1.0),
    "mem": ("AdamW", 512, 7.5e-5, 0.0, 1e-5, 1000 / 750_600, ("norm", 1.0), (0.05, 0.05), 0.1, 1.0),
    "mem-tokenizer": (
        "Adam",
        384,
        5e-4,
        5e-4,
        5e-4 * 0.999**100,
        0.0,
        ("norm", 0.01),
        (0.0, 0.0),
        0.0,
        1.0,
    ),
    "cm3ae": (
        "AdamW",
        512,
        2 * 2e-4,
        0.0,
        1e-6,
        10 / 200,
        ("parameter", 3.0),
        (0.04, 0.4),
        0.0,
        1.0,
    ),
    "scaleevent": ("AdamW", 80, 5e-4, 2e-5, 5e-7, 0.05, ("norm", 0.1), (1e-4, 1e-4), 0.0, 1.0),
    "tespec": (
        "Adam",
        8,
        2e-4,
        2e-4 / 25,
        2e-4 / 1000,
        2000 / 400_000,
        ("value", 1.0),
        (0.0, 0.0),
        0.0,
        1.0,
    ),
}


def test_every_recipe_is_held_against_its_publication():
    assert set(PUBLISHED) == set(pretrained_methods()) - {"cpc"}  # has no publication


@pytest.mark.parametrize("recipe", PUBLISHED)
def test_recipes_are_those_of_their_publications(recipe):
    settings = pretraining_settings(recipe, "paper")
    how = settings.optimisation
    optimizer, batch, peak, first, last, warmup, *others = PUBLISHED[recipe]
    assert (how.optimizer, settings.batch_size) == (optimizer, batch)
    assert learning_rate(how, 0) == pytest.approx(first, abs=1e-9)
    assert how.peak_lr == pytest.approx(peak)
    around = [
        learning_rate(how, step)
        for step in range(max(0, how.warmup_steps - 1), how.warmup_steps + 2)
    ]
    assert max(around) == pytest.approx(peak, rel=1e-3)
    assert learning_rate(how, how.steps - 1) == pytest.approx(last, rel=1e-3, abs=1e-9)
    # mem/optim_factory.py; torch's default
    assert how.betas == ((0.9, 0.95) if recipe == "mem" else (0.9, 0.999))
    assert (
        build_optimizer(nn.Linear(2, 2), dataclasses.replace(how, patch_embed_lr=1.0)).defaults[
            "betas"
        ]
        == how.betas
    )
    assert how.warmup_steps / how.steps == pytest.approx(warmup, rel=0.01)
    clipped, decay = (how.clip.by, how.clip.at), (how.weight_decay.start, how.weight_decay.end)
    assert [clipped, decay, settings.drop_path, how.patch_embed_lr] == others


@pytest.mark.parametrize(
    "recipe", ["moby", "imagenet", "ecddp", "mem", "mem-tokenizer", "ecdp", "cm3ae"]
)
def test_weight_decay_spares_what_the_publication_spares(recipe):
    model, _ = CASES[recipe]()
    of = {parameter: name for name, parameter in model.named_parameters()}
    trained = {name for parameter, name in of.items() if parameter.requires_grad}
    groups = parameter_groups(model, pretraining_settings(recipe, "paper").optimisation)
    assert sorted(of[weight] for group in groups for weight in group["params"]) == sorted(trained)
    exempt = {of[weight] for group in groups if not group["decays"] for weight in group["params"]}
    slow = {
        of[weight]: group["lr_share"]
        for group in groups
        if group["lr_share"] != 1
        for weight in group["params"]
    }
    tables = {name for name in trained if "relative_position_bias_table" in name}
    assert bool(tables) == (recipe != "mem-tokenizer")
    modules = dict(model.named_modules())
    of_norms = {name for name in trained if isinstance(modules[name.rpartition(".")[0]], NORMS)}
    # The tokenizer has no decay, and ECDP exempts nothing from it.
    exempts = recipe not in ("mem-tokenizer", "ecdp")
    vectors = of_norms | {name for name in trained if name.endswith(".bias")} if exempts else set()
    if recipe == "ecddp":  # trainer/pretrain_trainer.py, params_groups
        vectors -= slow.keys()
    assert exempt == vectors | {"imagenet": tables, "cm3ae": {"fusion.scale"}}.get(recipe, set())
    assert slow == {name: 0.2 for name in trained if recipe == "ecddp" and "patch_embed" in name}
    if recipe == "ecddp":
        assert {
            f"student.{head}.directions" for head in ("patches", "contexts", "images")
        } <= trained - exempt


class Linear(nn.Module):
    """Model of two linear layers with the given gradients."""

    def __init__(self, gradients):
        super().__init__()
        self.patch_embed = nn.Linear(2, 2)
        self.linear = nn.Linear(2, 2)
        self.gradients = gradients

    def loss(self, batch, state):
        total = sum(
            (parameter * gradient).sum()
            for parameter, gradient in zip(self.parameters(), self.gradients, strict=True)
        )
        return {"loss": total}, None


def loop_of(gradients, **changes):
    torch.manual_seed(0)
    how = dataclasses.replace(ECDDP, steps=10, **changes)
    return Trainer(Linear(gradients), [{}], how, seed=0, device=torch.device("cpu"))


GRADIENTS = [
    torch.full((2, 2), 3.0),
    torch.full((2,), -0.5),
    torch.full((2, 2), 0.25),
    torch.zeros(2),
]
NORM = torch.cat([gradient.flatten() for gradient in GRADIENTS]).norm()


@pytest.mark.parametrize(
    ("rule", "clipped"),
    [
        (GradientClipping("norm", 2.0), [gradient * 2.0 / NORM for gradient in GRADIENTS]),
        (GradientClipping("norm", 1e3), GRADIENTS),
        (
            GradientClipping("parameter", 2.0),
            [g * min(1.0, 2.0 / max(g.norm().item(), 1e-9)) for g in GRADIENTS],
        ),
        (GradientClipping("value", 1.0), [gradient.clamp(-1, 1) for gradient in GRADIENTS]),
        (GradientClipping("none", None), GRADIENTS),
    ],
    ids=str,
)
def test_what_reaches_the_optimizer_is_clipped(rule, clipped):
    loop = loop_of(GRADIENTS, clip=rule)
    clipped_gradients = []
    loop.optimizer.register_step_pre_hook(
        lambda *_: clipped_gradients.extend(p.grad.clone() for p in loop.model.parameters())
    )
    loop.train_step({})
    torch.testing.assert_close(clipped_gradients, clipped)


def test_a_step_takes_each_parameters_own_rate_and_decay():
    """With zero gradients, AdamW only decays: w (1 - lr * decay)."""
    loop = loop_of(
        [torch.zeros_like(gradient) for gradient in GRADIENTS],
        weight_decay=Decay(0.1, 0.4, ("vectors",)),
    )
    loop.step = 4
    before = {name: weight.detach().clone() for name, weight in loop.model.named_parameters()}
    loop.train_step({})
    rate, decay = learning_rate(loop.settings, 4), weight_decay(loop.settings, 4)
    assert 0.1 < decay < 0.4
    for name, now in loop.model.named_parameters():
        scale = 0.2 if "patch_embed" in name else 1.0
        remaining = 1.0 if name.endswith("bias") else 1 - scale * rate * decay
        torch.testing.assert_close(now.detach(), before[name] * remaining)


def test_a_rate_for_a_patch_embedding_that_is_not_there_is_refused():
    with pytest.raises(
        UserError, match=r"patch_embed_lr: the network has no patch embedding; set it to 1"
    ):
        parameter_groups(ecdp("resnet_micro"), ECDDP)


@pytest.mark.parametrize("task", ["gen1", "1mpx"])
def test_detection_rates_are_those_of_torch_as_rvt_calls_it(task):
    """RVT: modules/detection.py. Torch's warm-up ends with the peak, here the peak follows it."""
    how = finetuning_settings(task, "recurrent", "paper").optimisation
    optimizer = torch.optim.Adam([torch.zeros(1, requires_grad=True)], lr=how.peak_lr)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer,
        max_lr=how.peak_lr,
        total_steps=how.steps,
        pct_start=(how.warmup_steps + 1) / how.steps,
        div_factor=how.start_divisor,
        final_div_factor=how.end_divisor / how.start_divisor,
        anneal_strategy="linear",
        cycle_momentum=False,
    )
    for step in (0, 1, 700, 1999, 2000, 2001, 60_000, 200_000, 399_998, 399_999):
        schedule.last_epoch = step - 1
        optimizer._opt_called = True
        schedule.step()
        assert learning_rate(how, step) == pytest.approx(schedule.get_last_lr()[0], rel=1e-9), step


@pytest.mark.parametrize(
    ("schedule", "quarter"), [("linear", 0.75), ("cosine", (1 + math.sqrt(0.5)) / 2)]
)
def test_rises_during_warmup_and_falls_afterwards(schedule, quarter):
    settings = dataclasses.replace(PAPER, schedule=schedule, steps=451, warmup_steps=50)
    rates = [learning_rate(settings, step) for step in range(settings.steps)]
    assert rates[:51] == sorted(rates[:51])
    assert rates[50:] == sorted(rates[50:], reverse=True)
    peak, end = settings.peak_lr, settings.peak_lr / 1000
    assert rates[250] == pytest.approx((peak + end) / 2)
    assert rates[150] == pytest.approx(end + (peak - end) * quarter)


def test_an_exponential_schedule_falls_by_the_same_factor_at_each_step():
    settings = dataclasses.replace(PAPER, schedule="exponential", steps=451, warmup_steps=50)
    rates = [learning_rate(settings, step) for step in range(50, settings.steps)]
    assert rates == pytest.approx([settings.peak_lr * 1000 ** (-step / 400) for step in range(401)])

"""ECDP and ScaleEvent against values of the authors' functions (tests/data/published)."""

import pytest
import torch
from loss_cases import SIZE, backbone, own, pairs
from published_values import assert_gradient, assert_loss, published
from torch import nn

from baselines.ecdp import Ecdp
from baselines.scaleevent import ScaleEvent, distances
from tespec.pretraining.teacher import Teacher
from tespec.training.optimizer import learning_rate, weight_decay


def ecdp(values, **changes):
    """Build ECDP with given outputs of its heads and teacher, and weights of its linear layer."""
    width, features = values["in linear"].shape
    teacher = Teacher(backbone(channels=1, seed=1), 1, SIZE, global_features=True)
    model = Ecdp(own("ecdp", hidden=8, out=width, **changes), backbone(), teacher).eval()
    events, matched = (values[f"in {name}"].requires_grad_() for name in ("events", "matched"))
    outputs = {
        model.event_predictor: events,
        model.image_predictor: matched,
        model.momentum_head: values["in keys"],
    }
    for module, output in (outputs | {teacher: values["in features"]}).items():
        module.register_forward_hook(lambda *_, output=output: output)
    model.to_event[0] = nn.Linear(features, width, bias=False)
    model.to_event[0].weight.data.copy_(values["in linear"])
    return model, {"events": events, "matched": matched, "linear": model.to_event[0].weight}


REDUCED = {
    "event_temperature": 0.1,
    "event_contrast": 0.2,
    "temperature": 0.2,
    "contrast": 0.4,
    "alignment": 1.0,
}
LOSSES = {
    "pairs_ecdp_loss": {},
    "pairs_ecdp_loss_reduced": REDUCED,
    "pairs_ecdp_loss_two_gpus": {"alignment_group": 4},
}


@pytest.mark.parametrize(("name", "changes"), LOSSES.items())
def test_ecdp_loss_and_gradients(name, changes):
    values = published(name)
    model, trained = ecdp(values, **changes)
    losses, _ = model.loss(pairs(len(values["in events"])))
    weights = {
        "views": model.cfg.event_contrast,
        "contrast": model.cfg.contrast,
        "alignment": model.cfg.alignment,
    }
    for part, weight in weights.items():
        assert_loss(weight * losses[f"loss_{part}"], values[f"out {part}"])
    assert_loss(losses["loss"], values["out loss"])
    losses["loss"].backward()
    for part, tensor in trained.items():
        assert_gradient(tensor.grad, values[f"grad {part}"])


def test_ecdp_schedule():
    values, recipe = published("pairs_ecdp_schedule"), Ecdp.recipe.optimisation
    assert recipe.betas == tuple(values["out betas"].tolist())
    model, _ = ecdp(published("pairs_ecdp_loss_reduced"))
    for number, step in enumerate(values["in steps"].tolist()):
        rate = values["out learning_rate"][number].item()
        assert learning_rate(recipe, step) == pytest.approx(
            rate, rel=1e-5, abs=1e-5 * recipe.peak_lr
        )
        assert weight_decay(recipe, step) == values["out weight_decay"][number]
        momentum_parts = (model.momentum_backbone, model.momentum_head)
        for parameter in (*model.backbone.parameters(), *model.event_head.parameters()):
            parameter.data.zero_()
        for parameter in (parameter for part in momentum_parts for parameter in part.parameters()):
            parameter.data.fill_(1.0)
        model.after_step(step / recipe.steps)
        for part in momentum_parts:
            momentum = next(part.parameters()).mean().item()
            assert momentum == pytest.approx(values["out momentum"][number].item(), abs=1e-6)


@pytest.mark.parametrize(
    ("weights", "loss", "gradient"),
    [
        ((1.0, 10.0, 4.0), "out loss", "grad events"),
        ((1.0, 0.0, 0.0), "out naive", "grad events_naive"),
    ],
)
def test_scaleevent_loss_and_gradients(weights, loss, gradient):
    values, settings = published("pairs_scaleevent_loss"), ScaleEvent.recipe.objective
    if loss == "out loss":
        assert weights == (settings.plain_weight, settings.intra_weight, settings.cross_weight)
    events = values["in events"].requires_grad_()
    parts = distances(events, values["in images"], values["in active"], settings.alike)
    for part, name in zip(parts, ("plain", "intra", "cross"), strict=True):
        assert_loss(part, values[f"out {name}"])
    total = sum(weight * part for weight, part in zip(weights, parts, strict=True))
    assert_loss(total, values[loss])
    assert_gradient(torch.autograd.grad(total, events)[0], values[gradient])


def test_scaleevent_optimizer():
    """The learning rate differs, as declared: the encoder starts from random weights."""
    values, recipe = published("pairs_scaleevent_schedule"), ScaleEvent.recipe.optimisation
    assert recipe.betas == tuple(values["out betas"].tolist())
    assert (recipe.clip.by, recipe.clip.at) == ("norm", values["out max_norm"].item())
    epoch = recipe.steps // len(values["in epochs"])
    decays = [weight_decay(recipe, number * epoch) for number in values["in epochs"].tolist()]
    assert decays == values["out weight_decay"].tolist()

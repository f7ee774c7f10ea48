"""MoBY, ImageNet and TESPEC: losses, schedules and parameter groups of their authors' code."""

import random
import re

import numpy as np
import pytest
import torch
from loss_cases import backbone, own
from PIL import Image
from published_values import assert_gradient, assert_loss, published
from timm.optim import create_optimizer_v2
from timm.scheduler.cosine_lr import CosineLRScheduler
from torch import nn
from torch.nn.functional import normalize
from torchvision.transforms import v2

from baselines.imagenet import Imagenet
from baselines.moby import Moby, blurred
from tespec.core.config import pretraining_settings
from tespec.core.settings import Optimisation
from tespec.models import build_backbone
from tespec.pretraining.contrast import momentum_update
from tespec.training.optimizer import learning_rate, parameter_groups, weight_decay


class Pixels(nn.Module):
    """Backbone whose last stage is a linear map of each pixel, or with equal widths the pixels."""

    def __init__(self, width, out):
        super().__init__()
        self.linear = nn.Identity() if width == out else nn.Linear(width, out)
        self.channels = (out,)

    def forward(self, frames):
        return [self.linear(frames.movedim(2, -1)).movedim(-1, 2)], None


def moby(width, features, **settings):
    """MoBY in double precision on views of `width` channels, with the queues of the values."""
    model = Moby(own("moby", **settings), Pixels(width, features)).double()
    keys = torch.sin(torch.arange(model.queue.numel(), dtype=torch.float64)).view_as(model.queue)
    model.queue = normalize(keys, dim=-1)
    return model


def loss_of(model, views):
    """Loss for features or pixels `views` (2, N, channels)."""
    return model.loss({"views": views.transpose(0, 1)[..., None, None]})[0]["loss"]


def test_mobys_loss_at_its_default_settings():
    values, model = published("images_moby_loss"), moby(256, 256)
    for name in ("norm", "momentum_norm", "projector", "momentum_projector", "predictor"):
        setattr(model, name, nn.Identity())
    views = values["in features"].double().requires_grad_()
    loss = loss_of(model, views)
    assert_loss(loss, values["out loss"])
    assert_gradient(torch.autograd.grad(loss, views)[0], values["grad features"])
    torch.testing.assert_close(model.queue[:, :4].float(), values["out newest keys"])
    assert int(model.queue_ptr) == 4


def test_three_steps_of_mobys_networks_queues_and_momentum():
    values, model = published("images_moby_steps"), moby(10, 12, hidden=16, out=8, queue=8)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(values[f"in {name.removeprefix('momentum_')}"])
    trained = {
        name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad
    }
    for step, views in enumerate(values["in views"].unbind()):
        loss = loss_of(model, views.requires_grad_())
        assert_loss(loss, values["out losses"][step])
        gradients = torch.autograd.grad(loss, [views, *trained.values()])
        if step < 2:  # the optimizer's step, and what follows it
            with torch.no_grad():
                for parameter, gradient in zip(trained.values(), gradients[1:], strict=True):
                    parameter -= 0.5 * gradient
            model.after_step((step + 1) / 10)
    for name, gradient in zip(("views", *trained), gradients, strict=True):
        assert_gradient(gradient, values[f"grad {name}"])
    torch.testing.assert_close(model.queue, values["out queues"], rtol=1e-6, atol=1e-9)
    for name, parameter in model.named_parameters():
        if name.startswith("momentum"):
            expected = values[f"out {name.replace('momentum', 'slow', 1)}"]
            torch.testing.assert_close(parameter.detach(), expected, rtol=1e-6, atol=1e-9)
    queue = model.queue.clone()
    loss_of(model.eval(), views)
    assert torch.equal(model.queue, queue)


@pytest.mark.parametrize("method", ["moby", "imagenet"])
def test_rates_and_decays_at_ten_steps(method):
    values, how = published("images_schedules"), pretraining_settings(method, "paper").optimisation
    steps = values[f"in {method} steps"].tolist()
    rates = torch.tensor([learning_rate(how, step) for step in steps], dtype=torch.float64)
    torch.testing.assert_close(rates, values[f"out {method} lr"], rtol=1e-5, atol=0)
    assert {weight_decay(how, step) for step in steps} == {
        values[f"out {method} weight decay"][0].item()
    }
    assert how.steps == steps[-1] + 1


def test_mobys_momentum_at_ten_steps():
    """A key of step k comes from a network that moved k times, last by the momentum of k."""
    values = published("images_schedules")
    for step, momentum in zip(
        values["in moby steps"].tolist(), values["out moby momentum"].tolist(), strict=True
    ):
        slow, fast = (nn.Linear(1, 1, bias=False).double() for _ in range(2))
        nn.init.zeros_(slow.weight)
        nn.init.ones_(fast.weight)
        momentum_update(
            slow, fast, Moby.recipe.objective.momentum, step / Moby.recipe.optimisation.steps
        )
        assert 1 - slow.weight.item() == pytest.approx(momentum, rel=1e-9)


SMALL = {"peak_lr": 1e-3, "steps": 200, "warmup_steps": 20, "end_divisor": 1e3}


@pytest.mark.parametrize(("schedule", "start"), [("dino", 1e-5), ("moco", 1e-6)])
def test_schedules_of_dino_and_moco(schedule, start):
    values = published("images_schedules")
    how = Optimisation(schedule=f"cosine_{schedule}", start_divisor=1e-3 / start, **SMALL)
    rates = [learning_rate(how, step) for step in values["in small steps"].tolist()]
    assert rates == pytest.approx(values[f"out {schedule} lr"].tolist(), rel=1e-9)


@pytest.mark.parametrize(("schedule", "prefix"), [("cosine_swin", True), ("cosine_moby", False)])
@pytest.mark.parametrize("warmup", [0, 1, 20])
def test_every_rate_of_a_training_is_timms(schedule, prefix, warmup):
    how = Optimisation(schedule=schedule, start_divisor=100.0, **SMALL | {"warmup_steps": warmup})
    optimizer = create_optimizer_v2(nn.Linear(2, 2), "adamw", lr=1e-3)
    decay = 200 - warmup if prefix else 200
    scheduler = CosineLRScheduler(
        optimizer,
        decay,
        lr_min=1e-6,
        warmup_t=warmup,
        warmup_lr_init=1e-5,
        warmup_prefix=prefix,
        t_in_epochs=False,
    )
    for step in range(200):
        assert learning_rate(how, step) == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-9)
        scheduler.step_update(step)


def timm_name(name):
    """Translate the name of a parameter of Microsoft's Swin, the classifier or MoBY's heads."""
    name = name.removeprefix("encoder.")
    name = re.sub(
        r"layers\.(\d)\.downsample", lambda stage: f"layers.{int(stage[1]) + 1}.downsample", name
    )
    name = re.sub(r"^head", "classifier", name)
    for old, new in (("linear_hidden.1", "0"), ("linear_hidden.2", "1"), ("linear_out", "3")):
        name = name.replace(old, new)
    return f"backbone.swin.{name}" if name.startswith(("layers", "patch_embed")) else name


@pytest.mark.parametrize("method", ["moby", "imagenet"])
def test_the_same_parameters_decay(method):
    values, settings = published("images_groups"), pretraining_settings(method, "paper")
    with torch.device("meta"):
        swin = build_backbone("swin_tiny", False, 10, (224, 224), 3)
        model = Moby(own(method), swin) if method == "moby" else Imagenet(own(method), swin, 1000)
    of = {parameter: name for name, parameter in model.named_parameters()}
    for group in parameter_groups(model, settings.optimisation):
        which = "decays" if group["decays"] else "exempt"
        names = bytes(values[f"out {method} {which}"].tolist()).decode().split("\n")
        assert sorted(of[each] for each in group["params"]) == sorted(map(timm_name, names))


def test_stochastic_depth_rises_linearly_and_spares_mobys_momentum_encoder():
    """models/swin_transformer.py, dpr, and configs/moby_swin_tiny.yaml: rates 0 to 0.2 and 0."""
    settings = pretraining_settings("moby", "paper")
    with torch.device("meta"):
        model = Moby(
            own("moby"), build_backbone("swin_tiny", False, 10, (224, 224), 3, settings.drop_path)
        )
    for network, last in ((model.backbone, 0.2), (model.momentum_backbone, 0.0)):
        blocks = [block for stage in network.swin.layers for block in stage.blocks]
        rates = [
            [getattr(path, "drop_prob", 0.0) for path in (block.drop_path1, block.drop_path2)]
            for block in blocks
        ]
        wanted = torch.linspace(0, last, 12).repeat(2, 1).T
        torch.testing.assert_close(torch.tensor(rates), wanted)


def test_classification_losses_and_mixed_labels():
    values, model = (
        published("images_classification"),
        Imagenet(own("imagenet"), backbone(channels=1), 20),
    )
    model.norm = model.classifier = nn.Identity()
    labels, logits = values["in labels"], values["in logits"].requires_grad_()
    for name, training, wanted in (
        ("mixed", True, values["out shares"].double()),
        ("smoothed", True, labels),
        ("validation", False, labels),
    ):
        loss = model.train(training)._losses(logits[:, None, :, None, None], wanted)["loss"]
        assert_loss(loss, values[f"out {name}"])
        assert_gradient(torch.autograd.grad(loss, logits)[0], values[f"grad {name}"])


def test_labels_are_mixed_as_published(monkeypatch):
    """Theirs mixes the first image with the last and so on, ours neighbours, as sorted here."""
    values, model = (
        published("images_classification"),
        Imagenet(own("imagenet"), backbone(channels=1), 20),
    )
    monkeypatch.setattr("timm.data.Mixup._params_per_batch", lambda self: (0.3, False))
    order = [0, 5, 1, 4, 2, 3]
    _, shares = model.mix(torch.zeros(6, 1, 8, 8), values["in labels"][order])
    torch.testing.assert_close(shares, values["out shares"])  # sorted back by `_mixed`


def test_the_classifier_starts_as_published():
    """models/swin_transformer.py, _init_weights: a standard deviation of 0.02, no bias."""
    model = Imagenet(own("imagenet"), backbone(channels=1), 1000)
    assert model.classifier.weight.std().item() == pytest.approx(0.02, rel=0.01)
    assert not model.classifier.bias.any()


def test_mobys_views_are_blurred_and_solarised_as_published(monkeypatch):
    values = published("images_moby_views")
    image = Image.fromarray(values["in image"].numpy())
    for sigma, wanted in zip(values["in sigma"].tolist(), values["out blurred"], strict=True):
        monkeypatch.setattr(
            random,
            "uniform",
            lambda low, high, sigma=sigma: sigma if (low, high) == (0.1, 2.0) else 0,
        )
        # Roundings differ between versions of Pillow.
        np.testing.assert_allclose(np.asarray(blurred(image), np.int16), wanted.short(), atol=1)
    view = Moby.views(own("moby"))[1]
    (solarise,) = (each for each in view.transforms if isinstance(each, v2.RandomSolarize))
    monkeypatch.setattr(solarise, "p", 1.0)
    assert np.array_equal(np.asarray(solarise(image)), values["out solarised"].numpy())

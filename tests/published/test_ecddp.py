"""ECDDP against values of the authors' functions, from its losses to its evaluation."""

import pytest
import torch
from loss_cases import ecddp
from published_values import Recorded, assert_gradient, assert_loss, published
from torch import nn

from baselines import ecddp as ecddp_file
from baselines.ecddp import Ecddp
from tespec.core.config import pretraining_settings
from tespec.models import build_backbone
from tespec.pretraining.contrast import PrototypeHead
from tespec.pretraining.dense import AttentionPool
from tespec.pretraining.masking import block_mask
from tespec.pretraining.method import method_settings
from tespec.pretraining.views import crop_and_resize
from tespec.tasks import segmentation
from tespec.tasks.segmentation import TTA_SCALES, SegmentationTTA
from tespec.training.optimizer import learning_rate, parameter_groups, weight_decay

HEADS = ("patches", "contexts", "images")
POOLS = ("pool_context", "pool_image")
RECIPE = pretraining_settings("ecddp", "paper")


def noise(number, shape):
    """Reproducible values from -0.3 to 0.3."""
    count = torch.arange(torch.Size(shape).numel(), dtype=torch.float64) + 1000 * number
    return (0.3 * ((count * 12.9898).sin() * 43758.5453).frac()).view(shape).float()


def model_on_tokens(local_views):
    """Build a model whose networks return their input as tokens, with heads as in the file.

    The teacher's tokens are reversed.
    """
    model = ecddp(hidden=16, bottleneck=8, prototypes=32, clusters=8, local_views=local_views)
    for network, first in ((model.student, 0), (model.teacher, 500)):
        parts = {name: PrototypeHead(32, 16, 8, 32) for name in HEADS} | {
            name: AttentionPool(32) for name in POOLS
        }
        for number, (name, parameter) in enumerate(sorted(nn.ModuleDict(parts).named_parameters())):
            start = (
                1.0
                if name.endswith(("lengths", "norm.weight", "norm1.weight", "norm2.weight"))
                else 0.0
            )
            parameter.data = start + noise(first + number, parameter.shape)
        for name, part in parts.items():
            setattr(network, name, part)
    model.student.forward = lambda frames, mask=None: frames.flatten(0, 1)
    model.teacher.forward = lambda frames: frames.flatten(0, 1).flip(1)
    return model


@pytest.mark.parametrize("local_views", [8, 2])
def test_the_total_loss_and_its_gradients_are_the_authors(local_views, monkeypatch):
    values = published(f"ecddp_loss_{local_views}")
    whole, large, small = (values[f"in {name}"].float() for name in ("whole", "large", "small"))
    drawn = iter([view.requires_grad_().unsqueeze(2) for view in (large, small)])
    monkeypatch.setattr(ecddp_file, "random_crops", lambda frames, side: frames)
    monkeypatch.setattr(ecddp_file, "pad_to", lambda frames, size: frames)
    monkeypatch.setattr(ecddp_file, "random_views", lambda *_: (next(drawn), values["in boxes"]))
    monkeypatch.setattr(ecddp_file, "draw_spread_blocks", lambda *_: values["in masks"])
    monkeypatch.setattr(Ecddp, "_temperature", values["in temperature"])
    monkeypatch.setattr(torch, "rand", lambda *_: values["in kmeans"])
    model, outputs = model_on_tokens(local_views), {name: [] for name in HEADS}
    for name, logits in outputs.items():
        keep = lambda *args, logits=logits: args[2].retain_grad() or logits.append(args[2])  # noqa: E731
        model.student.get_submodule(name).register_forward_hook(keep)
    losses, _ = model.loss({"histograms": whole.unsqueeze(1)})
    losses["loss"].backward()

    assert_loss(losses["loss"], values["out loss"])
    of_images = values["out dino_local_crops_loss"] + values["out dino_global_crops_loss"]
    assert_loss(losses["loss"] - 0.5 * losses["loss_patch"], of_images)
    for name, view in (("large", large), ("small", small)):
        assert_gradient(view.grad, values[f"grad {name}"])
    gradients = {name: torch.cat([logits.grad for logits in outputs[name]]) for name in HEADS}
    assert_gradient(gradients["patches"], values["grad logits patch"])
    assert_gradient(gradients["images"], values["grad logits image"])
    visible = values["out visible"]
    assert_gradient(gradients["contexts"][visible], values["grad logits context"])
    assert not gradients["contexts"][~visible].any()
    for name in (
        key.removeprefix("grad ")
        for key in values
        if key.startswith(("grad p", "grad con", "grad im"))
    ):
        assert_gradient(model.student.get_parameter(name).grad, values[f"grad {name}"])


def test_schedules_and_parameter_groups_are_the_authors():
    """Batches of 1024 of the 129,949 training samples, 300 epochs."""
    values, how = published("ecddp_schedule"), RECIPE.optimisation
    steps, model = values["in step"].tolist(), ecddp()
    assert how.steps == values["out steps"]
    rates = torch.tensor([learning_rate(how, step) for step in steps], dtype=torch.float64)
    assert_loss(rates, values["out lr"])
    decays = torch.tensor([weight_decay(how, step) for step in steps], dtype=torch.float64)
    assert_loss(decays, values["out decay"])
    names = {parameter: name for name, parameter in model.named_parameters()}
    for group in parameter_groups(model, how):
        for name in (names[parameter] for parameter in group["params"]):
            vector = name.endswith(".bias") or model.get_parameter(name).dim() == 1
            kind = "patch embedding " if "patch_embed" in name else "vector " if vector else ""
            assert_loss(decays * group["decays"], values[f"out {kind}decay"])
            expected = (
                values["out patch embedding lr"] if "patch_embed" in name else values["out lr"]
            )
            assert_loss(rates * group["lr_share"], expected)


def test_momentum_temperature_and_the_freeze_follow_the_authors_epochs():
    values, model = published("ecddp_schedule"), ecddp()
    for parameter in model.student.parameters():
        parameter.data.fill_(1.0)
    for number, step in enumerate(values["in step"].tolist()):
        for parameter in model.teacher.parameters():
            parameter.data.zero_()
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        progress = step / RECIPE.optimisation.steps
        model.after_step(progress)
        model.before_step(progress)
        assert_loss(model._temperature, values["out temperature"][number])
        moved = 1 - next(model.teacher.parameters()).flatten()[0]
        assert_loss(moved, values["out momentum"][number])
        frozen = {name for name, parameter in model.named_parameters() if parameter.grad is None}
        prototypes = {
            f"student.{head}.{part}" for head in HEADS for part in ("directions", "lengths")
        }
        assert frozen == (prototypes if values["out frozen"][number] else set())


def test_masks_are_the_authors_blocks():
    values = published("ecddp_masks")
    for draws, count, mask in zip(
        values["in draws"], values["in count"].tolist(), values["out masks"], strict=True
    ):
        assert block_mask(Recorded(draws), 12, 12, count, 4).tolist() == mask.tolist()


def test_views_and_their_positions_are_the_authors():
    """The context loss reads clusters at the positions that the authors' grid gives each token."""
    values = published("ecddp_views")
    image, boxes = values["in image"], values["in boxes"].flatten(0, 1)
    views = crop_and_resize(image.repeat(2, 1, 1, 1), boxes, values["out views"].shape[-2:])
    torch.testing.assert_close(views, values["out views"], rtol=1e-4, atol=1e-5)
    ramp = torch.linspace(-1, 1, image.shape[-1])
    positions = torch.stack(torch.meshgrid(ramp, ramp, indexing="xy")).expand(
        len(boxes), -1, -1, -1
    )
    grid = crop_and_resize(positions, boxes, values["out grid"].shape[1:3]).movedim(1, -1)
    torch.testing.assert_close(grid, values["out grid"], rtol=1e-4, atol=1e-5)


def test_the_backbone_starts_with_torchs_initialisation():
    values = published("ecddp_start")
    torch.manual_seed(0)
    model = Ecddp(
        method_settings(RECIPE.objective | {"prototypes": 8}),
        build_backbone("swin_micro", False, 10, (224, 224)),
    )
    for name, deviation in values.items():
        found = model.backbone.get_parameter(name.replace("out ", "swin.")).std()
        assert found.item() == pytest.approx(deviation.item(), rel=0.1), name


def test_averaged_views_are_the_authors(monkeypatch):
    values = published("ecddp_tta")
    image, weights = values["in image"], values["in weights"]

    class Pointwise(nn.Module):
        def forward(self, histograms, state):
            return [histograms], None

        def outputs(self, features, size):
            logits = torch.einsum("kc, nchw -> nkhw", weights, features[0]).tanh()
            return logits * torch.linspace(0, 1, logits.shape[-1])

    model = Pointwise()
    model.backbone = model.forward
    monkeypatch.setattr(segmentation, "resize_backbone", lambda backbone, size: backbone)
    places = torch.tensor([(0, 0), (1, 0)])
    logits, _ = SegmentationTTA(model, TTA_SCALES["ecddp"], image.shape[-2:]).predict(
        image.unsqueeze(1), None, places
    )
    torch.testing.assert_close(logits, values["out logits"], rtol=1e-5, atol=1e-6)

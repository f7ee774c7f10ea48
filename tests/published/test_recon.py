"""CM3AE and MEM against values of their authors' functions (tests/data/published/README.md)."""

import numpy as np
import pytest
import torch
from loss_cases import TOKENIZER, events, own
from loss_cases import mem as mem_network
from published_values import Recorded, assert_gradient, assert_loss, published
from torch import nn
from torchvision.transforms import InterpolationMode

from baselines import mem, mem_tokenizer
from baselines.cm3ae import Cm3ae, draw_masks
from baselines.mem_tokenizer import MemTokenizer, tokenizer_input
from tespec.core.config import pretraining_settings
from tespec.core.settings import GradientClipping
from tespec.events.histogram import event_histogram
from tespec.models import build_backbone
from tespec.pretraining.mae import Fusion, position_embedding
from tespec.pretraining.masking import block_mask
from tespec.pretraining.views import GEOMETRIC, PHOTOMETRIC, random_time_flips
from tespec.training.optimizer import clip, learning_rate, parameter_groups, weight_decay


def cm3ae(values, unit, ratio):
    """CM3AE on frames of 16 px, which draws and embeds what the values hold, with their masks."""
    start = values["in logit_scale"].item()
    settings = own(
        "cm3ae", mask={"unit": unit, "ratio": ratio}, blocks=0, out=16, logit_scale=start
    )
    model = Cm3ae(
        settings,
        *(build_backbone("swin_micro", False, 2, (32, 32), channels) for channels in (None, 1)),
    )
    model._masks = lambda _: [values["in events_mask"], values["in frame_mask"]]
    names = ("drawn_frame", "drawn_events", "drawn_fused", "embedding_events", "embedding_frame")
    leaves = {name: values[f"in {name}"].float().requires_grad_() for name in names}
    # The authors' images have three equal planes; ours have one, and the events' have two.
    images = {
        name: leaf.unsqueeze(1).unsqueeze(1)
        for name, leaf in leaves.items()
        if name.startswith("drawn")
    }
    of_frame = iter(["drawn_frame", "drawn_fused"])
    model.frame_decoder.forward = lambda _: (images[next(of_frame)], leaves["embedding_frame"])
    drawn_events = images["drawn_events"].expand(-1, -1, 2, -1, -1)
    model.event_decoder.forward = lambda _: (drawn_events, leaves["embedding_events"])
    return model.eval(), leaves


@pytest.mark.parametrize(
    ("name", "ratio"), [("recon_cm3ae_loss", 0.75), ("recon_cm3ae_loss_reduced", 0.5)]
)
def test_cm3aes_losses_are_its_authors(name, ratio):
    values = published(name)
    model, leaves = cm3ae(values, 4, ratio)
    histograms = (
        values["in events"].to(torch.uint8).view(-1, 1, 1, 16, 16).expand(-1, -1, 4, -1, -1)
    )
    batch = {"histograms": histograms, "images": values["in frame"].view(-1, 1, 1, 16, 16)}
    losses, _ = model.loss(batch)
    for loss in ("loss", "loss_frame", "loss_events", "loss_fused", "loss_contrast"):
        assert_loss(losses[loss], values[f"out {loss}"])
    losses["loss"].backward()
    for leaf, tensor in leaves.items():
        assert_gradient(tensor.grad, values[f"grad {leaf}"])
    assert_gradient(model.logit_scale.grad, values["grad logit_scale"])


@pytest.mark.parametrize("ratio", [0.75, 0.6])
@pytest.mark.parametrize("units", [196, 155])
def test_cm3aes_masks_are_its_authors(ratio, units):
    values = published("recon_cm3ae_masks")
    visible = own("cm3ae", mask={"unit": 16, "ratio": ratio}).visible(units)
    events, frame = draw_masks(values[f"in noise {ratio} {units}"], visible)
    assert torch.equal(events, values[f"out events {ratio} {units}"])
    assert torch.equal(frame, values[f"out frame {ratio} {units}"])


def test_cm3aes_fusion_is_its_authors():
    values = published("recon_cm3ae_fusion")
    fusion = Fusion(16, 4, (64, 96))  # 2 x 3 tokens
    fusion.positions.zero_()  # the authors' tokens carry their positions
    prefix = "in parameter "
    fusion.block.load_state_dict(
        {key.removeprefix(prefix): values[key] for key in values if key.startswith(prefix)}
    )
    fusion.scale.data = values["in scale"].float()
    tokens = [values[f"in {name}"].float().requires_grad_() for name in ("frame", "events")]
    fused = fusion(*(each.mT.reshape(2, 1, 16, 2, 3) for each in tokens)).reshape(2, 16, 6).mT
    torch.testing.assert_close(fused, values["out frame"], rtol=1e-5, atol=1e-5)
    (fused * values["in weights"].float()).sum().backward()
    for name, leaf in zip(("frame", "events"), tokens, strict=True):
        assert_gradient(leaf.grad, values[f"grad {name}"])
    assert_gradient(fusion.scale.grad, values["grad scale"])
    for name, parameter in fusion.block.named_parameters():
        if f"grad parameter {name}" in values:
            assert_gradient(parameter.grad, values[f"grad parameter {name}"])


def test_cm3ae_is_trained_as_its_authors_train():
    """Positions, schedules, the parameters that decay, clipped gradients, initial values."""
    values = published("recon_cm3ae_training")
    torch.testing.assert_close(
        position_embedding((3, 3), 16), values["out positions"], rtol=0, atol=1e-6
    )
    how = pretraining_settings("cm3ae", "paper").optimisation
    steps = values["in steps"].tolist()
    rates = torch.tensor([learning_rate(how, step) for step in steps], dtype=torch.float64)
    # The authors' warm-up ends one of its 49,520 steps earlier.
    torch.testing.assert_close(rates, values["out learning_rate"], rtol=1e-6, atol=1e-9)
    decays = torch.tensor([weight_decay(how, step) for step in steps], dtype=torch.float64)
    torch.testing.assert_close(decays, values["out weight_decay"], rtol=1e-9, atol=0)
    backbones = (
        build_backbone("swin_micro", False, 2, (64, 96), channels) for channels in (None, 1)
    )
    model = Cm3ae(own("cm3ae", blocks=1, out=64), *backbones)
    decaying = {
        parameter
        for group in parameter_groups(model, how)
        if group["decays"]
        for parameter in group["params"]
    }
    frame, block = model.frame_decoder, model.fusion.block
    same = (
        model.logit_scale,
        model.fusion.scale,
        frame.mask_patch.pixels,
        block.mlp.fc1.weight,
        block.mlp.fc1.bias,
    )
    found = [parameter in decaying for parameter in (*same, frame.norm.weight)]
    assert found == values["out decays"].tolist() == [True, False, True, True, False, False]
    gradients = [values[f"in gradient {number}"].float() for number in range(3)]
    parameters = [nn.Parameter(torch.zeros_like(gradient)) for gradient in gradients]
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient.clone()
    clip(parameters, how.clip)
    assert how.clip == GradientClipping("parameter", 3.0)
    for number, parameter in enumerate(parameters):
        torch.testing.assert_close(
            parameter.grad, values[f"out clipped {number}"], rtol=1e-6, atol=0
        )
    for part in (model.fusion, frame):
        for layer in part.modules():
            if isinstance(layer, nn.Linear):  # uniform, as Xavier's
                bound = (6 / sum(layer.weight.shape)) ** 0.5
                assert 0.8 * bound < layer.weight.abs().max() <= bound
                assert not layer.bias.any()


def test_cm3aes_decoder_has_its_authors_size():
    """models/mae.py, mae_vit_base_patch16: eight blocks of width 512 with 16 heads."""
    backbones = (
        build_backbone("swin_micro", False, 2, (64, 96), channels) for channels in (None, 1)
    )
    decoder = Cm3ae(own("cm3ae"), *backbones).frame_decoder
    assert (
        len(decoder.blocks),
        decoder.blocks[0].attn.num_heads,
        decoder.blocks[0].attn.qkv.in_features,
    ) == (
        8,
        16,
        512,
    )
    assert (decoder.unit, decoder.to_pixels.out_features, decoder.sum.in_features) == (
        16,
        256,
        4 * 6,
    )
    assert {norm.eps for norm in decoder.modules() if isinstance(norm, nn.LayerNorm)} == {1e-6}


@pytest.mark.parametrize("name", ["recon_mem_tokenizer", "recon_mem_tokenizer_reduced"])
def test_the_tokenizers_loss_is_its_authors(name, monkeypatch):
    values = published(name)
    # theirs weighs the sum over images and positions
    weight = values["in kl_weight"].item() * 3 * 4 * 4
    temperature = values["in temperature"].item()
    small = {
        "unit": 4,
        "tokens": 12,
        "width": 6,
        "hidden": 4,
        "blocks": 1,
        "crop": 16,
        "gamma": 1.0,
    }
    same = {"kl_weight": weight, "temperature": (temperature, 0.1), "hot": 1e6}
    model = MemTokenizer(own("mem-tokenizer", **(TOKENIZER | small | same))).eval()
    for number, parameter in enumerate(model.parameters()):
        parameter.data = values[f"in parameter {number}"].float()
    monkeypatch.setattr(mem_tokenizer, "gumbel_noise", lambda logits: values["in noise"])
    logits = []
    model.backbone.encoder.register_forward_hook(lambda _, __, out: logits.append(out))
    histograms = values["in counts"][:, [2, 0]].unsqueeze(1)  # one bin, negative, then positive
    losses, _ = model.loss({"histograms": histograms}, None)
    assert_loss(losses["loss"], values["out loss"])
    assert_loss(losses["loss_drawn"], values["out error"])
    (gradient,) = torch.autograd.grad(losses["loss"], logits, retain_graph=True)
    assert_gradient(gradient, values["grad logits"])
    losses["loss"].backward()
    for number, parameter in enumerate(model.parameters()):
        assert_gradient(parameter.grad, values[f"grad parameter {number}"])


def test_mems_images_are_its_authors():
    """Hot pixels of either polarity are cleared in both; gamma; division by the maximum."""
    values = published("recon_mem_input")
    counts = values["in counts"]
    for images, hot in zip(values["out images"], (10.0, 4.0), strict=True):
        for wanted, gamma in zip(images, (1.0, 0.5), strict=True):
            torch.testing.assert_close(
                tokenizer_input(counts, hot, gamma), wanted, rtol=1e-5, atol=1e-6
            )


def test_mems_random_operations_are_its_authors():
    values = published("recon_mem_augment")
    image, operations = values["in image"], GEOMETRIC + PHOTOMETRIC
    assert len(operations) == 14
    counts = (image // 26)[[0, 2]]
    for number, (operation, level) in enumerate(
        zip(operations, values["in bins"].tolist(), strict=True)
    ):
        found = operation(image, level / 30, InterpolationMode.BILINEAR)
        difference = found.int() - values["out images"][number].int()
        assert difference.abs().max() <= 1, number  # rounding
        assert difference.count_nonzero() <= 0.005 * difference.numel(), number
        if number < len(GEOMETRIC):
            nearest = operation(counts, level / 30, InterpolationMode.NEAREST)
            assert (nearest != values["out nearest"][number]).float().mean() <= 0.005, number


def test_mems_masks_are_its_authors():
    values = published("recon_mem_masks")
    settings, lengths = values["in settings"].tolist(), values["in lengths"].tolist()
    parts = values["in uniforms"].split(lengths)
    for number, (part, (rows, columns, most, least)) in enumerate(
        zip(parts, settings, strict=True)
    ):
        generator = Recorded(part)
        found = block_mask(generator, rows, columns, most, least)
        assert np.array_equal(found, values[f"out mask {number}"].numpy())
        with pytest.raises(StopIteration):  # all were drawn
            generator.random()


def test_mems_loss_is_its_authors(monkeypatch):
    values = published("recon_mem_training")
    model, logits = mem_network().eval(), values["in logits"].float().requires_grad_()
    masked = torch.zeros(2, 4, 6, dtype=torch.bool)  # the patches of 64 x 96 px
    masked[0, :3, :4] = masked[1, 2:, 2:] = True  # 12 + 8
    tokens = torch.zeros(2, 4, 6, dtype=torch.long)
    tokens[masked] = values["in labels"]
    monkeypatch.setattr(mem, "draw_blocks", lambda *_: masked)
    model.tokenizer.tokens = lambda _: tokens
    model.head.forward = lambda _, places: logits[: len(places)]
    losses, _ = model.loss(events(2, 1), None)
    assert_loss(losses["loss"], values["out loss"])
    losses["loss"].backward()
    assert_gradient(logits.grad, values["grad logits"])


def test_mem_and_its_tokenizer_are_trained_as_their_authors_train():
    """The tokenizer's learning rate falls once an epoch there, evenly here."""
    values = published("recon_mem_training")
    for name, prefix, rtol in (("mem", "", 1e-6), ("mem-tokenizer", "tokenizer_", 1.1e-3)):
        how = pretraining_settings(name, "paper").optimisation
        rates = [learning_rate(how, step) for step in values[f"in {prefix}steps"].tolist()]
        wanted = values[f"out {prefix}learning_rate"]
        torch.testing.assert_close(
            torch.tensor(rates, dtype=torch.float64), wanted, rtol=rtol, atol=1e-9
        )
    model = MemTokenizer(own("mem-tokenizer", **(TOKENIZER | {"temperature": (1.0, 0.5)})))
    for step, temperature in zip(
        values["in tokenizer_steps"], values["out tokenizer_temperature"], strict=True
    ):
        model.after_step(step.item() / 333_600)
        assert model._temperature.item() == pytest.approx(temperature.item(), rel=1e-6)


def test_mem_reverses_time_as_its_authors_reverse_it():
    values = published("recon_mem_training")
    forwards, backwards = (_histogram(values[f"{side} events"].numpy()) for side in ("in", "out"))
    torch.manual_seed(0)
    flipped = random_time_flips(forwards.expand(8, -1, -1, -1, -1))
    equal = [
        any(torch.equal(lane, wanted[0]) for wanted in (forwards, backwards)) for lane in flipped
    ]
    assert all(equal)
    assert {torch.equal(lane, forwards[0]) for lane in flipped} == {True, False}


def _histogram(events):
    """Histogram (1, 1, 20, 12, 16) of events x, y, t, p with p -1 or 1, in a window of 50 ms."""
    x, y, t, p = events[np.argsort(events[:, 2], kind="stable")].T.astype(np.int64)
    size = {"t_start": 0, "t_end": 50_000, "bins": 10, "height": 12, "width": 16, "rule": "edges"}
    return torch.from_numpy(event_histogram(x, y, t, p > 0, **size))[None, None]

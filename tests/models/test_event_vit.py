"""ViTs: the features of timm's network, their scales and positions, and masked pre-training."""

from dataclasses import replace

import pytest
import torch
from loss_cases import cm3ae, events, mem, pairs, scaleevent
from timm.layers import LayerNorm
from timm.models.beit import Beit

from tespec.core.config import pretraining_settings
from tespec.models import event_vit
from tespec.models.backbone import resize_backbone
from tespec.models.event_vit import VITS, EventViT, ViTSpec
from tespec.training.ddp import may_lack_gradients
from tespec.training.optimizer import parameter_groups

SIZE = (64, 96)
SMALL = ViTSpec(32, 4, 4, blocks=(0, 1, 2, 3))
BIASES = {"use_abs_pos_emb": False, "use_rel_pos_bias": True, "init_values": 0.1}
BEIT = replace(SMALL, network=Beit, norm=False, options=BIASES)


def backbone(monkeypatch, spec, size=SIZE, recurrent=False):
    monkeypatch.setitem(VITS, "vit_micro", spec)
    torch.manual_seed(0)
    model = EventViT("vit_micro", recurrent, img_size=size, in_channels=3).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith((*event_vit.EventViT.position_tables, "token")):
                parameter.normal_()
    return model


@pytest.mark.parametrize("spec", [SMALL, replace(SMALL, norm=False), BEIT])
@torch.no_grad()
def test_features_at_the_stride_of_the_patches_are_those_of_timm(monkeypatch, spec):
    model, frames = backbone(monkeypatch, spec), torch.randn(2, 1, 3, *SIZE)
    expected = model.vit.forward_intermediates(
        frames[:, 0], norm=spec.norm, intermediates_only=True
    )
    features, _ = model(frames)
    torch.testing.assert_close(features[2][:, 0], expected[2], rtol=1e-5, atol=1e-5)
    pooled = torch.nn.functional.max_pool2d(expected[3], 2)
    torch.testing.assert_close(features[3][:, 0], pooled, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_patches_of_14_px_are_interpolated_to_the_positions_of_16_px(monkeypatch):
    """A ramp over the centres of 14 px patches is the same ramp at the centres of 16 px."""
    model = backbone(monkeypatch, replace(SMALL, patch=14, norm=False))
    assert model.grid == (5, 7)
    columns = (torch.arange(7) + 0.5) * 14
    output = columns.expand(1, 5, 7).flatten(1).unsqueeze(2).expand(-1, -1, 32)  # (N, L, C)
    ramp = model.neck(2, output)[0, :, :, 0]
    torch.testing.assert_close(ramp, ((torch.arange(6) + 0.5) * 16).expand(4, 6))
    assert [tuple(feature.shape[3:]) for feature in model(torch.zeros(1, 1, 3, 60, 90))[0]] == [
        (64 // stride, 96 // stride) for stride in event_vit.STRIDES
    ]


@pytest.mark.parametrize("spec", [SMALL, BEIT])
def test_positions_follow_the_size_and_all_else_stays(monkeypatch, spec):
    model = backbone(monkeypatch, spec)
    other = resize_backbone(model, (96, 64))
    before, after = model.state_dict(), other.state_dict()
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert moved == {name for name in before if name.endswith(EventViT.position_tables)}
    assert len(moved) == (4 if spec is BEIT else 1)
    # square positions of any size are known without the size
    square = backbone(monkeypatch, spec, size=(224, 224))
    name = moved.pop()
    tensors = square.state_dict()
    assert model.resize(tensors, (224, 224))[name].shape == before[name].shape
    assert torch.equal(
        model.resize(tensors, (640, 32))[name], model.resize(tensors, (224,) * 2)[name]
    )
    odd = {name: before[name][..., :5, :]}
    assert model.resize(odd, (224, 224))[name] is odd[name]
    assert len(tensors["vit.blocks.0.attn.qkv.weight"]) == 96


@pytest.mark.parametrize("make", [mem, cm3ae, scaleevent])
def test_a_masked_or_distilled_vit_learns_and_its_positions_and_tokens_do_not_decay(make):
    model = make(arch="vit_micro")
    losses, _ = model.loss(events(2, 1) if make is mem else pairs(), None)
    losses["loss"].backward()
    assert all(block.attn.qkv.weight.grad.abs().sum() > 0 for block in model.backbone.vit.blocks)
    # the last feature does not depend on the neck of the others
    assert may_lack_gradients(model)
    assert not may_lack_gradients(make())
    decays = pretraining_settings("mem", "paper").optimisation
    exempt = [group["params"] for group in parameter_groups(model, decays) if not group["decays"]]
    vit = model.backbone.vit
    assert {id(vit.pos_embed), id(vit.cls_token)} <= {id(weight) for weight in exempt[0]}


def test_the_state_of_a_vit_does_not_enter_its_blocks(monkeypatch):
    model = backbone(monkeypatch, SMALL, recurrent=True)
    frames = torch.randn(1, 3, 3, *SIZE)
    calls = []
    model.stages[1].register_forward_hook(lambda module, given, output: calls.append(output))
    _, state = model(frames[:, :1])
    model(frames[:, 1:2], state)
    model(frames[:, 1:2])
    torch.testing.assert_close(calls[1], calls[2], rtol=0, atol=0)


def test_epsilon_of_norms_is_that_of_published_vits():
    assert {
        module.eps
        for module in EventViT(img_size=(32, 32), bins=1).vit.modules()
        if isinstance(module, LayerNorm)
    } == {1e-6}

"""Stand-ins of published files, complete, and the traps in their names."""

from __future__ import annotations

from functools import partial

import tespec.core.compat  # noqa: F401

import published_files as published
import pytest
import timm
import torch
from plain_swin import plain_features
from published_files import saved

from tespec.core.errors import UserError
from tespec.models import EventResNet, EventSwin
from tespec.models.event_swin import ARCHITECTURES
from tespec.weights.export import inspect
from tespec.weights.formats import convert, repeat_channels
from tespec.weights.load import load_backbone

SIZE = (224, 224)
SOURCES = {
    "swin-microsoft": lambda arch: {"model": published.microsoft(arch)},
    "swin-timm": published.timm_new,
    "swin-timm-features": published.timm_features,
    "moby": published.moby,
    "simmim": published.simmim,
    "ecddp": published.ecddp,
    "tespec-release": published.tespec_release,
}


def backbone(seed=1, recurrent=True, arch="micro", img_size=SIZE):
    torch.manual_seed(seed)
    return EventSwin(arch=arch, recurrent=recurrent, img_size=img_size).eval()


@pytest.mark.parametrize("source", SOURCES)
def test_every_source_fills_the_backbone(tmp_path, source):
    path = saved(tmp_path, SOURCES[source]("micro"))
    feedforward = load_backbone(backbone(recurrent=False), path)
    assert (feedforward.format, feedforward.coverage, feedforward.random) == (source, 1, ())
    model = backbone()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    report = load_backbone(model, path)
    lstms = {name for name in before if name.startswith("lstms.")}
    without = source != "tespec-release"
    assert set(report.random) == (lstms if without else set())
    assert report.loaded + len(report.random) == report.total
    assert ("ConvLSTMs (8 tensors) start at random" in report.summary()) == without
    changed = {name for name, tensor in model.state_dict().items() if not torch.equal(tensor, before[name])}
    assert changed == set(before) - set(report.random)


@pytest.mark.parametrize("source", SOURCES)
def test_names_and_shapes_are_those_of_swin_t(source):
    state = SOURCES[source]("tiny")
    state = state.get("model", state.get("state_dict", state))
    tensors = convert(state, 20, where="file").tensors
    with torch.device("meta"):
        wanted = EventSwin(arch="tiny", recurrent=source == "tespec-release").state_dict()
    assert {name: tensor.shape for name, tensor in tensors.items()} == {
        name: tensor.shape for name, tensor in wanted.items()
    }


@pytest.mark.parametrize("img_size", [(224, 224), (448, 448)])
def test_features_are_those_of_the_published_network(img_size):
    state = published.microsoft(chans=20)
    model = backbone(recurrent=False, img_size=img_size)
    model.load_state_dict(convert(state, 20, where="file").tensors)
    image = torch.randn(1, 20, *img_size, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        features, _ = model.step(image)
        expected = plain_features(state, image, ARCHITECTURES["micro"].heads)
    for feature, wanted in zip(features, expected, strict=True):
        torch.testing.assert_close(feature, wanted, rtol=1e-4, atol=1e-4)


def test_sources_of_one_network_agree(tmp_path):
    contents = [published.microsoft(), published.timm_new(), published.timm_features(), published.moby()]
    contents.append({"model": published.under("module.", published.microsoft())})  # torch's data parallelism
    models = [backbone(recurrent=False) for _ in contents]
    for index, (model, content) in enumerate(zip(models, contents, strict=True)):
        load_backbone(model, saved(tmp_path, content, f"{index}.pth"))
    for name, tensor in models[0].state_dict().items():
        assert all(torch.equal(tensor, model.state_dict()[name]) for model in models[1:]), name


@pytest.mark.parametrize("head", [True, False])
@pytest.mark.parametrize("make", [published.microsoft, published.timm_new])
def test_the_naming_follows_from_the_downsampling_and_not_from_the_classifier(make, head):
    state = make(head=head)
    tensors = convert(state, 20, where="file").tensors
    for stage in (1, 2, 3):
        given = f"layers.{stage - (make is published.microsoft)}.downsample.reduction.weight"
        assert torch.equal(tensors[f"swin.layers.{stage}.downsample.reduction.weight"], state[given])
    assert not any(name.startswith("swin.layers.0.downsample") for name in tensors)


@pytest.mark.parametrize("stages", [(0, 3), ()])
def test_a_naming_that_cannot_be_told_is_refused(stages):
    state = {name: tensor for name, tensor in published.timm_new().items() if "downsample" not in name}
    state |= {f"layers.{stage}.downsample.norm.weight": torch.zeros(1) for stage in stages}
    with pytest.raises(UserError, match=r"of layers\.0\.downsample and layers\.3\.downsample"):
        convert(state, 20, where="file")


def test_moby_gives_the_online_encoder_alone():
    model = published.moby()["model"]
    model["momentum.encoder.layers.0.blocks.0.attn.qkv.weight"] = torch.full((72, 24), 5.0)
    converted = convert(model, 20, where="file")
    name = "layers.0.blocks.0.attn.qkv.weight"
    assert torch.equal(converted.tensors[f"swin.{name}"], model[f"encoder.{name}"])
    assert not torch.equal(model[f"encoder.{name}"], model[f"encoder_k.{name}"])
    assert any(entry.startswith("encoder_k.* (") for entry in converted.unused)
    assert "queue_ptr" in converted.unused
    assert len(converted.unused) < 30


@pytest.mark.parametrize(
    ("content", "beside", "source"),
    [
        (published.moby, "encoder_k.", "moby"),
        (published.moby, "projector.", "moby"),
        (published.moby, "queue", "moby"),
        (published.simmim, "encoder.mask_token", "simmim"),
        (published.simmim, "decoder.", "simmim"),
    ],
)
def test_what_stands_beside_an_encoder_tells_whose_it_is(content, beside, source):
    model = content()["model"]
    bare = {name: each for name, each in model.items() if name.startswith("encoder.") and "mask_token" not in name}
    assert convert(bare | {name: each for name, each in model.items() if name.startswith(beside)}, 20,
                   where="file").format.name == source  # fmt: skip
    with pytest.raises(UserError, match="holds a Swin Transformer as its encoder, and nothing that tells whose"):
        convert(bare, 20, where="file")


def test_ecddp_gives_the_teacher_and_the_student_only_where_it_is_alone():
    model = published.ecddp()["model"]
    name = "layers.0.blocks.0.attn.qkv.weight"
    converted = convert(model, 20, where="file")
    assert torch.equal(converted.tensors[f"swin.{name}"], model[f"teacher.backbone.{name}"])
    assert not torch.equal(model[f"teacher.backbone.{name}"], model[f"student.backbone.{name}"])
    assert "swin.norm0.weight" not in converted.tensors
    alone = convert(published.ecddp(branches=("student",))["model"], 20, where="file")
    assert alone.format.name == "ecddp-student"
    assert torch.equal(alone.tensors[f"swin.{name}"], model[f"student.backbone.{name}"])


def test_the_released_convlstm_computes_what_ours_does():
    state = published.tespec_release()["state_dict"]
    model = backbone()
    model.load_state_dict(convert(state, 20, where="file").tensors)
    prefix = "model.encoder.lstm_blocks.1.conv1x1"
    maps, hidden, cell = torch.randn(3, 2, 3, 4, 48, generator=torch.Generator().manual_seed(0))
    joined = torch.cat((maps, hidden), -1).permute(0, 3, 1, 2)
    mixed = torch.nn.functional.conv2d(joined, state[f"{prefix}.weight"], state[f"{prefix}.bias"]).permute(0, 2, 3, 1)
    forget, write, output = mixed[..., :144].sigmoid().chunk(3, -1)
    wanted_cell = forget * cell + write * mixed[..., 144:].tanh()
    _, got_hidden, got_cell = model.lstms[1](maps[None], hidden, cell)
    torch.testing.assert_close(got_cell, wanted_cell)
    torch.testing.assert_close(got_hidden, output * wanted_cell.tanh())


@pytest.mark.parametrize(("given", "scale"), [(3, 1), (6, 1), (2, 1), (4, 0.2), (20, 1)])
def test_repeated_channels_see_a_repeated_image_as_the_first_ones_did(given, scale):
    weight = torch.randn(8, given, 4, 4, generator=torch.Generator().manual_seed(0))
    image = torch.randn(1, given, 8, 8, generator=torch.Generator().manual_seed(1))
    wide = repeat_channels(weight, 20, rescale=scale != 1)
    for channel in range(20):
        assert torch.equal(wide[:, channel], weight[:, channel % given] * scale)
    whole = 20 // given * given
    stretched = torch.cat([image.repeat(1, 20 // given, 1, 1), torch.zeros(1, 20 - whole, 8, 8)], 1)
    got = torch.nn.functional.conv2d(stretched, wide, stride=4)
    once = torch.nn.functional.conv2d(image, weight, stride=4)
    torch.testing.assert_close(got, once * (20 // given) * scale, rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_resnet50_in_the_naming_of_torchvision():
    model = timm.create_model("resnet50", num_classes=0, in_chans=20)
    given = timm.create_model("resnet50", in_chans=2).state_dict()
    for old in (False, True):
        state = {name: tensor for name, tensor in given.items() if not (old and "num_batches" in name)}
        converted = convert(state, 20, where="file")
        renamed = {name.removeprefix("resnet."): tensor for name, tensor in converted.tensors.items()}
        assert {name: tensor.shape for name, tensor in renamed.items()} == {
            name: tensor.shape for name, tensor in model.state_dict().items()
        }
        assert (converted.format.name, converted.unused) == ("resnet50", ("fc.bias", "fc.weight"))
        model.load_state_dict(renamed)
    ours = EventResNet("resnet50", recurrent=False, img_size=(64, 64)).eval()
    ours.load_state_dict(converted.tensors)
    features, _ = ours(torch.ones(1, 1, 20, 64, 64))
    theirs = timm.create_model("resnet50", in_chans=2).eval()
    theirs.load_state_dict(given)
    expected = theirs.forward_features(torch.full((1, 2, 64, 64), 10.0))  # 20 channels are ten times 2
    torch.testing.assert_close(features[-1].squeeze(1), expected, rtol=1e-3, atol=1e-3)


def test_a_file_that_holds_one_tensor_under_two_names_is_refused():
    state = published.tespec_release()["state_dict"]
    state |= {name.removeprefix("model."): tensor for name, tensor in state.items() if "pure_backbone" in name}
    with pytest.raises(UserError, match=r"holds swin\..* twice, under two names"):
        convert(state, 20, where="file")


QKV = "blocks.0.attn.qkv.weight"
VIT = "is a vision transformer without stages .*the links of DeiT-S and Swin-T in MoBY's README are swapped"
UNSUPPORTED = [
    (["event_head.weight", QKV], "is ECDP's ViT-S"),
    ([f"encoder.{QKV}"], "is MoBY's DeiT-S"),
    ([QKV], VIT),
    ([f"backbone.{QKV}"], VIT),
    (["rel_pos_bias.relative_position_bias_table", QKV], "is a ViT as MEM and BEiT have it, no Swin"),
    (["codebook.weight", "encoder.0.0.weight"], "is MEM's tokenizer, an autoencoder and no backbone"),
    ([f"backbone.event_{QKV}", f"backbone.rgb_{QKV}"], "is CM3AE's pair of ViTs for events and frames, no Swin"),
    (["patch_embed.proj.weight", "swin_block.0.blocks.0.attn.qkv.weight"], "is EventPretrain's Swin .* five channels"),
    (["temporal_block1.mlp.LTA.LTA_Block.weight", f"backbone.{QKV}"], "is STP's: a stem before an image network"),
    (["stages.0.blocks.0.attn.w_msa.qkv.weight"], "naming of OpenMMLab"),
    (["swin.encoder.layers.0.blocks.0.attention.self.query.weight"], "naming of transformers"),
    (["conv.weight"], r"format is not known \(the first name is 'conv\.weight'\)"),
]
VARIANTS = [
    ("layers.0.blocks.0.attn.logit_scale", "is a Swin Transformer V2"),
    ("layers.0.blocks.0.norm2.running_mean", "has batch normalisation"),
    ("absolute_pos_embed", "adds absolute positions"),
]


@pytest.mark.parametrize(
    ("state", "message"),
    [(dict.fromkeys(names, torch.zeros(1)), message) for names, message in UNSUPPORTED]
    + [(published.microsoft() | {name: torch.zeros(1)}, message) for name, message in VARIANTS],
)
def test_unsupported_networks_are_named(state, message, tmp_path):
    for use in (inspect, partial(load_backbone, backbone())):
        with pytest.raises(UserError, match=message):
            use(saved(tmp_path, {"model": state}))

"""Conversion of published checkpoints, complete or with ambiguous names."""

from functools import partial

import tespec.core.compat  # noqa: F401

import published_files as published
import pytest
import timm
import torch
from published_files import saved
from timm.models.swin_transformer import SwinTransformer, checkpoint_filter_fn

from tespec.core.errors import UserError
from tespec.models import EventResNet, EventSwin
from tespec.models.event_swin import SIZES
from tespec.weights.formats import convert
from tespec.weights.load import inspect, load_backbone, match_state

SOURCES = {
    "swin-microsoft": lambda arch: {"model": published.microsoft(arch)},
    "swin-timm": published.timm_new,
    "moby": published.moby,
    "ecddp": published.ecddp,
    "tespec-release": published.tespec_release,
}
QKV = "blocks.0.attn.qkv.weight"


def converted(state):
    return convert(state, {}, "file")


def backbone(recurrent=True):
    torch.manual_seed(1)
    return EventSwin(backbone="swin_micro", recurrent=recurrent, img_size=(224, 224)).eval()


@pytest.mark.parametrize("source", SOURCES)
def test_every_source_fills_the_backbone(tmp_path, source):
    path = saved(tmp_path, SOURCES[source]("swin_micro"))
    feedforward = load_backbone(backbone(recurrent=False), path)
    assert (feedforward.format, feedforward.coverage, feedforward.random) == (source, 1, ())
    model = backbone()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    report = load_backbone(model, path)
    without = source != "tespec-release"
    assert set(report.random) == {name for name in before if without and name.startswith("lstms.")}
    assert report.loaded + len(report.random) == report.total
    assert ("ConvLSTMs (8 tensors) are randomly initialised" in report.summary()) == without
    changed = {
        name for name, tensor in model.state_dict().items() if not torch.equal(tensor, before[name])
    }
    assert changed == set(before) - set(report.random)


@pytest.mark.parametrize("head", [True, False])
def test_a_swin_of_microsoft_is_read_as_timm_itself_reads_it(head):
    """The downsampling tells the format; the classifier is optional."""
    width, depths, heads = SIZES["swin_micro"]
    theirs = SwinTransformer(in_chans=20, embed_dim=width, depths=depths, num_heads=heads)
    state = published.microsoft(chans=20, head=head)
    expected = checkpoint_filter_fn(state, theirs)
    expected = {
        f"swin.{name}": tensor
        for name, tensor in expected.items()
        if not name.startswith(("norm.", "head."))
    }
    ours = converted(state).tensors
    assert ours.keys() == expected.keys()
    assert all(torch.equal(ours[name], tensor) for name, tensor in expected.items())
    parallel = published.under("module.", state)  # prefix of torch's DataParallel
    for same in (
        parallel,
        published.timm_new(chans=20, head=head),
        published.timm_features(chans=20),
    ):
        assert all(
            torch.equal(tensor, ours[name]) for name, tensor in converted(same).tensors.items()
        )


@pytest.mark.parametrize("extra", ["encoder_k.", "projector.", "queue"])
def test_names_next_to_an_encoder_identify_its_method(extra):
    model = published.moby()["model"]
    bare = {name: tensor for name, tensor in model.items() if name.startswith("encoder.")}
    renamed = converted(
        bare | {name: tensor for name, tensor in model.items() if name.startswith(extra)}
    )
    assert renamed.format.name == "moby"
    assert torch.equal(renamed.tensors[f"swin.layers.0.{QKV}"], model[f"encoder.layers.0.{QKV}"])
    with pytest.raises(
        UserError, match="holds a Swin Transformer as its encoder, but no key that identifies"
    ):
        converted(bare)


def test_ecddp_gives_the_student():
    model, name = published.ecddp()["model"], f"layers.0.{QKV}"
    renamed = converted(model)
    assert torch.equal(renamed.tensors[f"swin.{name}"], model[f"student.backbone.{name}"])
    assert any(entry.startswith("teacher (") for entry in renamed.unused)
    assert len(renamed.unused) < 20


def test_the_released_convlstm_computes_what_ours_does():
    state = published.tespec_release()["state_dict"]
    model = backbone()
    model.load_state_dict(converted(state).tensors)
    prefix = "model.encoder.lstm_blocks.1.conv1x1"
    maps, hidden, cell = torch.randn(3, 2, 3, 4, 48, generator=torch.Generator().manual_seed(0))
    joined = torch.cat((maps, hidden), -1).permute(0, 3, 1, 2)
    mixed = torch.nn.functional.conv2d(
        joined, state[f"{prefix}.weight"], state[f"{prefix}.bias"]
    ).permute(0, 2, 3, 1)
    forget, write, output = mixed[..., :144].sigmoid().chunk(3, -1)
    wanted_cell = forget * cell + write * mixed[..., 144:].tanh()
    _, got_hidden, got_cell = model.lstms[1](maps[None], hidden, cell)
    torch.testing.assert_close(got_cell, wanted_cell)
    torch.testing.assert_close(got_hidden, output * wanted_cell.tanh())


@pytest.mark.parametrize("chans", [2, 3, 6, 20])
def test_input_channels_are_repeated_and_cut(chans):
    state = published.timm_new(chans=chans)
    wide = match_state(converted(state), backbone()).tensors["swin.patch_embed.proj.weight"]
    assert torch.equal(wide, state["patch_embed.proj.weight"][:, torch.arange(20) % chans])


@torch.no_grad()
def test_resnet50_in_the_naming_of_torchvision():
    theirs = timm.create_model("resnet50", in_chans=2).eval()
    state = theirs.state_dict()
    old = converted({name: tensor for name, tensor in state.items() if "num_batches" not in name})
    renamed = converted(state)
    assert old.tensors.keys() == renamed.tensors.keys()
    assert (renamed.format.name, renamed.unused) == ("resnet50", ("fc (2)",))
    ours = EventResNet("resnet50", recurrent=False, img_size=(64, 64)).eval()
    ours.load_state_dict(match_state(renamed, ours).tensors)
    features, _ = ours(torch.ones(1, 1, 20, 64, 64))
    # 20 channels repeat 2 channels ten times
    expected = theirs.forward_features(torch.full((1, 2, 64, 64), 10.0))
    torch.testing.assert_close(features[-1].squeeze(1), expected, rtol=1e-3, atol=1e-3)


VIT = "is a vision transformer without stages .*in MoBY's README are swapped"
UNSUPPORTED = [
    ([f"encoder.{QKV}"], "is MoBY's DeiT-S"),
    ([QKV], VIT),
    ([f"backbone.{QKV}"], VIT),
    ([f"student.backbone.{QKV}"], "is ECDDP's ViT-S, whose code was not released"),
    (["backbone.stages.0.att_blocks.0.win_attn.qkv.weight"], "is SAST's detector"),
    (["mdl.backbone.stages.0.downsample_cf2cl.conv.weight"], "has RVT's stem, but other blocks"),
    (["unetrecurrent.head.conv2d.weight"], "is E2VID's network, as in OpenESS"),
    (["visual.transformer.resblocks.0.ln_1.weight"], "is CLIP's image encoder"),
    (
        ["codebook.weight", "encoder.0.0.weight"],
        "is MEM's tokenizer, an autoencoder, not a backbone",
    ),
    (
        [f"backbone.event_{QKV}", f"backbone.rgb_{QKV}"],
        "is CM3AE's pair of ViTs for events and frames",
    ),
    (["patch_embed.proj.weight", f"swin_block.0.{QKV}"], "is EventPretrain's Swin"),
    (
        ["temporal_block1.mlp.LTA.LTA_Block.weight", f"backbone.{QKV}"],
        "is STP's stem for a frozen image network",
    ),
    (["stages.0.blocks.0.attn.w_msa.qkv.weight"], "is OpenMMLab's Swin"),
    (
        ["swin.encoder.layers.0.blocks.0.attention.self.query.weight"],
        "is a Swin Transformer of Hugging Face",
    ),
    (["vit.embeddings.cls_token"], "has an unknown format"),  # Hugging Face's
    (["resnet.embedder.embedder.convolution.weight"], "has an unknown format"),
    (["conv.weight"], r"has an unknown format \(the first tensor is 'conv\.weight'\)"),
]
BARE = {name: tensor for name, tensor in published.timm_new().items() if "downsample" not in name}
BOTH_NAMINGS = {f"layers.{stage}.downsample.norm.weight": torch.zeros(1) for stage in (0, 3)}
NAMING = r"of layers\.0\.downsample and layers\.3\.downsample"
RELEASE = published.tespec_release()["state_dict"]
TWICE = {
    name.removeprefix("model."): tensor
    for name, tensor in RELEASE.items()
    if "pure_backbone" in name
}


@pytest.mark.parametrize(
    ("state", "message"),
    [
        *((dict.fromkeys(names, torch.zeros(1)), message) for names, message in UNSUPPORTED),
        *((state, NAMING) for state in (BARE, BARE | BOTH_NAMINGS)),
        (RELEASE | TWICE, r"holds swin\..* twice, under two names"),
    ],
)
def test_unsupported_and_ambiguous_networks_are_refused(state, message, tmp_path):
    for use in (inspect, partial(load_backbone, backbone())):
        with pytest.raises(UserError, match=message):
            use(saved(tmp_path, {"model": state}))

import argparse

import tespec.compat  # noqa: F401  # before timm

import pytest
import torch
from published_files import TINY, ecddp, microsoft, moby, released, swin, timm_new
from timm.models import create_model
from torch.nn.functional import sigmoid

from tespec.errors import UserError
from tespec.models import EventResNet, EventSwin
from tespec.weights.formats import rename
from tespec.weights.load import load_backbone, repeat_channels

SIZE = (224, 224)


def target(recurrent=False, channels=20, **options):
    torch.manual_seed(1)
    in_channels = None if channels == 20 else channels
    return EventSwin("micro", recurrent, img_size=SIZE, in_channels=in_channels, **options).eval()


def saved(content, tmp_path):
    path = tmp_path / "published.pth"
    torch.save(content, path)
    return path


FORMS = {
    "microsoft": microsoft,
    "timm": timm_new,
    "timm without head": lambda model: {k: v for k, v in timm_new(model).items() if not k.startswith("head.")},
    "timm features": lambda model: timm_new(model, dots=False),
    "old timm without head": lambda model: {k: v for k, v in model.state_dict().items() if not k.startswith("head.")},
    "moby": moby,
    "ecddp": ecddp,
    "data parallel": lambda model: {f"module.{k}": v for k, v in timm_new(model).items()},
}


@pytest.mark.parametrize("form", FORMS)
@torch.no_grad()
def test_the_converted_network_computes_what_the_published_names_mean(tmp_path, form):
    channels = 6 if form == "ecddp" else 3
    published = swin(channels)
    path = saved(FORMS[form](published), tmp_path)
    backbone = target(channels=channels)
    report = load_backbone(backbone, path)
    assert report.coverage == 1
    assert (report.adapted, report.fresh) == ((), ())
    images = torch.randn(2, channels, *SIZE)
    features, _ = backbone(images.unsqueeze(1))
    for ours, theirs in zip(features, published(images), strict=True):
        torch.testing.assert_close(ours.squeeze(1), theirs, rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_tespecs_release_with_its_memory(tmp_path):
    published = swin(channels=20)
    content = released(published)
    path = saved(content, tmp_path)
    backbone = target(recurrent=True)
    report = load_backbone(backbone, path)
    assert (report.coverage, report.fresh, report.unused) == (1, (), ("model.decoder.proj.weight",))
    assert report.format == "TESPEC's release"
    histograms = torch.randint(0, 4, (1, 1, 20, *SIZE)).float()
    features, _ = backbone(histograms)
    first = published(histograms[0])[0]
    weight = content["state_dict"]["model.encoder.lstm_blocks.0.conv1x1.weight"]
    bias = content["state_dict"]["model.encoder.lstm_blocks.0.conv1x1.bias"]
    gates = torch.nn.functional.conv2d(torch.cat([first, torch.zeros_like(first)], 1), weight, bias)
    _, write, output, cell = gates.chunk(4, dim=1)
    hidden = sigmoid(output) * torch.tanh(sigmoid(write) * torch.tanh(cell))
    torch.testing.assert_close(features[0][:, 0], hidden, rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_a_patch_embedding_is_repeated_over_the_bins_and_cut(tmp_path):
    published = swin(channels=3)
    backbone = target()
    report = load_backbone(backbone, saved(microsoft(published), tmp_path))
    assert report.adapted == ("swin.patch_embed.proj.weight",)
    kernel, ours = published.patch_embed.proj.weight, backbone.swin.patch_embed.proj.weight
    for channel in range(20):
        assert torch.equal(ours[:, channel], kernel[:, channel % 3])
    assert repeat_channels(torch.randn(8, 6, 4, 4), 20).shape == (8, 20, 4, 4)
    assert repeat_channels(torch.randn(8, 24, 4, 4), 20).shape == (8, 20, 4, 4)


def test_memory_that_images_cannot_give_starts_at_random_and_is_named(tmp_path):
    backbone, before = target(recurrent=True), target(recurrent=True)
    report = load_backbone(backbone, saved(moby(swin()), tmp_path))
    assert report.coverage == 1
    assert len(report.fresh) == 8
    assert all(name.startswith("lstms.") for name in report.fresh)
    for name in report.fresh:
        assert torch.equal(backbone.state_dict()[name], before.state_dict()[name])


def test_of_moby_the_online_encoder_and_of_ecddp_the_teacher_is_taken():
    published = swin()
    renamed = rename(moby(published)["model"])
    assert renamed.format.startswith("MoBY: Swin, downsampling at the end")
    assert torch.equal(
        renamed.tensors["swin.layers.0.blocks.0.norm1.weight"], published.layers[0].blocks[0].norm1.weight
    )
    assert "queue1" in renamed.unused
    teacher = swin(channels=6)
    renamed = rename(ecddp(teacher)["model"])
    assert renamed.format.startswith("ECDDP: Swin")
    key = "swin.layers.2.downsample.reduction.weight"
    assert torch.equal(renamed.tensors[key], teacher.layers[1].downsample.reduction.weight)
    assert "teacher.backbone.norm2.weight" in renamed.unused


def test_full_size_files_cover_swin_t_and_resnet_50(tmp_path):
    path = saved(microsoft(swin(classes=1000, **TINY)), tmp_path)
    backbone = EventSwin("tiny", recurrent=True, img_size=(448, 640))
    report = load_backbone(backbone, path)
    assert (report.coverage, report.adapted) == (1, ("swin.patch_embed.proj.weight",))
    resnet = create_model("resnet50", num_classes=1000, in_chans=2)
    torch.manual_seed(0)
    path = saved({"checkpoint": resnet.state_dict(), "args": 3}, tmp_path)
    ours = EventResNet("resnet50", img_size=(64, 64)).eval()
    report = load_backbone(ours, path)
    assert (report.coverage, report.adapted) == (1, ("resnet.conv1.weight",))
    assert report.unused == ("fc.bias", "fc.weight")
    features, _ = ours(torch.ones(1, 1, 20, 64, 64))
    theirs = resnet.eval().forward_features(torch.full((1, 2, 64, 64), 10.0))
    torch.testing.assert_close(features[-1].squeeze(1), theirs, rtol=1e-3, atol=1e-3)


def test_names_that_timm_gives_today_are_known(tmp_path):
    for features_only in (False, True):
        names = create_model("swin_tiny_patch4_window7_224", features_only=features_only).state_dict()
        backbone = EventSwin("tiny", recurrent=False, img_size=SIZE)
        assert load_backbone(backbone, saved(names, tmp_path)).coverage == 1


def half(model):
    return {k: v for k, v in timm_new(model).items() if "layers.2.blocks.1.mlp.fc1" not in k}


def broken(model):
    content = timm_new(model)
    content["layers.1.blocks.0.norm1.weight"] = content["layers.1.blocks.0.norm1.weight"] * float("nan")
    return content


MISTAKES = [
    (half, r"swin.layers.2.blocks.1.mlp.fc1.bias is missing|swin.layers.2.blocks.1.mlp.fc1.weight is missing"),
    (broken, r"layers.1.blocks.0.norm1.weight holds values that are not finite"),
    (lambda _: timm_new(swin(width=48)), r"swin.patch_embed.proj.weight is \(48, 3, 4, 4\), this model needs \(24, 20"),
    (lambda _: {"blocks.0.attn.qkv.weight": torch.ones(3), "pos_embed": torch.ones(2)}, r"holds a ViT or DeiT"),
    (lambda _: {"layer.weight": torch.ones(3)}, r"its names \(layer.weight, ...\) are of no known backbone"),
    (lambda model: {"model": microsoft(model), "args": argparse.Namespace(a=1)}, r"could run code"),
]


@pytest.mark.parametrize(("content", "message"), MISTAKES)
def test_what_does_not_fit_is_refused_and_nothing_is_loaded(tmp_path, content, message):
    backbone = target()
    before = {name: tensor.clone() for name, tensor in backbone.state_dict().items()}
    with pytest.raises(UserError, match=message):
        load_backbone(backbone, saved(content(swin()), tmp_path))
    assert all(torch.equal(tensor, before[name]) for name, tensor in backbone.state_dict().items())


def test_a_truncated_file_is_refused(tmp_path):
    path = saved(microsoft(swin()), tmp_path)
    path.write_bytes(path.read_bytes()[:-5000])
    with pytest.raises(UserError, match="not a readable torch file"):
        load_backbone(target(), path)

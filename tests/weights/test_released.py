"""Released backbones: files in the published layouts, made from twins, and their specifications.

Twins are timm's networks, or plain ones written here, with random weights and two blocks.
"""

import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import tespec.core.compat  # before timm

import numpy as np
import pytest
import timm
import torch
from event_files import PLAIN, random_events, rows_of
from made_records import pretraining
from published_files import ecddp, moby, saved, under
from short_runs import cell_spec
from timm.models.swin_transformer import SwinTransformer
from timm.models.vision_transformer import Block
from torch import nn

import tespec
from tespec.cli.main import main
from tespec.comparison.cell import recipe_of
from tespec.core.config import finetuning_settings
from tespec.core.errors import UserError
from tespec.core.settings import INPUTS, Binning, Downsample, input_settings
from tespec.datasets.recording import fixed_windows
from tespec.datasets.sources import EventSource
from tespec.events.histogram import Region
from tespec.events.representations import represent
from tespec.inference import find, load_trained, run_inference
from tespec.models import build_backbone, event_maxvit, event_swin
from tespec.models.backbone import backbones
from tespec.models.event_vit import VITS
from tespec.runs.data import Data, settings_of
from tespec.runs.finetune import finetune
from tespec.runs.references import require_supported
from tespec.tasks.base import random_backbone
from tespec.weights.files import write_weights
from tespec.weights.formats import convert
from tespec.weights.load import inspect, load_backbone, rewrite
from tespec.weights.released import FORMATS, REFUSED, UNAVAILABLE

CLOSE = {"rtol": 1e-5, "atol": 1e-5}
SIZE = (64, 96)


def randomised(model, seed=0):
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if not parameter.is_meta:
                parameter.copy_(torch.randn(parameter.shape, generator=draw) * 0.2)
    return model.eval()


def renamed(state, *pairs):
    for old, new in pairs:
        state = {re.sub(old, new, name): tensor for name, tensor in state.items()}
    return state


def ecdp(state):
    tokens = torch.cat([state.pop("cls_token"), state.pop("reg_token")], 1)
    momentum = {"encoder_k." + name: tensor + 1 for name, tensor in state.items()}
    head = {"encoder_q.event_head.weight": torch.zeros(8, 8), "pred1.weight": torch.zeros(2)}
    return {
        "checkpoint": under("encoder_q.", state | {"tokens": tokens}) | momentum | head,
        "optimizer": {},
    }


def mem(state):
    tables = [name for name in state if name.endswith("relative_position_bias_table")]
    shared = {"rel_pos_bias.relative_position_bias_table": state[tables[0]]}
    state = {name: tensor for name, tensor in state.items() if name not in tables}
    extra = dict.fromkeys(("mask_token", "norm.weight", "lm_head.weight"), torch.zeros(1))
    index = {"rel_pos_bias.relative_position_index": torch.zeros(197, 197, dtype=torch.int64)}
    return {"model": state | shared | extra | index, "optimizer": {}}


def gep(state):
    token = state["cls_token"]
    first = torch.linspace(-1, 1, token.shape[2]).expand_as(token)  # no norm removes it
    positions = torch.cat([first, state["pos_embed"]], 1)
    state |= {"cls_token": state["cls_token"] - first, "pos_embed": positions}
    return {"event_encoder": renamed(state, ("reg_token", "register_tokens"))}


def depthanyevent(state):
    return under("pretrained.", state | {"mask_token": torch.zeros(1)}) | {
        "depth_head.weight": torch.zeros(1)
    }


def eventpretrain(state):
    return {"model": under("pretrain_encoder.", state) | {"head.weight": torch.zeros(1)}}


def scaleevent(state):
    for name in [name for name in state if name.endswith("q_bias")]:
        query, value = state.pop(name), state.pop(name.replace("q_bias", "v_bias"))
        bias = torch.cat([query, torch.ones_like(query), value])
        state[name.replace("q_bias", "qkv.bias")] = bias
        state[name.replace("q_bias", "qkv.bias_mask")] = torch.zeros(3 * len(query))
    state |= {"rope_embed.periods": torch.zeros(2), "mask_token": torch.zeros(1)}
    names = ("reg_token", "storage_tokens"), (r"gamma_(\d)", r"ls\1.gamma")
    return under("module.event_encoder.", renamed(state, *names))


class EventPretrain(nn.Module):
    """Patches, norm and GELU, positions without a class token, blocks."""

    def __init__(self, depth=2, embed_dim=48):
        super().__init__()
        self.patch_embed = nn.Module()
        self.patch_embed.proj = nn.Conv2d(5, embed_dim, 16, 16)
        self.patch_embed.norm = nn.LayerNorm(embed_dim)
        self.pos_embed = nn.Parameter(torch.zeros(1, 196, embed_dim))
        norm = timm.layers.LayerNorm  # epsilon 1e-6
        blocks = (Block(embed_dim, 12, qkv_bias=True, norm_layer=norm) for _ in range(depth))
        self.vit_block = nn.ModuleList(blocks)
        self.norm_layer = norm(embed_dim)

    def forward_intermediates(self, frames, **_):
        patches = self.patch_embed.proj(frames).permute(0, 2, 3, 1)
        tokens = nn.functional.gelu(self.patch_embed.norm(patches)).flatten(1, 2) + self.pos_embed
        features = []
        for block in self.vit_block:
            tokens = block(tokens)
            features.append(tokens.mT.unflatten(2, (14, 14)))
        return features


def of_timm(name, **options):
    return lambda **size: timm.create_model(name, num_classes=0, global_pool="", **options, **size)


# layout of the file, name of the network, its twin, heads that the width allows
VIT_CASES = {
    "vit_small_ecdp": (
        ecdp,
        of_timm(
            "vit_small_patch16_224", in_chans=2, num_heads=12, reg_tokens=1, no_embed_class=True
        ),
    ),
    "vit_base_mem": (mem, of_timm("beit_base_patch16_224", in_chans=3)),
    "vit_small_gep": (gep, of_timm("vit_small_patch14_reg4_dinov2")),
    "vit_base_gep": (gep, of_timm("vit_base_patch14_reg4_dinov2")),
    "vit_small_depthanyevent": (depthanyevent, of_timm("vit_small_patch14_dinov2")),
    "vit_small_eventpretrain": (eventpretrain, EventPretrain),
    "vit_small_scaleevent": (scaleevent, of_timm("vit_small_patch16_dinov3_qkvb", img_size=224)),
    "vit_base_scaleevent": (scaleevent, of_timm("vit_base_patch16_dinov3_qkvb", img_size=224)),
    "vit_large_scaleevent": (scaleevent, of_timm("vit_large_patch16_dinov3_qkvb", img_size=224)),
}


@pytest.fixture
def call(capsys):
    """Function that runs `tespec ...` in this process; returns exit code and stdout."""

    def called(*words):
        code = main([str(word) for word in words])
        return code, capsys.readouterr().out

    return called


@pytest.fixture
def small(monkeypatch):
    """Reduce a network to two blocks of few channels, and return its twin."""

    def reduce(name):
        width = 4 * VITS[name].heads
        spec = replace(VITS[name], width=width, depth=2, blocks=(0, 0, 1, 1))
        monkeypatch.setitem(VITS, name, spec)
        layout, make = VIT_CASES[name]
        twin = randomised(make(depth=2, embed_dim=width))
        if name == "vit_base_mem":  # one table for all blocks
            tables = [block.attn.relative_position_bias_table for block in twin.blocks]
            tables[1].data.copy_(tables[0])
        return layout, twin

    return reduce


@pytest.mark.parametrize("name", [name for name in VIT_CASES if "large" not in name])
@torch.no_grad()
def test_a_published_vit_has_the_features_of_its_twin(tmp_path, small, name):
    layout, twin = small(name)
    path = saved(tmp_path, layout(dict(twin.state_dict())))
    backbone = tespec.load(path, height=224, width=224)
    assert (backbone.name, backbone.recurrent, backbone.img_size) == (name, False, (224, 224))
    if VITS[name].patch == 14:  # made for 518 px
        twin.set_input_size((224, 224))
    frames = torch.randn(1, backbone.in_channels, 224, 224)
    options = {"norm": VITS[name].norm, "intermediates_only": True}
    expected = twin.forward_intermediates(frames, **options)[1]
    features, _ = backbone.step(frames)
    if VITS[name].patch == 14:
        expected = nn.functional.interpolate(expected, scale_factor=14 / 16, mode="bilinear")
    torch.testing.assert_close(features[2], expected, **CLOSE)
    pooled = nn.functional.max_pool2d(expected, 2)
    torch.testing.assert_close(features[3], pooled, **CLOSE)


@pytest.mark.parametrize("name", VIT_CASES)
def test_names_and_shapes_at_full_size_are_those_of_the_published_network(name):
    layout, make = VIT_CASES[name]
    with torch.device("meta"):
        sizes = {key: getattr(VITS[name], key) for key in ("depth", "width")}
        twin = make(depth=sizes["depth"], embed_dim=sizes["width"])
        content = layout(dict(twin.state_dict()))
        tensors = next(iter(content.values())) if len(content) < 3 else content
        converted = convert(tensors, {}, "file").tensors
        channels = converted["vit.patch_embed.proj.weight"].shape[1]
        ours = build_backbone(name, False, 10, (224, 224), channels)
        shapes = {key: tensor.shape for key, tensor in ours.resize(converted, (224, 224)).items()}
    expected = {key: tensor.shape for key, tensor in ours.state_dict().items() if key[:4] == "vit."}
    assert shapes == expected


class Rvt(nn.Module):
    """RVT without its detector, one window at a time."""

    def __init__(self, width, head, channels=20):
        super().__init__()
        self.head = head
        self.stages = nn.ModuleList()
        for stage in range(4):
            out, inputs = width << stage, width << stage >> 1 if stage else channels
            part = nn.Module()
            part.downsample_cf2cl = nn.Module()
            kernel, stride, padding = (3, 2, 1) if stage else (7, 4, 3)
            convolution = nn.Conv2d(inputs, out, kernel, stride, padding, bias=False)
            part.downsample_cf2cl.conv = convolution
            part.downsample_cf2cl.norm = nn.LayerNorm(out)
            pair = nn.Module()
            pair.att_window, pair.att_grid = self.attention(out), self.attention(out)
            pair.att_window.norm1 = nn.Identity()
            part.att_blocks = nn.ModuleList([pair])
            part.lstm = nn.Module()
            part.lstm.conv1x1 = nn.Conv2d(2 * out, 4 * out, 1)
            self.stages.append(part)

    def attention(self, width):
        part = nn.Module()
        part.norm1, part.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        part.self_attn = nn.Module()
        part.self_attn.qkv = nn.Linear(width, 3 * width)
        part.self_attn.proj = nn.Linear(width, width)
        part.ls1, part.ls2 = nn.Module(), nn.Module()
        part.ls1.gamma, part.ls2.gamma = (nn.Parameter(torch.ones(width)) for _ in range(2))
        part.mlp = nn.Module()
        first = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU())
        part.mlp.net = nn.Sequential(first, nn.Dropout(0), nn.Linear(4 * width, width))
        return part

    def attend(self, part, tokens):
        """Tokens (L, C) of one window; a head's query, key and value are next to each other."""
        split = part.self_attn.qkv(tokens).unflatten(1, (-1, 3 * self.head)).transpose(0, 1)
        query, key, value = split.chunk(3, 2)
        weights = (query @ key.mT / self.head**0.5).softmax(2)
        return part.self_attn.proj((weights @ value).transpose(0, 1).flatten(1))

    def block(self, part, maps, window, grid):
        rows, columns = window
        normed, attended = part.norm1(maps), torch.zeros_like(maps)
        for top in range(maps.shape[0] // rows):
            for left in range(maps.shape[1] // columns):
                index = (
                    slice(top * rows, (top + 1) * rows),
                    slice(left * columns, (left + 1) * columns),
                )
                if grid:
                    steps = maps.shape[0] // rows, maps.shape[1] // columns
                    index = slice(top, None, steps[0]), slice(left, None, steps[1])
                tokens = normed[index]
                result = self.attend(part, tokens.flatten(0, 1))
                attended[index] = result.unflatten(0, tokens.shape[:2])
        maps = maps + part.ls1.gamma * attended
        return maps + part.ls2.gamma * part.mlp.net(part.norm2(maps))

    def forward(self, frame, window):
        """Features of a frame (C, H, W) without a past."""
        features = []
        for stage in self.stages:
            down, pair = stage.downsample_cf2cl, stage.att_blocks[0]
            maps = down.norm(down.conv(frame).permute(1, 2, 0))
            maps = self.block(pair.att_window, maps, window, grid=False)
            maps = self.block(pair.att_grid, maps, window, grid=True).permute(2, 0, 1)
            mixed = stage.lstm.conv1x1(torch.cat([maps, torch.zeros_like(maps)]))
            _, write, output, candidate = mixed.chunk(4)
            frame = output.sigmoid() * (write.sigmoid() * candidate.tanh()).tanh()
            features.append(frame)
        return features


def rvt_file(folder, twin):
    state = under("mdl.backbone.", twin.state_dict()) | {"mdl.fpn.weight": torch.zeros(1)}
    return saved(folder, {"state_dict": state, "epoch": 1})


@torch.no_grad()
def test_rvt_has_the_features_of_its_twin_with_the_windows_of_its_training(
    tmp_path, monkeypatch, call
):
    monkeypatch.setitem(event_maxvit.SIZES, "maxvit_small", (16, 8))
    twin = randomised(Rvt(16, 8))
    path = rvt_file(tmp_path, twin)
    frame = torch.randint(0, 3, (1, 20, 96, 160))
    backbone = tespec.load(path, height=96, width=160)
    assert (backbone.name, backbone.recurrent, backbone.bins) == ("maxvit_small", True, 10)
    features, _ = backbone.step(frame)
    expected = twin(frame[0].float(), window=(3, 5))
    torch.testing.assert_close([feature[0] for feature in features], expected, **CLOSE)
    other = twin(frame[0].float(), window=(6, 5))
    assert (other[0] - expected[0]).abs().max() > 1e-3
    assert tespec.load(path).img_size == (256, 320)
    assert "8 x 10 tokens on Gen1, 6 x 10 on 1Mpx" in call("weights", "inspect", path)[1]


@torch.no_grad()
def test_ecddps_features_pass_its_norms(tmp_path, monkeypatch):
    sizes = (24, (2, 2, 2, 2), (1, 2, 4, 8))
    monkeypatch.setitem(event_swin.SIZES, "swin_tiny_ecddp", sizes)
    width, depths, heads = sizes
    norm = partial(nn.LayerNorm, eps=1e-6)
    options = {"embed_dim": width, "depths": depths, "num_heads": heads, "norm_layer": norm}
    twin = randomised(SwinTransformer(192, 4, 6, 0, **options))
    norms = randomised(nn.ModuleList(norm(width << stage) for stage in range(4)), seed=1)
    names = (r"layers\.(\d)\.downsample", lambda match: f"layers.{int(match[1]) - 1}.downsample")
    state = renamed(dict(twin.state_dict()), names)
    state |= renamed(norms.state_dict(), (r"^(\d)", r"norm\1")) | {"mask_token": torch.zeros(1)}
    path = saved(tmp_path, {"model": under("student.backbone.", state), "current_epoch": 1})
    backbone = tespec.load(path)
    assert backbone.name == "swin_tiny_ecddp"
    frame = torch.randn(1, 20, 192, 192)
    # 20 channels repeat 6 channels
    summed = torch.stack([frame[:, channel::6].sum(1) for channel in range(6)], 1)
    maps, expected = twin.patch_embed(summed), []
    for layer, norm in zip(twin.layers, norms, strict=True):
        maps = layer(maps)
        expected.append(norm(maps).permute(0, 3, 1, 2))
    torch.testing.assert_close(backbone.step(frame)[0], expected, rtol=1e-4, atol=1e-4)
    del state["norm2.weight"]
    path = saved(tmp_path, {"model": under("student.backbone.", state)})
    with pytest.raises(UserError, match=r"necks\.2\.weight is missing"):
        tespec.load(path)


BLOCK = "blocks.1.mlp.fc1.bias"
WRONG = [
    *((name, {BLOCK: None}, r"blocks\.1\.mlp\.fc1\.bias is missing") for name in VIT_CASES),
    *((name, {"blocks.2.norm1.bias": 1}, "has no counterpart") for name in VIT_CASES),
    ("vit_small_ecdp", {"tokens": None}, "is no complete file of ECDP's ViT-S/16 .'vit.tokens'"),
    ("vit_small_gep", {"pos_embed": (1, 1, 24)}, "vit.pos_embed has shape"),
    ("vit_small_gep", {"pos_embed": 1}, "is no complete file of GEP's ViT/14"),
    # another number of heads
    ("vit_base_mem", {"rel_pos_bias.relative_position_bias_table": (732, 6)}, r"needs \(732, 12\)"),
    ("vit_small_eventpretrain", {"patch_embed.norm.weight": None}, r"norm\.0\.weight is missing"),
]


@pytest.mark.parametrize(("name", "changes", "message"), WRONG)
def test_a_file_that_is_not_the_published_network_is_refused(
    tmp_path, small, name, changes, message
):
    layout, twin = small(name)
    content = layout(dict(twin.state_dict()))
    tensors = next(iter(content.values())) if len(content) < 3 else content
    stem = next(key for key in tensors if key.endswith("patch_embed.proj.weight"))
    prefix = stem.removesuffix("patch_embed.proj.weight")
    for key, shape in changes.items():
        key = prefix + (key.replace("blocks", "vit_block") if "eventp" in name else key)
        tensors.pop(key, None)
        if shape is not None:
            tensors[key] = torch.zeros(shape)
    with pytest.raises(UserError, match=message):
        tespec.load(saved(tmp_path, content))


def test_another_input_is_refused_in_one_line_that_names_both(tmp_path, small):
    layout, twin = small("vit_small_ecdp")
    path = saved(tmp_path, layout(dict(twin.state_dict())))
    message = (
        r"takes 2 channels of representation ecdp \(2 channels, counts of positive and negative "
        r"events of .* at 224 px\), but this model 20 of .* any; the file is ECDP's ViT-S"
    )
    with pytest.raises(UserError, match=message):
        load_backbone(build_backbone("vit_small_ecdp", False, 10, (224, 224)), path)


def test_inspection_says_what_matched_and_what_the_tensors_do_not_show(tmp_path, small, call):
    layout, twin = small("vit_small_ecdp")
    path = saved(tmp_path, layout(dict(twin.state_dict())))
    code, out = call("weights", "inspect", path)
    assert code == 0
    for part in (
        "format   ecdp-vit: ECDP's ViT-S/16",
        "assumed  12 heads, norm epsilon 1e-6",
        "licence  none",
        "vit_small_ecdp, feed-forward yes: 31 of 39 tensors of the backbone; the necks (8",
    ):
        assert part in out


@pytest.mark.parametrize("name", ["vit_small_ecdp", "vit_base_mem", "vit_small_gep"])
def test_a_converted_file_has_the_features_of_the_published_one_at_any_size(
    tmp_path, small, call, name
):
    path, converted = made(tmp_path, small, name), tmp_path / "converted.safetensors"
    assert call("weights", "convert", path, converted)[0] == 0
    for size in ((224, 224), SIZE):
        one, other = (
            tespec.load(file, height=size[0], width=size[1]) for file in (path, converted)
        )
        frames = torch.randn(1, one.in_channels, *size)
        assert torch.equal(one.step(frames)[0][2], other.step(frames)[0][2])


def test_every_format_and_every_refused_network_is_listed(call):
    out = call("weights", "list")[1]
    page = (Path(__file__).parents[2] / "docs" / "weights.md").read_text()
    assert all(f"`{known.name}`" in page and known.title in out for known in FORMATS)
    assert all(reason in out for reason in REFUSED.values())
    assert all(name in out for name in UNAVAILABLE)
    assert {name for known in FORMATS for name in known.networks} <= set(backbones())


def made(folder, small, name):
    """File of a published network, reduced to two blocks."""
    layout, twin = small(name)
    return saved(folder, layout(dict(twin.state_dict())))


def run_settings(name, *changes, arch="feedforward"):
    return finetuning_settings("ddd17", arch, "sample", changes, network=name)


@pytest.mark.parametrize("name", INPUTS)
@torch.no_grad()
def test_a_run_gives_a_published_backbone_the_input_of_its_authors(tmp_path, small, name):
    path = made(tmp_path, small, name)
    settings = run_settings(name)
    file_format = next(known for known in FORMATS if name in known.networks)
    assert settings.binning.representation == file_format.representation
    assert input_settings(name) in file_format.facts()["settings"]
    backbone = random_backbone(settings, SIZE)
    report = load_backbone(backbone, path)
    assert (report.loaded + len(report.random), report.stem) == (report.total, "")
    assert all(part.startswith("necks.") for part in report.random)
    recording = fixed_windows(
        "made", EventSource(write_events(tmp_path), SIZE), 50.0, Downsample(1, "all")
    )
    frames = recording.histograms(0, 2, settings.binning)
    start, end = recording.windows[1].tolist()
    count = settings.last_events
    events = recording.stream.slice(0 if count else start, end)
    plain = PLAIN[settings.representation](rows_of(events)[-(count or 0) :], settings.bins, SIZE)
    torch.testing.assert_close(torch.from_numpy(frames[1]), torch.tensor(plain).float(), **CLOSE)
    features, _ = backbone(torch.from_numpy(frames)[None])
    assert all(feature.isfinite().all() for feature in features)


@pytest.mark.parametrize("name", INPUTS)
@torch.no_grad()
def test_the_padding_of_a_published_backbone_has_no_events(tmp_path, small, name):
    small(name)
    settings = run_settings(name)
    backbone = random_backbone(settings, (50, 70)).eval()
    assert backbone.img_size == SIZE
    stream = EventSource(write_events(tmp_path, 50, 70), SIZE).stream
    inside, padded = (
        represent(stream, (0, 50_000), settings.binning, region)
        for region in (Region(50, 70), Region(*SIZE))
    )
    features, _ = backbone(torch.from_numpy(inside)[None, None])
    expected, _ = backbone(torch.from_numpy(padded)[None, None])
    torch.testing.assert_close(features, expected)


@pytest.mark.parametrize("name", INPUTS)
def test_a_loaded_backbone_pads_as_in_a_run(tmp_path, small, name):
    path = made(tmp_path, small, name)
    backbone = tespec.load(path, height=50, width=70)
    assert backbone.img_size == SIZE
    expected = random_backbone(run_settings(name), (50, 70)).empty_pixel
    assert torch.equal(backbone.empty_pixel, expected)
    backbone.step(torch.zeros(1, backbone.in_channels, 50, 70))


def write_events(folder, height=SIZE[0], width=SIZE[1]):
    events = random_events(60_000, height=height, width=width, end=120_000)
    path = folder / "events.npz"
    np.savez(path, **events._asdict())
    return path


STEM = "vit.patch_embed.proj.weight"
UNKNOWN_INPUT = [name for name in VIT_CASES if name not in INPUTS and "large" not in name]


@pytest.mark.parametrize("name", UNKNOWN_INPUT)
@pytest.mark.parametrize("representation", ["gep", "histogram"])
def test_a_backbone_whose_input_no_code_makes_needs_a_new_stem(
    tmp_path, small, name, representation
):
    path = made(tmp_path, small, name)
    with pytest.raises(
        UserError, match=r"3 channels of an input that no public code makes \(.*or --new-stem if"
    ) as error:
        load_backbone(
            random_backbone(run_settings(name, f"representation={representation}"), SIZE), path
        )
    assert "\n" not in str(error.value)
    changes = (f"representation={representation}", "new_stem=true")
    backbone = random_backbone(run_settings(name, *changes), SIZE)
    before = backbone.state_dict()[STEM].clone()
    report = load_backbone(backbone, path)
    assert torch.equal(backbone.state_dict()[STEM], before)
    assert report.facts()["stem"] == "new"
    assert {part for part in report.random if "necks" not in part} == {STEM, STEM[:-6] + "bias"}
    assert "the necks and the first convolution (10 tensors) are random" in report.summary()


def test_a_repeated_stem_is_recorded_and_a_new_one_replaces_it(tmp_path):
    path = saved(tmp_path, moby())
    reports = {}
    for new in ("false", "true"):
        backbone = random_backbone(run_settings("swin_micro", f"new_stem={new}"), SIZE)
        reports[new] = load_backbone(backbone, path)
    stem = "swin.patch_embed.proj.weight"
    assert (reports["false"].stem, reports["true"].stem) == ("repeated", "new")
    assert stem in reports["false"].adapted
    assert stem not in reports["true"].adapted
    assert "stem repeated" in reports["false"].summary()


def test_a_converted_file_still_says_that_its_stem_was_repeated(tmp_path):
    tensors, recipe = rewrite(inspect(saved(tmp_path, moby())))
    converted = tmp_path / "converted.safetensors"
    write_weights(converted, tensors, recipe)
    report = load_backbone(random_backbone(run_settings("swin_micro"), SIZE), converted)
    assert (report.stem, report.adapted[0]) == ("repeated", "swin.patch_embed.proj.weight")


def test_images_that_a_teacher_from_a_file_has_seen_are_marked(tmp_path):
    backbone = random_backbone(run_settings("swin_micro"), SIZE)
    recipe = {"backbone": "swin_micro", "recurrent": False, "bins": 10, "sensor": list(SIZE)}
    recipe |= recipe_of(pretraining("ecdp", start="own weights"), 0)
    recipe["objective"] = {"type": "ecdp", "teacher": "a_timm_model"}
    path = tmp_path / "backbone.safetensors"
    write_weights(path, backbone.state_dict(), recipe)
    assert load_backbone(backbone, path).facts()["seen"] == {
        "images": "by its teacher, a_timm_model"
    }
    recipe["objective"] = {"type": "mine"}  # its network from a file is no teacher of images
    write_weights(path, backbone.state_dict(), recipe)
    assert load_backbone(backbone, path).facts()["seen"] == {}


def test_a_new_stem_needs_a_backbone_that_names_it(tmp_path, monkeypatch):
    backbone = random_backbone(run_settings("swin_micro", "new_stem=true"), SIZE)
    monkeypatch.setattr(type(backbone), "stem", "")
    with pytest.raises(UserError, match="does not name its first convolution; set `stem`"):
        load_backbone(backbone, saved(tmp_path, moby()))


def test_voxels_are_no_counts_of_as_many_channels(tmp_path):
    path = saved(tmp_path, ecddp())  # of 6 channels
    for changes in (("bins=3",), ("bins=6", "representation=voxels")):
        backbone = random_backbone(run_settings("swin_micro", *changes), SIZE)
        if "bins=3" in changes:
            message = r"6 channels of representation voxels \(.*, but this model 6 of .* histogram"
            with pytest.raises(UserError, match=message):
                load_backbone(backbone, path)
        else:
            assert load_backbone(backbone, path).stem == ""


def test_a_new_stem_is_refused_if_only_a_head_or_nothing_is_trained():
    with pytest.raises(UserError, match="new_stem: leaves the first convolution random, but only"):
        finetuning_settings("ddd17", "feedforward", "smoke", ["new_stem=true"], frozen=True)
    with pytest.raises(UserError, match="but a probe trains nothing; leave out --probe"):
        require_supported(run_settings("swin_micro", "new_stem=true"), is_probe=True)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        (
            "vit_small_ecdp",
            ("representation=histogram", "last_events=null"),
            r"takes 2 channels of representation ecdp \(.* model 20 of representation histogram; ",
        ),
        ("vit_small_ecdp", ("representation=voxels", "bins=2"), r"ecdp \(.* 2 of .* voxels; the"),
        ("vit_small_eventpretrain", ("bins=6",), r"5 channels of .* voxels \(.* 6 of .* voxels; "),
        ("vit_base_mem", ("representation=gep",), r"mem \(.*, but this model 3 of .* gep; the"),
    ],
)
def test_a_published_backbone_refuses_another_input(tmp_path, small, name, changes, message):
    path = made(tmp_path, small, name)
    backbone = random_backbone(run_settings(name, *changes), SIZE)
    with pytest.raises(UserError, match=message):
        load_backbone(backbone, path)
    converted = tmp_path / "converted.safetensors"
    tensors, recipe = rewrite(inspect(path))
    write_weights(converted, tensors, recipe)
    with pytest.raises(UserError, match=message):
        load_backbone(backbone, converted)


def test_weights_of_another_network_are_refused_with_its_name(tmp_path, small):
    backbone = random_backbone(run_settings("swin_micro"), SIZE)
    message = "is missing, .*; the file is ECDP's ViT-S/16, for --backbone vit_small_ecdp; give"
    with pytest.raises(UserError, match=message):
        load_backbone(backbone, made(tmp_path, small, "vit_small_ecdp"))


@pytest.mark.parametrize(
    ("changes", "spec", "message"),
    [
        (("last_events=null", "representation=ecpd"), {}, "representation: 'ecpd' is not allowed"),
        (("representation=histogram",), {}, "last_events: is set, but histograms divide the time"),
        ((), {"checkpoint": None}, "representation ecdp: this run pre-trains the backbone on hist"),
        (
            ("new_stem=true",),
            {"checkpoint": None, "method": "gep"},
            "--new-stem: this run has no pre-training; remove it",
        ),
    ],
)
def test_settings_of_inputs_that_contradict_each_other_are_refused(
    tmp_path, changes, spec, message
):
    def validate():
        settings = run_settings("vit_small_ecdp", *changes)
        options = {"method": "ecdp", "settings": settings} | spec
        cell_spec(tmp_path, tmp_path, "ddd17", "feedforward", **options).validate()

    with pytest.raises(UserError, match=message):
        validate()


@pytest.mark.slow
def test_a_published_backbone_is_fine_tuned_evaluated_and_streamed_on_its_input(
    tiny_world, tmp_path, small
):
    path = made(tmp_path, small, "vit_small_ecdp")
    data = Data(tiny_world / "ddd17", "sample")
    changes = ["optimisation.steps=2", "last_events=500"]
    settings = settings_of(data, "ddd17", "feedforward", "smoke", changes, "vit_small_ecdp")
    spec = cell_spec(
        tiny_world, tmp_path, method="ecdp", settings=settings, checkpoint=path, data=data
    )
    record = finetune(spec)
    assert record.weights.format == "ecdp-vit"
    assert record.config["representation"] == "ecdp"
    assert set(record.cell.overrides) == {change.partition("=")[0] for change in changes}
    assert record.protocol["histograms"] == (
        "2 channels, representation ecdp of the last 500 events"
    )
    weights = spec.setup.runs / record.name / "model.safetensors"
    network = load_trained(weights)
    assert (network.spec.representation, network.spec.last_events) == ("ecdp", 500)
    recording = find("dir2", network.spec, network.settings, data.root)
    label = int(recording.label_indices[-1])
    (prediction,) = run_inference(network, recording, [label])
    assert (prediction.histogram == recording.histograms(label, 1, Binning(10, "edges"))[0]).all()
    times, masks = zip(*tespec.stream("dir2", weights, data=data.root), strict=True)
    assert times == tuple(recording.windows[:, 1].tolist())
    for window in (0, len(masks) - 1):
        limits = recording.windows[window].tolist()
        frame = represent(recording.stream, limits, settings.binning, recording.region)
        output, _ = network.model.step(torch.from_numpy(frame)[None])
        assert (masks[window] == output[0].numpy()).mean() > 0.99

"""Weights into backbones: what fits, what is adapted, and what is refused before anything is loaded."""

import published_files as published
import pytest
import timm
import torch
from published_files import saved
from safetensors.torch import save_file

import tespec
from tespec.core.errors import UserError
from tespec.core.registry import BACKBONES
from tespec.models import EventMaxViT, EventSwin
from tespec.weights.export import inspect, rewrite, timm_state
from tespec.weights.files import write_weights
from tespec.weights.load import load_backbone

SIZE = (96, 160)
RECIPE = {"width": "micro", "recurrent": True, "bins": 10, "sensor": [90, 150]}


def backbone(seed=1, **kwargs):
    torch.manual_seed(seed)
    return EventSwin(arch="micro", img_size=kwargs.pop("img_size", SIZE), **kwargs).eval()


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "backbone.safetensors"
    write_weights(path, backbone(0).state_dict(), RECIPE)
    return path


def test_loads_the_whole_backbone(file):
    model = backbone(1)
    report = load_backbone(model, file)
    assert report.coverage == 1
    assert (report.unused, report.adapted, report.recipe) == ((), (), RECIPE)
    for name, tensor in backbone(0).state_dict().items():
        assert torch.equal(model.state_dict()[name], tensor), name


def test_a_feedforward_backbone_takes_the_swin_and_names_the_rest(file):
    model = backbone(1, recurrent=False)
    report = load_backbone(model, file)
    assert report.coverage == 1
    assert report.unused
    assert all(name.startswith("lstms.") for name in report.unused)


def test_load_gives_a_backbone_ready_for_streaming(file):
    model = tespec.load(file)
    assert (model.arch, model.recurrent, model.img_size, model.training) == ("micro", True, SIZE, False)
    features, state = model.step(torch.ones(1, 20, 90, 150, dtype=torch.uint8))
    expected, _ = backbone(0).step(torch.ones(1, 20, 90, 150, dtype=torch.uint8))
    assert all(torch.equal(one, other) for one, other in zip(features, expected, strict=True))
    assert model.step(torch.zeros(1, 20, 90, 150), state)[1] is not None
    assert tespec.load(file, height=200, width=346).img_size == (224, 352)


def test_load_needs_a_recipe(tmp_path):
    path = tmp_path / "bare.safetensors"
    save_file(backbone(0).state_dict(), path)
    with pytest.raises(UserError, match="holds no recipe"):
        tespec.load(path)


@pytest.fixture
def theirs(monkeypatch):
    """A backbone whose names are those of no published source."""

    class Theirs(EventMaxViT):
        architectures = ("theirs", "maxvit-micro")
        stem = "pyramid.0.reduce.weight"

        def __init__(self, arch, **settings):
            super().__init__("maxvit-micro", **settings)
            self.arch = arch
            self.pyramid = self.stages
            del self.stages

        def embed_patches(self, frames):
            return frames.to(self.pyramid[0].reduce.weight.dtype).permute(0, 2, 3, 1)

        def stage_modules(self):
            return list(self.pyramid)

    monkeypatch.setitem(BACKBONES.module_dict, "Theirs", Theirs)
    return Theirs


THEIRS = RECIPE | {"width": "theirs"}


def test_names_that_the_harness_wrote_are_taken_as_they_are(theirs, tmp_path):
    path = tmp_path / "theirs.safetensors"
    torch.manual_seed(0)
    written = theirs("theirs", recurrent=True, bins=10, img_size=SIZE)
    write_weights(path, written.state_dict(), THEIRS)
    loaded = tespec.load(path)
    assert all(torch.equal(tensor, loaded.state_dict()[name]) for name, tensor in written.state_dict().items())
    contents = inspect(path)
    assert (contents.arch, contents.converted.format.name, contents.converted.unused) == ("theirs", "tespec", ())
    assert [match.problems for match in contents.matches.values()] == [(), ()]
    tensors, recipe = rewrite(contents)
    assert recipe["width"] == "theirs"
    with pytest.raises(UserError, match="timm has no such network"):
        timm_state(tensors)
    write_weights(path, written.state_dict() | {"more": torch.zeros(1)}, THEIRS)
    with pytest.raises(UserError, match="more has no place in this model"):
        tespec.load(path)


def test_a_trained_network_with_a_head_is_no_backbone(tmp_path):
    path = tmp_path / "model.safetensors"
    state = {f"backbone.{name}": tensor for name, tensor in backbone(0).state_dict().items()}
    write_weights(path, state, RECIPE | {"kind": "segmentation"})
    with pytest.raises(UserError, match="holds a network with the head of segmentation; give backbone"):
        load_backbone(backbone(1), path)


def test_rescaling_reaches_the_backbone(tmp_path):
    path = saved(tmp_path, published.microsoft())
    plain, rescaled = (backbone(recurrent=False, img_size=(224, 224)) for _ in range(2))
    assert load_backbone(plain, path).adapted == ("swin.patch_embed.proj.weight",)
    load_backbone(rescaled, path, rescale=True)
    ratio = rescaled.swin.patch_embed.proj.weight / plain.swin.patch_embed.proj.weight
    torch.testing.assert_close(ratio, torch.full_like(ratio, 3 / 20))


def test_turned_windows_are_told_apart_though_their_tables_have_one_shape(file):
    assert load_backbone(backbone(), file).adapted == ()
    adapted = load_backbone(backbone(img_size=(160, 96)), file).adapted
    assert [name for name in adapted if name.startswith("swin.layers.3.")]


def test_own_weights_without_convlstms_need_a_recipe_that_says_so(tmp_path):
    path = tmp_path / "own.safetensors"
    recipe = {key: RECIPE[key] for key in ("width", "bins", "sensor")}
    state = backbone(0, recurrent=False).state_dict()
    write_weights(path, state, recipe | {"recurrent": False})
    assert len(load_backbone(backbone(), path).random) == 8
    write_weights(path, state, recipe | {"recurrent": True})
    with pytest.raises(UserError, match=r"lstms\.0\.gates\.weight is missing"):
        load_backbone(backbone(), path)
    write_weights(path, state | {"lstms.0.gates.bias": torch.zeros(96)}, recipe | {"recurrent": False})
    with pytest.raises(UserError, match=r"lstms\.0\.gates\.weight is missing"):
        load_backbone(backbone(), path)


def test_values_that_are_not_finite_matter_where_they_are_used(tmp_path):
    content = published.moby()
    content["model"]["queue1"][0, 0] = float("nan")
    assert load_backbone(backbone(recurrent=False), saved(tmp_path, content)).coverage == 1
    content["model"]["encoder.layers.0.blocks.0.norm1.bias"][0] = float("inf")
    with pytest.raises(UserError, match=r"layers\.0\.blocks\.0\.norm1\.bias holds values that are not finite"):
        load_backbone(backbone(), saved(tmp_path, content))


def test_half_precision_is_taken_and_quantised_numbers_are_not(tmp_path):
    state = published.timm_new()
    half = {name: tensor.half() for name, tensor in state.items()}
    assert load_backbone(backbone(recurrent=False), saved(tmp_path, half)).coverage == 1
    for dtype in (torch.int8, torch.float8_e4m3fn):
        quantised = {name: tensor.to(dtype) for name, tensor in state.items()}
        with pytest.raises(UserError, match=rf"holds {dtype}, which are no weights"):
            load_backbone(backbone(recurrent=False), saved(tmp_path, quantised))


def without(state, name):
    return {key: tensor for key, tensor in state.items() if key != name}


def deeper(state):
    return state | {
        name.replace("blocks.1", "blocks.2"): tensor
        for name, tensor in state.items()
        if name.startswith("layers.2.blocks.1.")
    }


BIAS, TABLE = "layers.2.blocks.1.mlp.fc1.bias", "layers.0.blocks.0.attn.relative_position_bias_table"
LSTM = "model.encoder.lstm_blocks.2.conv1x1.bias"
MISMATCHES = [
    (lambda: without(published.tespec_release()["state_dict"], LSTM), {}, r"lstms\.2\.gates\.bias is missing"),
    (lambda: without(published.timm_new(), BIAS), {}, rf"swin\.{BIAS} is missing; the file is Swin"),
    (lambda: deeper(published.microsoft()), {}, r"swin\.layers\.2\.blocks\.2\..* has no place in this model"),
    (lambda: published.microsoft() | {TABLE: torch.zeros(23 * 23, 1)}, {},
     r"bias_table is \(529, 1\), this model needs \(169, 1\)"),
    (published.tespec_release, {"bins": 5}, r"proj\.weight is \(24, 20, 4, 4\), this model needs \(24, 10, 4, 4\)"),
    (published.tespec_release, {"bins": 12}, r"this model needs \(24, 24, 4, 4\)"),
    (lambda: {"checkpoint": timm.create_model("resnet50", in_chans=2).state_dict()}, {},
     r"swin\.patch_embed\.proj\.weight is missing, .* \(and 432 more\); the file is ResNet-50"),
    (lambda: published.microsoft("tiny"), {}, r"is \(96, 20, 4, 4\), this model needs \(24, 20, 4, 4\)"),
    (lambda: published.under("backbone.", published.timm_features()) , {}, "format is not known"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "settings", "message"), MISMATCHES)
def test_what_does_not_match_is_named_and_nothing_is_loaded(tmp_path, make, settings, message):
    model = backbone(**settings)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(UserError, match=message):
        load_backbone(model, saved(tmp_path, make()))
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_bias_tables_follow_the_windows_of_the_maps(tmp_path, file):
    """Interpolated to smaller windows, and back from them; safetensors are recognised under any name."""
    path = tmp_path / "named_like_a_torch_file.pth"
    save_file(published.timm_features(), path)
    model = backbone(img_size=(96, 160))
    report = load_backbone(model, path)
    assert model.swin.layers[3].blocks[0].attn.relative_position_bias_table.shape == (5 * 9, 8)
    assert len(report.adapted) == 1 + 4
    assert report.format == "swin-timm-features"
    adapted = load_backbone(backbone(img_size=(224, 352)), file).adapted
    assert len(adapted) == 4
    assert all(name.endswith("relative_position_bias_table") for name in adapted)

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


def test_bias_tables_are_resized_to_the_windows_of_another_size(file):
    model = backbone(1, img_size=(224, 352))
    report = load_backbone(model, file)
    assert report.adapted
    assert all(name.endswith("relative_position_bias_table") for name in report.adapted)
    features, _ = model.step(torch.zeros(1, 20, 224, 352))
    assert all(torch.isfinite(feature).all() for feature in features)


def test_a_file_for_another_width_is_refused_and_nothing_is_loaded(file):
    model = EventSwin(arch="tiny", img_size=SIZE)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(UserError, match=r"is \(24, .*this model needs \(96, .*written for arch 'micro'"):
        load_backbone(model, file)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_a_recurrent_backbone_refuses_feedforward_weights(tmp_path):
    path = tmp_path / "feedforward.safetensors"
    write_weights(path, backbone(0, recurrent=False).state_dict(), {})
    with pytest.raises(UserError, match=r"lstms\.0\.gates\.weight is missing"):
        load_backbone(backbone(1), path)


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


def test_a_torch_file_is_read_through_its_wrapping(tmp_path):
    path = tmp_path / "last.ckpt"
    torch.save({"epoch": 3, "state_dict": backbone(0).state_dict()}, path)
    assert load_backbone(backbone(1), path).coverage == 1


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


def test_a_backbone_that_is_not_imported_is_named(tmp_path):
    path = tmp_path / "theirs.safetensors"
    write_weights(path, {"pyramid.0.reduce.weight": torch.zeros(3)}, THEIRS)
    for read in (tespec.load, inspect):
        with pytest.raises(UserError, match="unknown value 'theirs'"):
            read(path)


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


def test_histograms_of_other_bins_are_not_stretched(tmp_path):
    path = saved(tmp_path, published.tespec_release())
    model = EventSwin(arch="micro", bins=5, img_size=SIZE)
    with pytest.raises(UserError, match=r"proj\.weight is \(24, 20, 4, 4\), this model needs \(24, 10, 4, 4\)"):
        load_backbone(model, path)
    model = EventSwin(arch="micro", bins=12, img_size=SIZE)
    with pytest.raises(UserError, match=r"this model needs \(24, 24, 4, 4\)"):
        load_backbone(model, path)


def test_half_of_a_network_is_refused_and_nothing_is_loaded(tmp_path):
    state = published.timm_new()
    del state["layers.2.blocks.1.mlp.fc1.bias"]
    model = backbone()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(UserError, match=r"swin\.layers\.2\.blocks\.1\.mlp\.fc1\.bias is missing"):
        load_backbone(model, saved(tmp_path, state))
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_a_deeper_network_is_refused(tmp_path):
    state = published.microsoft()
    for name in [name for name in state if name.startswith("layers.2.blocks.1.")]:
        state[name.replace("blocks.1", "blocks.2")] = state[name]
    with pytest.raises(UserError, match=r"swin\.layers\.2\.blocks\.2\..* has no place in this model"):
        load_backbone(backbone(), saved(tmp_path, state))


def test_windows_of_another_network_are_refused(tmp_path):
    state = published.microsoft()
    name = "layers.0.blocks.0.attn.relative_position_bias_table"
    state[name] = torch.zeros(23 * 23, 1)
    with pytest.raises(UserError, match=r"bias_table is \(529, 1\), this model needs \(169, 1\)"):
        load_backbone(backbone(), saved(tmp_path, state))


def test_bias_tables_shrink_to_small_maps(tmp_path):
    model = backbone(img_size=(96, 160))
    report = load_backbone(model, saved(tmp_path, published.microsoft()))
    assert model.swin.layers[3].blocks[0].attn.relative_position_bias_table.shape == (5 * 9, 8)
    assert len(report.adapted) == 1 + 4
    assert torch.isfinite(model.step(torch.ones(1, 20, 96, 160))[0][3]).all()


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


def test_a_resnet_is_no_swin(tmp_path):
    path = saved(tmp_path, {"checkpoint": timm.create_model("resnet50", in_chans=2).state_dict()})
    with pytest.raises(
        UserError, match=r"swin\.patch_embed\.proj\.weight is missing, .* \(and 432 more\); the file is"
    ):
        load_backbone(backbone(), path)


def test_the_kind_of_file_follows_from_its_content(tmp_path):
    path = tmp_path / "named_like_a_torch_file.pth"
    save_file(published.timm_features(), path)
    assert load_backbone(backbone(recurrent=False), path).format == "swin-timm-features"


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
    whole = {name: tensor.to(torch.int8) for name, tensor in state.items()}
    with pytest.raises(UserError, match=r"holds torch\.int8, which are no weights"):
        load_backbone(backbone(recurrent=False), saved(tmp_path, whole))

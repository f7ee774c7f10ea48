import pickle

import pytest
import torch
from safetensors.torch import save_file

import tespec
from tespec.core.errors import UserError
from tespec.core.registry import BACKBONES
from tespec.models import EventMaxViT, EventSwin
from tespec.weights.files import read_weights, write_weights
from tespec.weights.inspection import inspect
from tespec.weights.load import load_backbone
from tespec.weights.publish import NOT_STATED, Card, rewrite, timm_state, write_folder

SIZE = (96, 160)
RECIPE = {"width": "micro", "recurrent": True, "bins": 10, "sensor": [90, 150]}


def backbone(seed, **kwargs):
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


class Harmful:
    def __reduce__(self):
        return print, ("run",)


def test_a_pickle_that_could_run_code_is_refused(tmp_path, capsys):
    path = tmp_path / "harmful.pth"
    torch.save({"state_dict": {"a": torch.zeros(1)}, "extra": Harmful()}, path)
    with pytest.raises(UserError, match=r"harmful\.pth: holds more than plain tensors"):
        read_weights(path)
    path.write_bytes(pickle.dumps(Harmful(), protocol=2))
    with pytest.raises(UserError):
        read_weights(path)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
@pytest.mark.parametrize("length", [0, 5, 1000])
def test_a_truncated_file_is_named(tmp_path, file, suffix, length):
    path = tmp_path / f"torn{suffix}"
    if suffix == ".pth":
        torch.save(backbone(0).state_dict(), path)
    else:
        path.write_bytes(file.read_bytes())
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(UserError, match="torn"):
        read_weights(path)


def test_values_that_are_not_finite_are_named(tmp_path):
    state = backbone(0).state_dict()
    state["swin.patch_embed.proj.bias"][3] = float("nan")
    path = tmp_path / "nan.safetensors"
    write_weights(path, state, {})
    with pytest.raises(UserError, match=r"swin\.patch_embed\.proj\.bias holds values that are not finite"):
        read_weights(path)


def test_missing_and_empty_files_are_named(tmp_path):
    with pytest.raises(UserError, match=r"gone\.safetensors: no such weights file"):
        read_weights(tmp_path / "gone.safetensors")
    path = tmp_path / "empty.pth"
    torch.save({"epoch": 3}, path)
    with pytest.raises(UserError, match="holds no tensors"):
        read_weights(path)


def test_a_failed_write_leaves_the_old_file_alone(file):
    before = file.read_bytes()
    with pytest.raises(TypeError):
        write_weights(file, {"a": torch.zeros(1)}, {"unwritable": object()})
    assert file.read_bytes() == before
    assert len(list(file.parent.iterdir())) == 1


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
    assert (contents.arch, contents.source.name, contents.converted.unused) == ("theirs", "tespec", ())
    assert [fit.reason for fit in contents.coverage] == ["", ""]
    assert rewrite(contents).recipe["width"] == "theirs"
    write_weights(path, written.state_dict() | {"more": torch.zeros(1)}, THEIRS)
    with pytest.raises(UserError, match="more has no place in this model"):
        tespec.load(path)


def test_a_backbone_that_is_not_imported_is_named(tmp_path):
    path = tmp_path / "theirs.safetensors"
    write_weights(path, {"pyramid.0.reduce.weight": torch.zeros(3)}, THEIRS)
    with pytest.raises(UserError, match="unknown value 'theirs'"):
        tespec.load(path)
    assert {fit.reason for fit in inspect(path).coverage} == {"arch: unknown value 'theirs'"}


def test_a_folder_to_pass_on_holds_timms_file_where_timm_has_the_network(theirs, tmp_path):
    path = tmp_path / "theirs.safetensors"
    write_weights(path, theirs("theirs", recurrent=True, bins=10, img_size=SIZE).state_dict(), THEIRS)
    rewritten = rewrite(inspect(path))
    with pytest.raises(UserError, match="timm has no such network"):
        timm_state(rewritten.tensors)
    card = Card("Theirs", "-", "-", NOT_STATED, {}, "-", {})
    written = write_folder(tmp_path / "shared", rewritten, card, overwrite=False)
    assert [each.name for each in written] == ["backbone.safetensors", "README.md"]
    assert "timm" not in (tmp_path / "shared" / "README.md").read_text()


def test_a_trained_network_with_a_head_is_no_backbone(tmp_path):
    path = tmp_path / "model.safetensors"
    state = {f"backbone.{name}": tensor for name, tensor in backbone(0).state_dict().items()}
    write_weights(path, state, RECIPE | {"kind": "segmentation"})
    with pytest.raises(UserError, match="holds a network with the head of segmentation; give backbone"):
        load_backbone(backbone(1), path)

"""Loading weights into backbones: matched, adapted and refused tensors, and the learning rate."""

import hashlib
from pathlib import Path
from unittest.mock import Mock

import published_files as published
import pytest
import timm
import torch
from published_files import saved
from safetensors.torch import save_file
from timm.models.swin_transformer import SwinTransformer

import tespec
from tespec.core.config import finetuning_settings
from tespec.core.errors import UserError
from tespec.models import EventSwin
from tespec.models.event_swin import SIZES
from tespec.pretraining.method import find_method
from tespec.registry import register_methods
from tespec.runs.data import Data
from tespec.runs.finetune import CellSpec
from tespec.runs.setup import Setup
from tespec.weights.files import write_weights
from tespec.weights.load import (
    PretrainingData,
    fetch,
    inspect,
    load_backbone,
    pretraining_data_of,
    rewrite,
    timm_state,
)

SIZE = (96, 160)
RECIPE = {
    "backbone": "swin_micro",
    "recurrent": True,
    "bins": 10,
    "sensor": [90, 150],
    "dataset": "1mpx",
}


def backbone(seed=1, **kwargs):
    torch.manual_seed(seed)
    return EventSwin(backbone="swin_micro", img_size=kwargs.pop("img_size", SIZE), **kwargs).eval()


def own_file(folder, **facts):
    path = folder / "backbone.safetensors"
    write_weights(path, backbone(0).state_dict(), RECIPE | facts)
    return path


def test_loads_the_whole_backbone_ready_for_streaming(tmp_path):
    file = own_file(tmp_path)
    report = load_backbone(backbone(1), file)
    assert (report.coverage, report.unused, report.adapted, report.recipe) == (1, (), (), RECIPE)
    assert report.sha256 == hashlib.sha256(file.read_bytes()).hexdigest()
    model = tespec.load(file)
    assert (model.name, model.recurrent, model.img_size, model.training) == (
        "swin_micro",
        True,
        SIZE,
        False,
    )
    counts = torch.ones(1, 20, 90, 150, dtype=torch.uint8)
    features, expected = model.step(counts)[0], backbone(0).step(counts)[0]
    assert all(torch.equal(one, other) for one, other in zip(features, expected, strict=True))


def test_a_feedforward_backbone_takes_the_swin_and_names_the_rest(tmp_path):
    report = load_backbone(backbone(1, recurrent=False), own_file(tmp_path))
    assert (report.coverage, len(report.unused)) == (1, 8)
    assert all(name.startswith("lstms.") for name in report.unused)
    save_file(backbone(0).state_dict(), tmp_path / "bare.safetensors")
    with pytest.raises(UserError, match="its recipe lacks backbone"):
        tespec.load(tmp_path / "bare.safetensors")
    with pytest.raises(UserError, match="timm has no such network"):
        timm_state({"stages.0.reduce.weight": torch.zeros(1)})


def test_position_biases_follow_the_windows_of_the_maps(tmp_path):
    """Interpolated to smaller windows and back; transposed windows differ in equal shapes."""
    # recognised by its content
    file, path = own_file(tmp_path), tmp_path / "named_like_a_torch_file.pth"
    save_file(published.timm_features(), path)
    model = backbone()
    report = load_backbone(model, path)
    assert model.swin.layers[3].blocks[0].attn.relative_position_bias_table.shape == (5 * 9, 8)
    assert (len(report.adapted), report.format) == (1 + 4, "swin-timm")
    assert len(load_backbone(backbone(img_size=(224, 352)), file).adapted) == 4
    assert [
        name
        for name in load_backbone(backbone(img_size=(160, 96)), file).adapted
        if "layers.3." in name
    ]
    assert load_backbone(backbone(), file).adapted == ()


def test_own_weights_without_convlstms_need_a_recipe_that_says_so(tmp_path):
    path, state = tmp_path / "own.safetensors", backbone(0, recurrent=False).state_dict()
    write_weights(path, state, RECIPE | {"recurrent": False})
    assert len(load_backbone(backbone(), path).random) == 8
    for more, recurrent in (({}, True), ({"lstms.0.gates.bias": torch.zeros(96)}, False)):
        write_weights(path, state | more, RECIPE | {"recurrent": recurrent})
        with pytest.raises(UserError, match=r"lstms\.0\.gates\.weight is missing"):
            load_backbone(backbone(), path)


def deeper(state):
    blocks = {
        name: tensor for name, tensor in state.items() if name.startswith("layers.2.blocks.1.")
    }
    return state | {name.replace("blocks.1", "blocks.2"): tensor for name, tensor in blocks.items()}


BIAS, TABLE = (
    "layers.2.blocks.1.mlp.fc1.bias",
    "layers.0.blocks.0.attn.relative_position_bias_table",
)
LSTM = "model.encoder.lstm_blocks.2.conv1x1.bias"
NO_COUNTERPART = [
    # Swin V2, MoBY with batch normalisation, and absolute position embeddings would compute
    # something else.
    "layers.0.blocks.0.attn.logit_scale",
    "layers.0.blocks.0.norm2.running_mean",
    "absolute_pos_embed",
]
MISMATCHES = [
    (
        lambda: published.tespec_release()["state_dict"] | {LSTM: None},
        r"lstms\.2\.gates\.bias is missing",
    ),
    (
        lambda: published.timm_new() | {BIAS: None},
        rf"swin\.{BIAS} is missing; the file is Swin",
    ),
    (
        lambda: deeper(published.microsoft()),
        r"swin\.layers\.2\.blocks\.2\..* has no counterpart in this model",
    ),
    *(
        (
            lambda name=name: published.microsoft() | {name: torch.zeros(1)},
            rf"swin\.{name} has no counterpart",
        )
        for name in NO_COUNTERPART
    ),
    (
        lambda: published.microsoft() | {TABLE: torch.zeros(23 * 23, 1)},
        r"bias_table has shape \(529, 1\), but this model needs \(169, 1\)",
    ),
    (
        lambda: dict.fromkeys(("conv1.weight", "layer4.2.conv3.weight"), torch.zeros(1)),
        r"swin\.patch_embed\.proj\.weight is missing, .* \(and \d+ more\); the file is ResNet-50",
    ),
    (
        lambda: published.microsoft("swin_tiny"),
        r"has shape \(96, 20, 4, 4\), but this model needs \(24, 20, 4, 4\)",
    ),
    (
        lambda: published.timm_new() | {BIAS: torch.full((384,), torch.nan)},
        f"{BIAS} holds values that are not",
    ),
    (
        lambda: published.timm_new() | {BIAS: torch.zeros(384, dtype=torch.int8)},
        r"has dtype torch\.int8, which is",
    ),
]


def test_weights_for_other_bins_are_refused(tmp_path):
    path = saved(tmp_path, published.tespec_release())
    message = r"takes 20 channels of .* \(10 bins of .*\), but this model 10 of .* any; "
    with pytest.raises(UserError, match=message):
        load_backbone(backbone(bins=5), path)


@pytest.mark.parametrize(("make", "message"), MISMATCHES)
def test_a_mismatch_is_named_and_nothing_is_loaded(tmp_path, make, message):
    model, content = backbone(), make()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(UserError, match=message):
        load_backbone(
            model,
            saved(
                tmp_path, {name: tensor for name, tensor in content.items() if tensor is not None}
            ),
        )
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_half_precision_is_taken_and_values_that_are_not_used_may_be_anything(tmp_path):
    half = {name: tensor.half() for name, tensor in published.timm_new().items()}
    assert load_backbone(backbone(recurrent=False), saved(tmp_path, half)).coverage == 1
    content = published.moby()
    content["model"]["queue1"][0, 0] = float("nan")
    assert load_backbone(backbone(recurrent=False), saved(tmp_path, content)).coverage == 1


def test_a_trained_network_with_a_head_is_no_backbone(tmp_path):
    with pytest.raises(
        UserError, match="holds a fine-tuned network with a segmentation head; give the backbone"
    ):
        load_backbone(backbone(1), own_file(tmp_path, kind="segmentation"))


def test_a_network_of_timm_is_fetched_once_and_loads(tmp_path, monkeypatch):
    monkeypatch.setenv("TESPEC_CACHE", str(tmp_path))
    width, depths, heads = SIZES["swin_micro"]
    network = SwinTransformer(num_classes=0, embed_dim=width, depths=depths, num_heads=heads)
    calls = []
    name = "timm:swin_tiny_patch4_window7_224.ms_in1k"
    monkeypatch.setattr(timm, "create_model", Mock(side_effect=ConnectionError("no network")))
    with pytest.raises(
        UserError, match=r"cannot be fetched \(ConnectionError\); download the file elsewhere"
    ):
        fetch(name)
    with pytest.raises(UserError, match="timm has no such weights"):
        fetch("timm:swin_of_mine")
    assert not list(tmp_path.rglob("*.safetensors"))
    monkeypatch.setattr(
        timm, "create_model", lambda name, **options: calls.append((name, options)) or network
    )
    path = fetch(name)
    assert fetch(name) == path
    assert calls == [(name.removeprefix("timm:"), {"pretrained": True, "num_classes": 0})]
    report = load_backbone(backbone(recurrent=False, img_size=(224, 224)), path)
    assert (report.coverage, report.format) == (1, "swin-timm")
    assert (fetch(None), fetch(file := tmp_path / "a.pth")) == (None, file)


# Data that weights were pre-trained on, read from their file, and the resulting learning rate.

# peak learning rates on 1Mpx by the paper: in general, and after pre-training on 1Mpx
OTHERS, OWN = 3.46e-4, 1e-4


@pytest.mark.parametrize(
    ("write", "expected"),
    [
        (lambda folder: own_file(folder, data="1mpx"), PretrainingData("1mpx")),
        (lambda folder: own_file(folder, data="drive"), PretrainingData("drive")),
        (lambda folder: own_file(folder, data="sample"), PretrainingData("1mpx", sample=True)),
        (lambda folder: saved(folder, published.tespec_release()), PretrainingData("1Mpx")),
        (lambda folder: saved(folder, published.moby()), PretrainingData("ImageNet-1k")),
        (lambda folder: saved(folder, published.ecddp()), PretrainingData("E-TartanAir")),
        (lambda folder: saved(folder, published.timm_new()), PretrainingData()),
    ],
)
def test_a_file_has_the_data_of_its_recipe_or_publication_converted_or_not(
    tmp_path, write, expected
):
    path, rewritten = write(tmp_path), tmp_path / "converted.safetensors"
    write_weights(rewritten, *rewrite(inspect(path)))
    assert [pretraining_data_of(path), pretraining_data_of(rewritten)] == [expected] * 2
    save_file({"something": torch.zeros(2)}, tmp_path / "bare.safetensors")
    assert pretraining_data_of(tmp_path / "bare.safetensors") == PretrainingData()


def spec_of(method, checkpoint, *, sample=False, changes=(), task="1mpx"):
    register_methods()
    settings = finetuning_settings(task, "recurrent", "paper")
    data = Data(Path(task), "sample" if sample else task)
    return CellSpec(
        method, find_method(method), settings, data, checkpoint, 0, Setup(), tuple(changes)
    )


def peak_of(*given, **options):
    return spec_of(*given, **options).resolve_settings().optimisation.peak_lr


def test_the_weights_and_not_the_method_decide_the_learning_rate(tmp_path):
    assert peak_of("tespec", own_file(tmp_path, data="1mpx")) == OWN
    assert peak_of("tespec", own_file(tmp_path, data="gen1", dataset="gen1")) == OTHERS
    assert peak_of("ecddp", own_file(tmp_path, data="1mpx")) == OWN
    assert peak_of("ecddp", saved(tmp_path, published.ecddp())) == OTHERS
    assert peak_of("scratch", None) == OTHERS
    release, sample = saved(tmp_path, published.tespec_release()), own_file(tmp_path, data="sample")
    assert peak_of("tespec", release, task="gen1") == 2e-4
    # The sample world does not count as the real data set.
    assert [peak_of("tespec", release, sample=is_sample) for is_sample in (True, False)] == [
        OTHERS,
        OWN,
    ]
    assert [peak_of("tespec", sample, sample=is_sample) for is_sample in (True, False)] == [
        OWN,
        OTHERS,
    ]
    # For weights that are not trained yet, the recipe decides.
    made = [peak_of(name, None, sample=True) for name in ("tespec", "ecddp", "moby")]
    assert [*made, peak_of("tespec", None, sample=True, changes=("dataset=gen1",))] == [
        OWN,
        OWN,
        OTHERS,
        OTHERS,
    ]


def test_an_unreadable_file_does_not_change_the_learning_rate_in_silence(
    tmp_path, monkeypatch, capsys
):
    """It raises an error, or for a method with its own file format a warning."""
    damaged = saved(tmp_path, published.tespec_release())
    damaged.write_bytes(damaged.read_bytes()[:-400])
    for path, message in (
        (damaged, "not a readable torch file"),
        (tmp_path / "gone", "no such weights file"),
    ):
        with pytest.raises(UserError, match=message):
            spec_of("tespec", path).validate()
    monkeypatch.setattr(find_method("tespec"), "initialise", classmethod(lambda *_: None))
    assert peak_of("tespec", damaged) == OTHERS
    assert (
        "weights.pth: unknown pre-training data, so the default peak learning rate"
        in capsys.readouterr().err
    )

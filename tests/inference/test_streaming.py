"""Features of a recording by one call: those of the training's own batches, for any sensor, in constant memory."""

import gc
from pathlib import Path

import pytest
import torch
from networks import written

import tespec
from tespec.core.config import as_facts, finetuning_settings, pretraining_settings
from tespec.core.errors import UserError
from tespec.models import build_backbone
from tespec.models.backbone import reset
from tespec.models.layers import padded_size
from tespec.pretraining.method import open_pretraining
from tespec.tasks import find_task
from tespec.tasks.base import fresh_backbone
from tespec.weights.files import write_weights

RECORDING = Path(__file__).parents[1] / "data" / "davis.aedat4"
CPU = torch.device("cpu")
HALVED = ["downsample.to_width=48", "segments=3", "batch_size=2"]  # sensors of the tiny world have 96 px


def write_backbone(path, recipe, size, in_channels=20):
    torch.manual_seed(0)
    backbone = build_backbone("micro", True, 10, padded_size(*size), in_channels)
    facts = {"width": "micro", "recurrent": True, "in_channels": in_channels, "bins": 10, "sensor": list(size)}
    write_weights(path, backbone.state_dict(), recipe | facts)
    return backbone.eval()


@pytest.mark.parametrize("changes", [[], HALVED])
@torch.no_grad()
def test_features_are_those_of_the_trainings_batches(tiny_world, tmp_path, changes):
    settings = pretraining_settings("tespec", "tiny", changes)
    task = open_pretraining(settings, tiny_world / "1mpx")
    assert task.size == ((32, 48) if changes else (64, 96))
    write_backbone(tmp_path / "weights.safetensors", as_facts(settings), task.size)
    backbone = tespec.load(tmp_path / "weights.safetensors")
    chunks, expected, state = list(task.chunks(CPU)), [], None
    for chunk in chunks:
        assert chunk.recording is chunks[0].recording
        features, state = backbone(chunk.batch["histograms"], reset(state, chunk.batch["fresh"]))
        expected += list(zip(*(stage.unbind(1) for stage in features), strict=True))
    assert len(expected) > 20
    played = list(tespec.stream(chunks[0].recording.path, tmp_path / "weights.safetensors"))
    assert len(expected) <= len(played) == len(chunks[0].recording)
    for wanted, (features, _) in zip(expected, played, strict=False):  # a last chunk that is not whole is left out
        for one, other in zip(features, wanted, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["ddd17", "gen1", "mvsec", "backbone"])
@torch.no_grad()
def test_a_network_is_rebuilt_for_the_recordings_sensor(tiny_world, tmp_path, name):
    if name == "backbone":
        path, size = tmp_path / "backbone.safetensors", (64, 96)
        write_backbone(path, as_facts(pretraining_settings("tespec", "tiny", ["downsample.to_width=346"])), size)
    else:
        path, model, _ = written(tiny_world, tmp_path, name)
        size = model.backbone.img_size
    by_path = list(tespec.stream(RECORDING, path))
    loaded = tespec.load(path)
    given = list(tespec.stream(RECORDING, loaded))
    assert len(by_path) == len(given) == 2
    height, width = given[0][1][0][0].shape[-2:]
    factor = 1 if name in ("ddd17", "mvsec", "backbone") else 3  # boxes: at most 160 px wide
    assert (height, width) == ((288 // 4, 352 // 4) if factor == 1 else (96 // 4, 128 // 4))
    for (_, one), (_, other) in zip(by_path, given, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)
    backbone = loaded if name == "backbone" else loaded.backbone
    assert backbone.img_size == size


@pytest.mark.parametrize("kind", ["backbone", "network"])
def test_200_steps_keep_no_graph_and_no_tensors(kind):
    settings = finetuning_settings("ddd17", "recurrent", "sample")
    network = find_task(settings).network(settings, fresh_backbone(settings, (32, 32))).eval()
    stepped = network if kind == "network" else network.backbone
    assert all(parameter.requires_grad for parameter in stepped.parameters())
    histogram, state, alive = torch.ones(1, 20, 32, 32, dtype=torch.uint8), None, []
    for number in range(200):
        output, state = stepped.step(histogram, state)
        tensors = [*(output if kind == "backbone" else [output]), *(each for stage in state for each in stage)]
        assert not any(each.requires_grad or each.grad_fn for each in tensors)
        if number in (10, 199):
            gc.collect()
            alive.append(sum(issubclass(type(each), torch.Tensor) for each in gc.get_objects()))
    assert alive[0] == alive[1]


def test_training_still_goes_back_through_time():
    torch.manual_seed(0)
    backbone = build_backbone("micro", True, 10, (32, 32))
    histograms = torch.rand(1, 3, 20, 32, 32, requires_grad=True)
    _, state = backbone(histograms[:, :1])
    later, _ = backbone(histograms[:, 1:], state)
    later[0][:, -1].sum().backward()
    assert all(histograms.grad[:, segment].abs().sum() > 0 for segment in range(3))


def recipe_without(*names):
    recipe = as_facts(pretraining_settings("tespec", "tiny", []))
    return {name: value for name, value in recipe.items() if name not in names}


@pytest.mark.parametrize(
    ("recipe", "in_channels", "message"),
    [
        (recipe_without("window_ms", "rule"), 20, r"does not say how .* \(window_ms, rule\); load weights"),
        (recipe_without() | {"rule": "sum"}, 20, r"rule: 'sum' is not allowed; it should be 'edges' or 'rvt'"),
        (recipe_without() | {"window_ms": "long"}, 20, "window_ms: 'long' is not allowed; it should be a valid"),
        (recipe_without() | {"window_ms": 1000.0}, 20, r"is shorter than a window of 1000 ms; give a longer"),
        (recipe_without(), 3, r"was trained on images of 3 channels, not on events; give a network trained on events"),
    ],
)  # fmt: skip
def test_what_weights_lack_is_said_before_anything_is_played(tmp_path, recipe, in_channels, message):
    write_backbone(tmp_path / "weights.safetensors", recipe, (64, 96), in_channels=in_channels)
    with pytest.raises(UserError, match=message):
        tespec.stream(RECORDING, tmp_path / "weights.safetensors")


def test_other_mistakes(tiny_world, tmp_path):
    backbone = build_backbone("micro", True, 10, (64, 96))
    with pytest.raises(UserError, match=r"network: does not say how its training"):
        tespec.stream(RECORDING, backbone)
    backbone.recipe = recipe_without()
    with pytest.raises(UserError, match=r"1mpx: holds 3 recordings; name one of them"):
        tespec.stream(tiny_world / "1mpx", backbone)
    with pytest.raises(UserError, match=r"height=260, width=None: a sensor has both; give both or none"):
        tespec.stream(RECORDING, backbone, height=260)

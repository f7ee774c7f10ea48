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
HALVED = ["downsample.to_width=48", "segments=3", "batch_size=2"]  # sensors of the tiny world have 96 px


def recipe(*changes):
    return as_facts(pretraining_settings("tespec", "tiny", changes))


def write_backbone(folder, facts, size, in_channels=20):
    torch.manual_seed(0)
    backbone = build_backbone("micro", True, 10, padded_size(*size), in_channels)
    facts = facts | {"width": "micro", "recurrent": True, "in_channels": in_channels, "bins": 10, "sensor": list(size)}
    write_weights(folder / "backbone.safetensors", backbone.state_dict(), facts)
    return folder / "backbone.safetensors"


@pytest.mark.parametrize("changes", [[], HALVED])
@torch.no_grad()
def test_features_are_those_of_the_trainings_batches(tiny_world, tmp_path, changes):
    task = open_pretraining(pretraining_settings("tespec", "tiny", changes), tiny_world / "1mpx")
    assert task.size == ((32, 48) if changes else (64, 96))
    path = write_backbone(tmp_path, recipe(*changes), task.size)
    backbone = tespec.load(path)
    (recording,) = task.held_out
    expected, state = [], None
    for batch in task.val_chunks():
        features, state = backbone(batch["histograms"], reset(state, batch["fresh"]))
        expected += list(zip(*(stage.unbind(1) for stage in features), strict=True))
    played = list(tespec.stream(recording.path, path))
    assert 20 < len(expected) <= len(played) == len(recording)
    for wanted, (features, _) in zip(expected, played, strict=False):  # a last chunk that is not whole is left out
        for one, other in zip(features, wanted, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["ddd17", "gen1", "mvsec", "backbone"])
@torch.no_grad()
def test_a_network_is_rebuilt_for_the_recordings_sensor(tiny_world, tmp_path, name):
    if name == "backbone":
        path = write_backbone(tmp_path, recipe("downsample.to_width=346"), (64, 96))
    else:
        path = written(tiny_world, tmp_path, name)[0]
    loaded = tespec.load(path)
    backbone = loaded if name == "backbone" else loaded.backbone
    size = backbone.img_size
    by_path, given = list(tespec.stream(RECORDING, path)), list(tespec.stream(RECORDING, loaded))
    assert len(by_path) == len(given) == 2
    # Detectors see at most 160 px in width.
    assert given[0][1][0][0].shape[-2:] == ((96 // 4, 128 // 4) if name == "gen1" else (288 // 4, 352 // 4))
    for (_, one), (_, other) in zip(by_path, given, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)
    assert backbone.img_size == size
    assert not any(each.requires_grad for stage in given[1][1] for each in stage)


@pytest.mark.parametrize("kind", ["backbone", "network"])
def test_200_steps_keep_no_graph_and_no_tensors(kind):
    settings = finetuning_settings("ddd17", "recurrent", "sample")
    network = find_task(settings).network(settings, fresh_backbone(settings, (32, 32))).eval()
    stepped = network if kind == "network" else network.backbone
    histogram, state, alive = torch.ones(1, 20, 32, 32, dtype=torch.uint8), None, []
    for number in range(200):
        output, state = stepped.step(histogram, state)
        tensors = [*(output if kind == "backbone" else [output]), *(each for stage in state for each in stage)]
        assert not any(each.requires_grad or each.grad_fn for each in tensors)
        if number in (10, 199):
            gc.collect()
            alive.append(sum(issubclass(type(each), torch.Tensor) for each in gc.get_objects()))
    assert alive[0] == alive[1]


def without(*names):
    return {name: value for name, value in recipe().items() if name not in names}


@pytest.mark.parametrize(
    ("facts", "in_channels", "recording", "size", "message"),
    [
        (without("window_ms", "rule"), 20, "", {}, r"does not say how .* \(window_ms, rule\); load weights"),
        (recipe() | {"rule": "sum"}, 20, "", {}, r"rule: 'sum' is not allowed; it should be 'edges' or 'rvt'"),
        (recipe() | {"window_ms": "long"}, 20, "", {}, "window_ms: 'long' is not allowed; it should be a valid"),
        (recipe() | {"window_ms": 1000.0}, 20, "", {}, r"is shorter than a window of 1000 ms; give a longer"),
        (recipe(), 3, "", {}, r"was trained on images of 3 channels, not on events; give a network trained on events"),
        (recipe(), 20, "1mpx", {}, r"1mpx: holds 3 recordings; name one of them"),
        (recipe(), 20, "nothing.raw", {}, r"nothing\.raw: "),
        (recipe(), 20, "", {"height": 260}, r"height=260, width=None: a sensor has both; give both or none"),
        (recipe(), 20, "", {"height": 2, "width": 2}, r"davis\.aedat4: "),
    ],
)
def test_mistakes_are_told_before_anything_is_computed(
    tiny_world, tmp_path, facts, in_channels, recording, size, message
):
    path = write_backbone(tmp_path, facts, (64, 96), in_channels)
    with pytest.raises(UserError, match=message):
        tespec.stream(tiny_world / recording if recording else RECORDING, path, **size)


def test_a_network_without_a_recipe_is_refused():
    with pytest.raises(UserError, match=r"network: does not say how its training"):
        tespec.stream(RECORDING, build_backbone("micro", True, 10, (64, 96)))

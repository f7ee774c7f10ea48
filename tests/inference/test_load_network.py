"""Networks loaded from files: their predictions, and features of a recording by one call, equal the training's own."""

from copy import deepcopy
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from networks import written

import tespec
from tespec.core.config import as_facts, pretraining_settings
from tespec.core.errors import UserError
from tespec.inference import load_trained
from tespec.models import build_backbone
from tespec.models.backbone import reset
from tespec.models.layers import padded_size
from tespec.pretraining.method import open_pretraining
from tespec.weights.files import read_weights, write_weights

BIAS = "head.conv_seg.bias"
RECORDING = Path(__file__).parents[1] / "data" / "davis.aedat4"
HALVED = ["downsample.to_width=48", "segments=3", "batch_size=2"]  # sensors of the tiny world have 96 px


@pytest.mark.parametrize("arch", ["recurrent", "feedforward"])
@pytest.mark.parametrize("name", ["ddd17", "gen1", "mvsec"])
@torch.no_grad()
def test_a_loaded_network_predicts_what_the_trained_one_predicted(tiny_world, tmp_path, name, arch):
    path, model, task = written(tiny_world, tmp_path, name, arch)
    loaded = tespec.load(path)
    assert not loaded.training
    assert load_trained(path).settings == task.settings
    state = expected_state = None
    for segment in range(3):
        histogram = torch.from_numpy(task.scored[0].histograms(segment, 1, 10, "edges"))
        predicted, state = loaded.step(histogram, state)
        expected, expected_state = model.step(histogram, expected_state)
        if name == "gen1":
            assert all(np.array_equal(one, other) for one, other in zip(predicted[0], expected[0], strict=True))
        else:
            torch.testing.assert_close(predicted, expected, rtol=0, atol=0)
            assert (predicted.shape, predicted.dtype) == ((1, *task.size), expected.dtype)


def test_files_that_are_not_whole_are_refused(tiny_world, tmp_path):
    path, _, _ = written(tiny_world, tmp_path, "ddd17")
    tensors, recipe = read_weights(path)
    other = tmp_path / "other.safetensors"
    for change, message in (
        (lambda t, _: t.pop("head.conv_seg.weight"), "head.conv_seg.weight is missing"),
        (lambda t, _: t.update({BIAS: torch.zeros(9)}), r"head.conv_seg.bias is \(9,\), this model needs \(6,\)"),
        (lambda _, r: r.pop("sensor"), "does not say what size"),
        (lambda _, r: r.update(kind="counting"), "kind: unknown task .counting."),
        (lambda _, r: r["head"].update(channels=10**9), "head.channels: 1000000000 is not allowed"),
    ):
        changed, said = dict(tensors), deepcopy(recipe)
        change(changed, said)
        write_weights(other, changed, said)
        with pytest.raises(UserError, match=message):
            tespec.load(other)
    write_weights(other, {"weight": torch.zeros(1)}, {"width": "micro"})
    with pytest.raises(UserError, match="holds no network with a task's head"):
        load_trained(other)


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
def test_a_network_is_built_again_for_the_recordings_sensor(tiny_world, tmp_path, name):
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
    assert not any(each.requires_grad or each.grad_fn for stage in given[1][1] for each in stage)
    larger = tespec.load(path, height=264, width=320)
    assert (larger if name == "backbone" else larger.backbone).img_size == padded_size(264, 320)
    for one, other in zip(larger.parameters(), loaded.parameters(), strict=True):
        assert torch.equal(one, other) or one.shape != other.shape  # position biases are resized


FACTS = recipe()
MISTAKES = [
    ({"window_ms": ..., "rule": ...}, 20, "", {}, r"does not say how .* \(window_ms, rule\); load weights"),
    ({"rule": "sum"}, 20, "", {}, r"rule: 'sum' is not allowed; it should be 'edges' or 'rvt'"),
    ({"window_ms": 1000.0}, 20, "", {}, r"is shorter than a window of 1000 ms; give a longer"),
    ({}, 3, "", {}, r"was trained on images of 3 channels, not on events; give a network trained on events"),
    ({}, 20, "1mpx", {}, r"1mpx: holds 3 recordings; name one of them"),
    ({}, 20, "", {"height": 2, "width": 2}, r"davis\.aedat4: "),
]


def test_mistakes_are_told_before_anything_is_computed(tiny_world, tmp_path):
    for height, width in ((0, 64), (64, -5), (20.5, 64), (64, 10**7), ("64", 64), (260, None)):
        for call in (tespec.load, partial(tespec.stream, "any.raw")):
            with pytest.raises(UserError, match=r"height=.*, width=.*: no size in px; give both, from 1 to 2048"):
                call("any.safetensors", height=height, width=width)
    for changes, in_channels, recording, size, message in MISTAKES:
        facts = {name: value for name, value in (FACTS | changes).items() if value is not ...}
        path = write_backbone(tmp_path, facts, (64, 96), in_channels)
        with pytest.raises(UserError, match=message):
            tespec.stream(tiny_world / recording if recording else RECORDING, path, **size)
    with pytest.raises(UserError, match=r"network: does not say how its training"):
        tespec.stream(RECORDING, build_backbone("micro", True, 10, (64, 96)))

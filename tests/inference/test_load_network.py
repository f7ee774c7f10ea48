from copy import deepcopy

import numpy as np
import pytest
import torch
from networks import written

import tespec
from tespec.core.errors import UserError
from tespec.inference.load import load_trained
from tespec.weights.files import read_weights, write_weights

BIAS = "head.conv_seg.bias"


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
        (lambda t, _: t.update({BIAS: torch.zeros(6, dtype=torch.complex64)}), "holds torch.complex64, which are no"),
        (lambda t, _: t.update({BIAS: torch.full((6,), torch.nan)}), "holds values that are not finite"),
        (lambda _, r: r.pop("sensor"), "does not say what size"),
        (lambda _, r: r.update(kind="counting"), "kind: unknown task .counting."),
        (lambda _, r: r["head"].update(channels=10**9), "head.channels: 1000000000 is not allowed"),
        (lambda _, r: r.pop("splits"), "setting 'splits' is missing"),
    ):
        changed, said = dict(tensors), deepcopy(recipe)
        change(changed, said)
        write_weights(other, changed, said)
        with pytest.raises(UserError, match=message):
            tespec.load(other)
    write_weights(other, {"weight": torch.zeros(1)}, {"width": "micro"})
    with pytest.raises(UserError, match="holds no network with a task's head"):
        load_trained(other)


@pytest.mark.parametrize("size", [(0, 64), (64, -5), (20.5, 64), (64, 10**7), ("64", 64), (260, None)])
def test_a_size_that_is_none_is_refused(size):
    with pytest.raises(UserError, match=r"height=.*, width=.*: no size in px; give both, from 1 to 2048"):
        tespec.load("any.safetensors", height=size[0], width=size[1])
    with pytest.raises(UserError, match=r"height=.*, width=.*: no size in px; give both, from 1 to 2048"):
        tespec.stream("any.raw", "any.safetensors", height=size[0], width=size[1])


@torch.no_grad()
def test_a_network_for_another_size_has_the_same_weights(tiny_world, tmp_path):
    path, model, task = written(tiny_world, tmp_path, "ddd17")
    height, width = task.size
    histogram = torch.zeros(1, 20, 2 * height, width, dtype=torch.uint8)
    larger = tespec.load(path, height=2 * height, width=width)
    assert larger.step(histogram)[0].shape == (1, 2 * height, width)
    for name, each in larger.head.state_dict().items():
        torch.testing.assert_close(each, model.head.state_dict()[name], rtol=0, atol=0)

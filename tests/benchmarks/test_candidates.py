"""Candidates for a faster backbone compute the same function as the plain one."""

import json
from contextlib import nullcontext

import pytest
import torch
from torch.nn.attention import flex_attention

from benchmarks import candidates
from tespec.cli import main
from tespec.models import EventSwin

LANES, SEGMENTS, BINS = 2, 3, 2
# Maps of 16x24, 8x12, 4x6 and 2x3 tokens: padded and shifted windows of 7x7, and smaller ones.
SIZES = [(64, 96), (96, 64)]


def outputs_and_gradients(size, change):
    """Features, state, and gradients of histograms, state and parameters, by name."""
    torch.manual_seed(0)
    backbone = EventSwin("swin_micro", bins=BINS, img_size=size)
    for name, parameter in backbone.named_parameters():
        if "bias" in name:  # zero or small at first
            torch.nn.init.normal_(parameter, std=0.5)
    change(backbone)
    histograms = torch.randint(4, (LANES, SEGMENTS, 2 * BINS, *size)).float()
    shapes = [
        (LANES, width, size[0] // stride, size[1] // stride)
        for width, stride in zip(backbone.channels, (4, 8, 16, 32), strict=True)
    ]
    state = tuple((torch.randn(shape), torch.randn(shape)) for shape in shapes)
    inputs = {"histograms": histograms} | {
        f"state {stage} {part}": tensor
        for stage, pair in enumerate(state)
        for part, tensor in enumerate(pair)
    }
    for tensor in inputs.values():
        tensor.requires_grad_()
    inputs |= dict(backbone.named_parameters())
    features, after = backbone(histograms, state)
    outputs = [*features, *(tensor for pair in after for tensor in pair)]
    loss = sum((output * torch.randn(output.shape)).sum() for output in outputs)
    gradients = torch.autograd.grad(loss, list(inputs.values()))
    named = dict(zip(inputs, gradients, strict=True))
    return named | {f"output {index}": output for index, output in enumerate(outputs)}


def require_same(size, change):
    expected = outputs_and_gradients(size, lambda backbone: None)
    result = outputs_and_gradients(size, change)
    for name, tensor in result.items():
        error = (tensor - expected[name]).norm() / expected[name].norm()
        assert error <= 1e-5, name


# torch's own warning while it traces gradients
TRACING = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")


@TRACING
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", ["unfused", "grouped", "flex", "scan"])
def test_a_candidate_has_the_same_features_state_and_gradients(name, size, monkeypatch):
    # On a CPU, torch computes the backward pass, although it refuses to.
    monkeypatch.setattr(flex_attention, "_validate_device", lambda *_: None)
    change = candidates.CANDIDATES[name]
    uncompiled = name == "flex"
    with nullcontext() if uncompiled else torch.compiler.set_stance("force_eager"):
        require_same(size, change)


@TRACING
@pytest.mark.slow
def test_a_compiled_stage_and_scan_are_the_same_too():
    def change(backbone):
        candidates.CANDIDATES["grouped"](backbone)
        backbone.swin.layers[0].compile(dynamic=False)  # a plain and a shifted block
        backbone.lstms[0].compile(dynamic=False)

    require_same(SIZES[0], change)


def call(*arguments):
    return main.run(lambda: main.call(candidates.app, [*map(str, arguments)]))


def test_candidates_run_by_turns_with_the_baseline_and_are_written(tmp_path, capsys):
    path = tmp_path / "candidates.json"
    words = ["--device", "cpu", "--small", "--training", "tespec", "--json", path]
    chosen = ["--only", "compiled", "--only", "grouped+scan", "--only", "flex"]
    assert call(*words, *chosen) == 0
    baseline, grouped, flex = json.loads(path.read_text())["rows"]
    assert baseline["case"] == "tespec, compiled"
    assert baseline["gradient_error"] == 0 < grouped["gradient_error"] < 1e-4
    assert grouped["ratio"] == pytest.approx(grouped["baseline_seconds"] / grouped["seconds"])
    assert flex["note"].startswith("not measured")
    *rows, _, last = capsys.readouterr().out.splitlines()
    assert (len(rows), last) == (3, "3 rows; failed: none")


def test_a_candidate_that_computes_something_else_fails(monkeypatch, capsys):
    def without_mask(backbone):
        backbone.swin.layers[0].blocks[1].attn_mask.zero_()

    monkeypatch.setitem(candidates.CANDIDATES, "without mask", without_mask)
    words = ["--device", "cpu", "--small", "--training", "tespec"]
    assert call(*words, "--only", "without mask", "--only", "missing") == 1
    wrong, missing, _ = capsys.readouterr().out.splitlines()
    assert wrong.startswith("candidates (tespec, without mask): FAILED; seconds ")
    assert missing == "candidates (tespec, missing): FAILED; note KeyError: 'missing'"

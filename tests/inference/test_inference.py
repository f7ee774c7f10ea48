"""Networks loaded from files predict as in training, and their predictions are drawn."""

from copy import deepcopy
from dataclasses import asdict
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

import tespec
from tespec import inference
from tespec.core.config import as_facts, pretraining_settings
from tespec.core.errors import UserError
from tespec.core.settings import Binning, HistogramSpec
from tespec.inference import (
    ROWS,
    Prediction,
    TrainedNetwork,
    draw,
    find,
    load_trained,
    predict,
    run_inference,
)
from tespec.models import build_backbone
from tespec.models.backbone import reset
from tespec.models.layers import padded_size
from tespec.pretraining.method import open_pretraining
from tespec.runs.data import Data, settings_of
from tespec.tasks import build_task
from tespec.tasks.base import Task
from tespec.weights.files import read_tensors, write_weights
from tespec.weights.load import histograms_of

BIAS = "head.conv_seg.bias"
RECORDING = Path(__file__).parents[1] / "data" / "davis.aedat4"
# the tiny world's sensors are 96 px wide
HALVED = ["downsample.to_width=48", "segments=3", "batch_size=2"]
CPU = torch.device("cpu")


def written(world, folder, name, arch="recurrent"):
    """Save a network with random weights as a fine-tuning does; returns file, network and task."""
    data = Data(world / name, "sample")
    settings = settings_of(data, name, arch)
    task = build_task(settings, data.root)
    torch.manual_seed(0)
    model = task.model().eval()
    path = folder / "model.safetensors"
    write_weights(
        path, model.state_dict(), as_facts(settings) | {"histograms": asdict(task.histogram_spec)}
    )
    return path, model, task


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
        histogram = torch.from_numpy(task.scored[0].histograms(segment, 1, Binning(10, "edges")))
        predicted, state = loaded.step(histogram, state)
        expected, expected_state = model.step(histogram, expected_state)
        if name == "gen1":
            np.testing.assert_equal(predicted[0], expected[0])
        else:
            torch.testing.assert_close(predicted, expected, rtol=0, atol=0)
            assert (predicted.shape, predicted.dtype) == ((1, *task.size), expected.dtype)


def test_files_that_are_not_whole_are_refused(tiny_world, tmp_path):
    path, _, _ = written(tiny_world, tmp_path, "ddd17")
    tensors, recipe = read_tensors(path)
    other = tmp_path / "other.safetensors"
    for change, message in (
        (lambda t, _: t.pop("head.conv_seg.weight"), "head.conv_seg.weight is missing"),
        (
            lambda t, _: t.update({BIAS: torch.zeros(9)}),
            r"conv_seg.bias has shape \(9,\), but this model needs \(6,\)",
        ),
        (
            lambda _, r: r.pop("histograms"),
            "does not say how events become histograms; use weights that this version",
        ),
        (
            lambda _, r: r["histograms"].pop("reset"),
            "recipe: setting 'histograms.reset' is missing",
        ),
        (
            lambda _, r: r["histograms"].update(size=[10**6, 1]),
            "histograms.size: .* is not allowed",
        ),
        (lambda _, r: r.update(kind="counting"), "kind: unknown task .counting."),
        (
            lambda _, r: r.update(seed=0),
            "was written by another version of tespec, with the setting 'seed'; train again",
        ),
        (lambda _, r: r["head"].update(channels=10**9), "head.channels: 1000000000 is not allowed"),
    ):
        changed, said = dict(tensors), deepcopy(recipe)
        change(changed, said)
        write_weights(other, changed, said)
        with pytest.raises(UserError, match=message):
            tespec.load(other)
    write_weights(other, {"weight": torch.zeros(1)}, {"backbone": "swin_micro"})
    with pytest.raises(UserError, match="contains no network with a task head"):
        load_trained(other)


def write_backbone(folder, settings, size, changes):
    """Save a random backbone as a pre-training does, with `changes` of its histograms if given."""
    torch.manual_seed(0)
    backbone = build_backbone("swin_micro", True, 10, padded_size(*size))
    facts = as_facts(settings) | {
        "backbone": "swin_micro",
        "recurrent": True,
        "in_channels": 20,
        "sensor": list(size),
    }
    if changes is not None:
        facts["histograms"] = (
            asdict(HistogramSpec.from_settings(settings, size, settings.window_ms)) | changes
        )
    write_weights(folder / "backbone.safetensors", backbone.state_dict(), facts)
    return folder / "backbone.safetensors"


@pytest.mark.parametrize("changes", [[], HALVED])
@torch.no_grad()
def test_features_are_those_of_the_trainings_batches(tiny_world, tmp_path, changes):
    settings = pretraining_settings("tespec", "smoke", changes)
    task = open_pretraining(settings, tiny_world / "1mpx")
    assert task.size == ((32, 48) if changes else (64, 96))
    path = write_backbone(tmp_path, settings, task.size, {})
    backbone = tespec.load(path)
    (recording,) = task.held_out
    expected, state = [], None
    for batch in task.val_batches(torch.device("cpu")):
        features, state = backbone(batch["histograms"], reset(state, batch["is_first"]))
        expected += list(zip(*(stage[0] for stage in features), strict=True))
    played = [features for _, features in tespec.stream(recording.path, path)]
    # the batches leave out an incomplete last chunk
    assert 20 < len(expected) <= len(played) == len(recording)
    torch.testing.assert_close(played[: len(expected)], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["ddd17", "gen1", "mvsec", "backbone"])
def test_a_network_is_built_again_for_the_recordings_sensor(tiny_world, tmp_path, name):
    if name == "backbone":
        settings = pretraining_settings("tespec", "smoke", ["downsample.to_width=346"])
        path = write_backbone(tmp_path, settings, (64, 96), {})
    else:
        path = written(tiny_world, tmp_path, name)[0]
    loaded = tespec.load(path)
    backbone = getattr(loaded, "backbone", loaded)
    size = backbone.img_size
    given = [output for _, output in tespec.stream(RECORDING, loaded)]
    assert len(given) >= 2
    if name == "backbone":
        assert [stage.shape[1:] for stage in given[0]] == [
            (288 // side, 352 // side) for side in (4, 8, 16, 32)
        ]
        assert not any(stage.requires_grad for stage in given[0])
    elif name != "gen1":
        assert given[0].shape == (260, 346)
    larger = tespec.load(path, height=264, width=320)
    assert (backbone.img_size, getattr(larger, "backbone", larger).img_size) == (
        size,
        padded_size(264, 320),
    )
    for one, other in zip(larger.parameters(), loaded.parameters(), strict=True):
        assert torch.equal(one, other) or one.shape != other.shape  # position biases are resized


MISTAKES = [
    (
        None,
        "",
        {},
        r"does not say how events become histograms; use weights that this version trained on",
    ),
    (
        {"bins": 5},
        "",
        {},
        r"its input has 10 channels, but its network takes 20; use the unmodified file",
    ),
    (
        {"rule": "sum"},
        "",
        {},
        r"histograms\.rule: 'sum' is not allowed; it should be 'edges' or 'rvt'",
    ),
    (
        {},
        "",
        {"data": "1mpx"},
        r"contains no network with a task head; use a model\.safetensors of",
    ),
    ({}, "1mpx", {}, r"1mpx: contains 3 recordings; choose one of them"),
    ({}, "", {"height": 2, "width": 2}, r"davis\.aedat4: "),
]


def test_mistakes_are_told_before_anything_is_computed(tiny_world, tmp_path):
    for height, width in ((0, 64), (64, -5), (20.5, 64), (64, 10**7), ("64", 64), (260, None)):
        for call in (tespec.load, partial(tespec.stream, "any.raw")):
            with pytest.raises(
                UserError, match=r"height=.*, width=.*: not a size in px; set both, from 1 to 2048"
            ):
                call("any.safetensors", height=height, width=width)
    for changes, recording, options, message in MISTAKES:
        path = write_backbone(tmp_path, pretraining_settings("tespec", "smoke"), (64, 96), changes)
        with pytest.raises(UserError, match=message):
            tespec.stream(tiny_world / recording if recording else RECORDING, path, **options)
    with pytest.raises(UserError, match=r"network: does not say how events become histograms"):
        tespec.stream(RECORDING, build_backbone("swin_micro", True, 10, (64, 96)))


def test_a_recording_shorter_than_a_window_is_one_window(tmp_path):
    path = write_backbone(
        tmp_path, pretraining_settings("tespec", "smoke"), (64, 96), {"window_ms": 1000.0}
    )
    network = tespec.load(path)
    opened = find(str(RECORDING), histograms_of(network.recipe, path), None, None)
    first = opened.stream.t_first
    assert opened.windows.tolist() == [[first, first + 1_000_000]]
    assert opened.histograms(0, 1, Binning(10, "edges")).max() > 0
    assert [time for time, _ in tespec.stream(RECORDING, network)] == [first + 1_000_000]


@pytest.mark.parametrize(("arch", "length"), [("recurrent", 30), ("feedforward", 100)])
def test_a_recording_of_the_data_is_played_in_its_scored_windows_and_alone_in_windows_as_long(
    tiny_world, tmp_path, arch, length
):
    path, _, task = written(tiny_world, tmp_path, "ddd17", arch)
    (recording,) = task.scored
    network = load_trained(path)
    for wanted in (recording.name, str(recording.path)):
        found = find(wanted, network.spec, network.settings, tiny_world / "ddd17")
        np.testing.assert_array_equal(found.windows, recording.windows)
    moments = list(run_inference(network, found, recording.label_indices[3:8].tolist()))
    assert len(moments) == 5
    for label, moment in enumerate(moments, start=3):
        np.testing.assert_array_equal(moment.truth, recording.labels[label])
        np.testing.assert_array_equal(
            moment.histogram, recording.histograms(label, 1, Binning(10, "edges"))[0]
        )
        assert moment.seconds == pytest.approx(
            (recording.label_times[label] - recording.windows[0, 0]) / 1e6
        )
    alone = find(str(recording.path), network.spec, network.settings, None)
    assert set(np.diff(alone.windows).ravel().tolist()) == {length * 1000}
    times = [time for time, _ in tespec.stream(recording.path, path)]
    assert times == alone.windows[:, 1].tolist()
    assert times[0] == recording.stream.t_first + length * 1000


@pytest.mark.parametrize("name", ["gen1", "mvsec"])
def test_predictions_are_drawn_and_the_network_is_built_once(
    tiny_world, tmp_path, monkeypatch, name
):
    path, _, task = written(tiny_world, tmp_path, name)
    built, build = [], inference.random_backbone
    monkeypatch.setattr(
        inference, "random_backbone", lambda *arguments: built.append(1) or build(*arguments)
    )
    options = {"root": tiny_world / name, "clip": (0.0, 0.6)}
    windows, labelled, drawn = predict(path, task.scored[0].name, tmp_path / "out", CPU, **options)
    assert windows > ROWS
    assert labelled > 0
    assert built == [1]
    assert list((tmp_path / "out").iterdir()) == [drawn]
    with Image.open(drawn) as figure:
        assert figure.width > 3 * 300
    assert predict(path, str(RECORDING), tmp_path / "out", CPU)[1] == 0


NOT_PREDICTED = [
    ("dir99", {}, r"^dir99: no such recording; use a path, or one of dir2"),
    ("no/such.raw", {}, r"^no/such.raw: no such recording; use a path, or one of dir2"),
    (
        "dir0",
        {"clip": (50, 60)},
        r"no window ends between 50 and 60 s; the recording lasts .* s; choose",
    ),
    (str(RECORDING), {"sensor_px": "2x2"}, r"davis\.aedat4: "),
    (str(RECORDING), {"sensor_px": "wide"}, r"give WIDTHxHEIGHT in px"),
    (str(RECORDING.parent), {}, r"contains \d recordings; choose one of them"),
]


def test_mistakes_are_named_and_nothing_is_written(tiny_world, tmp_path):
    path, _, _ = written(tiny_world, tmp_path, "ddd17")
    for recording, options, message in NOT_PREDICTED:
        with pytest.raises(UserError, match=message):
            predict(path, recording, tmp_path / "out", CPU, root=tiny_world / "ddd17", **options)
    assert not (tmp_path / "out").exists()


def test_colours_of_depth_span_the_range_of_the_head_in_every_panel():
    known = np.full((32, 32), np.nan, np.float32)
    known[:16] = 5.0
    shown = Prediction(
        2.0, 50.0, np.ones((20, 32, 32), np.uint8), np.full((32, 32), 90.0, np.float32), known
    )
    settings = SimpleNamespace(head={"min_depth": 3.0, "max_depth": 40.0}, classes=())
    figure = draw([shown], TrainedNetwork(None, Task, settings, None), True)
    images = [axis.images[-1] for axis in figure.axes if axis.get_title() != "events"]
    assert [image.get_clim() for image in images if image.get_label() == "depth in m"] == [
        (3.0, 40.0)
    ] * 2
    (bar,) = [bar for axis in figure.axes for bar in axis.child_axes]
    assert (bar.get_yticks()[0], bar.get_yticks()[-1], bar.get_ylabel()) == (3, 40, "depth in m")

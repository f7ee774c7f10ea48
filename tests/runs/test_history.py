"""The history evaluation finds memory where there is some, and its curve ends at the evaluation."""

import json
import re
import shutil
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from short_runs import cell_spec, setup_in, short_pretrainings
from torch import nn
from torch.nn.functional import cross_entropy

from tespec.cli.main import main
from tespec.core.config import pretraining_settings
from tespec.core.errors import UserError
from tespec.core.settings import Binning
from tespec.datasets.recording import LabelledRecording
from tespec.events import event_histogram
from tespec.events.histogram import Region
from tespec.inference import load_trained
from tespec.metrics import FrameScorer, Score, Scores
from tespec.models import build_backbone
from tespec.runs import history
from tespec.runs.data import Data, settings_of
from tespec.runs.finetune import finetune
from tespec.runs.history import halve_windows, join_windows, measure_history, summarise, task_curve
from tespec.runs.pretrain import pretrain
from tespec.tasks import build_task
from tespec.tasks.base import Network, Task, select_labelled
from tespec.tasks.segmentation import SegmentationTask
from tespec.weights.files import read_recipe, read_tensors, write_weights

CPU = torch.device("cpu")
DELAY = 8  # windows between a cue and its label
PERIOD = 16  # windows between two labels


@dataclass(frozen=True, eq=False)
class CuedRecording(LabelledRecording):
    """Noise, and `DELAY` windows before each label, events of one polarity, which is the label."""

    def fill(self, out, first, binning, flip_zoom=None):
        """Write histograms that depend on the window alone."""
        for row, window in zip(out, range(first, first + len(out)), strict=True):
            row[:] = np.random.default_rng([window, *self.name.encode()]).random(row.shape) < 0.05
            if (window + 1 + DELAY) % PERIOD == 0 and window // PERIOD < len(self.labels):
                cue = self.labels[window // PERIOD]
                row[cue * binning.bins : (cue + 1) * binning.bins] = 5


def cued_recording(seed, labels):
    """A recording with a label at every `PERIOD`-th window of 10 ms."""
    windows = 10_000 * np.stack([np.arange(PERIOD * labels), np.arange(PERIOD * labels) + 1], 1)
    return CuedRecording(
        name=f"cues{seed}",
        source=SimpleNamespace(path="cues"),
        region=Region(32, 32),
        windows=windows,
        labels=np.random.default_rng(seed).permutation(np.arange(labels) % 2),
        label_indices=np.arange(1, labels + 1) * PERIOD - 1,
    )


class Cues(Network):
    """A linear classifier of the cue."""

    def __init__(self, backbone):
        super().__init__(backbone)
        self.head = nn.Linear(backbone.channels[-1], 2)

    def outputs(self, features, size):
        return self.head(features[-1].mean(dim=(2, 3)))

    def losses(self, features, batch):
        outputs = self.outputs(select_labelled(features, batch["label_position"]), None)
        return {"loss": cross_entropy(outputs, batch["labels"])}


class Accuracy(FrameScorer):
    """Percentage of correct cues."""

    def update(self, predicted, truth, recording, groups=()):
        self._frames.append(SimpleNamespace(right=predicted.argmax() == truth, groups=groups))

    def overall(self):
        return Scores({"accuracy": 100 * np.mean([frame.right for frame in self._frames])}, {})


class CueTask(Task):
    """Name the cue that was shown `DELAY` windows before the label."""

    scores = {"accuracy": Score("accuracy ↑", "higher", "%")}  # noqa: RUF012
    network = Cues

    def __init__(self, settings, recordings):
        self.settings = settings
        self.train = self.scored = recordings

    def scorer(self):
        return Accuracy()


def gain_of(task, model, monkeypatch):
    """Gain from 1 to 16 windows of history."""
    monkeypatch.setattr(history, "LENGTHS", (1, 8, 16))
    curve = task_curve(task, model, CPU).set_index(["windows", "rate"])["accuracy"]
    assert abs(curve["8", 1.0] - curve["1", 1.0]) < 25  # the cue is one window too early
    return curve["16", 1.0] - curve["1", 1.0]


@pytest.mark.slow
def test_a_label_shown_eight_windows_ago_is_remembered_unless_the_state_is_cut(
    tiny_world, monkeypatch
):
    settings = settings_of(Data(tiny_world / "ddd17", "sample"), "ddd17", "recurrent", "smoke")
    task = CueTask(replace(settings, bins=2), [cued_recording(0, 24)])
    torch.manual_seed(0)
    model = Cues(build_backbone("resnet_micro", True, 2, (32, 32)))
    with torch.no_grad():
        for lstm in model.backbone.lstms:
            lstm.gates.bias[: lstm.channels] += 3  # of the forget gate: it remembers from the start
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    learned = cued_recording(1, 240)
    histograms = learned.histograms(0, 240 * PERIOD, Binning(2, "edges"))
    clips = torch.from_numpy(histograms).unflatten(0, (240, PERIOD))  # (240, 16, 4, 32, 32)
    for first in range(0, 240, 8):
        batch = {
            "histograms": clips[first : first + 8],
            "is_first": torch.ones(8, dtype=torch.bool),
            "label_position": torch.tensor([[lane, PERIOD - 1] for lane in range(8)]),
            "labels": torch.from_numpy(learned.labels[first : first + 8]),
        }
        losses, _ = model.loss(batch, None)
        optimizer.zero_grad()
        losses["loss"].backward()
        optimizer.step()
    assert gain_of(task, model, monkeypatch) >= 30
    monkeypatch.setattr(model.backbone, "encode", partial(without, model.backbone.encode))
    assert abs(gain_of(task, model, monkeypatch)) < 1


def without(encode, tokens, state=None):
    """Features of windows that are encoded one by one, each from a zero state."""
    lanes, segments = tokens.shape[:2]
    features, _ = encode(tokens.flatten(0, 1).unsqueeze(1))
    return [maps.view(lanes, segments, *maps.shape[2:]) for maps in features], None


@pytest.fixture(scope="module")
def trained(tiny_world, tmp_path_factory):
    """Records of two fine-tunings and a pre-training of a few steps, and their folder."""
    folder = tmp_path_factory.mktemp("trained")
    records = {}
    for sampling in ("stream", "random"):
        changes = [f"sampling={sampling}", "optimisation.steps=2"]
        spec = cell_spec(tiny_world, folder, changes=changes, profile="smoke")
        records[sampling] = finetune(spec)
    settings = pretraining_settings("tespec", "smoke", ["optimisation.steps=2"])
    with short_pretrainings():
        data = Data(tiny_world / "1mpx", "sample")
        records["pretraining"] = pretrain("tespec", settings, data, 0, setup_in(folder)).record
    return folder, records


def weights_of(trained, name):
    """Path of the complete network of a record."""
    folder, records = trained
    file = "pretraining" if name == "pretraining" else "model"
    return folder / "runs" / records[name].name / f"{file}.safetensors"


def measured(trained, name, data, monkeypatch, lengths=(1, 2)):
    """Record of the history of a network, with short histories."""
    monkeypatch.setattr(history, "LENGTHS", lengths)
    return measure_history(weights_of(trained, name), data, setup_in(trained[0]))


@pytest.mark.parametrize("sampling", ["stream", pytest.param("random", marks=pytest.mark.slow)])
def test_the_longest_history_is_the_evaluation_to_the_digit(
    trained, tiny_world, monkeypatch, sampling
):
    record = measured(trained, sampling, tiny_world / "ddd17", monkeypatch)
    evaluated = trained[1][sampling]
    assert record.cell == replace(evaluated.cell, kind="history")
    assert (record.seed, record.data_fingerprint) == (evaluated.seed, evaluated.data_fingerprint)
    windows = {"stream": "all", "random": str(evaluated.config["segments"])}[sampling]
    for frames, metrics in {"all": evaluated.metrics, **evaluated.groups}.items():
        longest = record.groups[f"{windows} windows, rate 1, {frames}"]
        assert {name: longest[name] for name in metrics} == metrics
    assert record.groups["1 windows, rate 1, all"]["miou"] != evaluated.metrics["miou"]
    table = pd.read_csv(trained[0] / "results" / "pictures" / f"{record.name}.csv")
    assert len(table) == len(record.groups) == 3 * 5
    assert table["miou"].tolist() == [numbers["miou"] for numbers in record.groups.values()]


def test_the_losses_of_a_pretraining_are_those_of_its_validation(trained, tiny_world, monkeypatch):
    record = measured(trained, "pretraining", tiny_world / "1mpx", monkeypatch, (1, 2, 16))
    segments = record.config["segments"]
    losses = {
        name.partition(" ")[0]: numbers["loss_masked"] for name, numbers in record.groups.items()
    }
    validated = trained[1]["pretraining"].metrics
    assert losses["all"] == validated["loss_masked_carried"]
    assert losses[str(segments)] == validated["loss_masked_zeroed"]
    assert losses[str(16 * segments)] == losses["all"]  # longer than the recordings
    assert len({*losses.values()}) == 3


@pytest.mark.parametrize("windows", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_a_history_is_a_clip_from_a_zero_state(trained, tiny_world, windows):
    network = load_trained(weights_of(trained, "stream"))
    task = build_task(network.settings, tiny_world / "ddd17")
    clips = replace(network.spec, reset=True, segments=windows)
    scorer = task.evaluate(network.model, CPU, 0, clips)
    plain = task.scorer()
    for recording in task.scored:
        for label, end in enumerate(recording.label_indices):
            first = max(0, end - windows + 1)
            histograms = torch.from_numpy(recording.histograms(first, end - first + 1, clips))
            state = None
            for histogram in histograms:
                predicted, state = network.model.step(histogram[None], state)
            task.score(plain, predicted[0].numpy(), recording.labels[label], recording, label)
    for frames, scores in plain.by("group").items():
        # rounding may decide between equal logits of a pixel
        found = scorer.by("group")[frames].metrics()
        assert found == pytest.approx(scores.metrics(), abs=0.05)


@pytest.mark.parametrize("change", ["halved", "joined"])
def test_other_window_rates_hold_the_events_of_their_windows_and_all_labels(
    trained, tiny_world, change
):
    network = load_trained(weights_of(trained, "stream"))
    task = build_task(network.settings, tiny_world / "ddd17")
    (recording, *_) = task.scored
    parts = [halve_windows(recording)] if change == "halved" else join_windows(recording)
    times = np.concatenate([part.label_times for part in parts])
    assert sorted(times) == recording.label_times.tolist()
    size = {"height": recording.region.height, "width": recording.region.width}
    for part in parts:
        np.testing.assert_array_equal(part.windows[1:, 0], part.windows[:-1, 1])
        histograms = part.histograms(0, len(part), network.spec)
        for (start, end), histogram in zip(part.windows.tolist(), histograms, strict=True):
            x, y, t, p = recording.stream.slice(start, end)
            keep = y < recording.region.height
            expected = event_histogram(
                *(column[keep] for column in (x, y, t, p)),
                t_start=start,
                t_end=end,
                bins=network.spec.bins,
                **size,
            )
            np.testing.assert_array_equal(histogram, expected)
        for time, speed, label in zip(part.label_times, part.ego_speed, part.labels, strict=True):
            (index,) = np.flatnonzero(recording.label_times == time)
            assert speed == recording.ego_speed[index]
            np.testing.assert_array_equal(label, recording.labels[index])
    ratio = np.diff(parts[-1].windows[1:]).mean() / np.diff(recording.windows[1:]).mean()
    assert ratio == pytest.approx({"halved": 0.5, "joined": 2}[change], rel=0.05)


def test_the_line_names_the_gain_and_the_shortest_history_with_most_of_it():
    rows = [
        ("1", 1, 50, 20, 10),
        ("8", 1, 400, 24.6, 19),
        ("all", 1, 2e4, 25, 20),
        ("all", 2, 2e4, 3, 3),
    ]
    names = ["windows", "rate", "history_ms", "all", "standing"]
    wide = pd.DataFrame(rows, columns=names)
    curve = wide.melt(names[:3], var_name="frames", value_name="miou")
    gains, line = summarise(curve, "miou", Score("mIoU ↑", "higher", "%"))
    assert gains == {"all": 5, "standing": 10}
    assert line == (
        "memory improves mIoU by 5 (all frames), 10 (standing frames); "
        "90% of it within 0.4 s (8 windows)"
    )
    gains, line = summarise(curve, "miou", Score("loss ↓", "lower"))
    assert gains == {"all": -5, "standing": -10}
    assert line == "memory improves loss by -5 (all frames), -10 (standing frames)"


def rewritten(trained, folder, name, change):
    """A copy of a network's file with another recipe."""
    path = weights_of(trained, name)
    tensors, _ = read_tensors(path)
    recipe = json.loads(json.dumps(read_recipe(path)))
    change(recipe)
    write_weights(folder / path.name, tensors, recipe)
    return folder / path.name


REFUSED = {
    "feed-forward": (
        "stream",
        lambda recipe: recipe["run"]["cell"].update(arch="feedforward"),
        "is feed-forward, so it has no memory",
    ),
    "no recipe": ("stream", dict.clear, "does not name the run that trained it"),
    "no run": ("stream", lambda recipe: recipe.pop("run"), "does not name the run"),
    "another loss": (
        "pretraining",
        lambda recipe: recipe.update(objective={"type": "moby"}),
        "the loss of MoBY is not a masked one with a carried state",
    ),
    "other data": (
        "stream",
        lambda recipe: recipe["run"].update(data_fingerprint="0"),
        "is not the data of the network's run",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_has_no_history_is_refused_in_one_line(trained, tiny_world, tmp_path, capsys, case):
    name, change, message = REFUSED[case]
    path = rewritten(trained, tmp_path, name, change)
    data = tiny_world / ("1mpx" if name == "pretraining" else "ddd17")
    places = ["--results", tmp_path / "results", "--runs", tmp_path / "runs", "--device", "cpu"]
    words = ["run", "--model", path, "--history", "--data", data, *places]
    assert main([str(word) for word in words]) == 2
    assert message in capsys.readouterr().err.splitlines()[-1]
    assert not (tmp_path / "results").exists()


@pytest.mark.slow
def test_a_positive_control_is_measured_like_the_network_of_a_method(
    trained, tiny_world, tmp_path, monkeypatch
):
    path = rewritten(
        trained,
        tmp_path,
        "stream",
        lambda recipe: recipe["run"]["cell"].update(kind="control", method="control"),
    )
    monkeypatch.setattr(history, "LENGTHS", (1,))
    record = measure_history(path, tiny_world / "ddd17", setup_in(tmp_path))
    assert (record.cell.kind, record.cell.method) == ("history", "control")


def test_a_task_without_scores_is_refused(trained, tiny_world, tmp_path, monkeypatch):
    monkeypatch.delattr(SegmentationTask, "scores")
    with pytest.raises(UserError, match="scores: is missing, so no score is the main one"):
        measure_history(weights_of(trained, "stream"), tiny_world / "ddd17", setup_in(tmp_path))


def test_a_backbone_alone_and_data_without_labels_are_refused(trained, tiny_world, tmp_path):
    setup = setup_in(tmp_path)
    backbone = weights_of(trained, "pretraining").with_name("backbone.safetensors")
    with pytest.raises(UserError, match=r"is missing; give the pretraining.safetensors"):
        measure_history(backbone, tiny_world / "1mpx", setup)
    root = shutil.copytree(tiny_world / "ddd17", tmp_path / "ddd17")
    for masks in root.glob("dir*/segmentation_masks*"):
        shutil.rmtree(masks) if masks.is_dir() else masks.unlink()
    with pytest.raises(UserError, match="segmentation_masks"):
        measure_history(weights_of(trained, "stream"), root, setup)


def test_the_command_prints_what_memory_adds(trained, tiny_world, monkeypatch, capsys):
    record = measured(trained, "stream", tiny_world / "ddd17", monkeypatch)
    folder = trained[0]
    words = ["run", "--model", weights_of(trained, "stream"), "--history"]
    words += ["--data", tiny_world / "ddd17", "--results", folder / "results"]
    assert main([str(word) for word in [*words, "--runs", folder / "runs", "--device", "cpu"]]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first == record.protocol["memory"]
    assert re.fullmatch(r"memory improves mIoU by \S+ \(all frames\), .*", first)
    assert (folder / "results" / "pictures" / f"{record.name}.png").is_file()
    assert record.name in second

"""The history evaluation plays clips from a zero state, and its curve ends at the evaluation."""

import json
import re
import shutil
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from short_runs import cell_spec, setup_in, short_pretrainings

from tespec.cli.main import main
from tespec.core.config import pretraining_settings
from tespec.core.errors import UserError
from tespec.events import event_histogram
from tespec.inference import load_trained
from tespec.metrics import Score
from tespec.runs import history
from tespec.runs.data import Data
from tespec.runs.finetune import finetune
from tespec.runs.history import halve_windows, join_windows, measure_history, summarise
from tespec.runs.pretrain import pretrain
from tespec.tasks import build_task
from tespec.tasks.segmentation import SegmentationTask
from tespec.weights.files import read_recipe, read_tensors, write_weights

CPU = torch.device("cpu")


def tuned(world, folder, sampling):
    changes = [f"sampling={sampling}", "optimisation.steps=2"]
    return finetune(cell_spec(world, folder, changes=changes, profile="smoke"))


@pytest.fixture(scope="module")
def trained(tiny_world, tmp_path_factory):
    """Records of a fine-tuning and a pre-training of a few steps, and their folder."""
    folder = tmp_path_factory.mktemp("trained")
    records = {"stream": tuned(tiny_world, folder, "stream")}
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
    return measure_history(weights_of(trained, name), Data(data, "sample"), setup_in(trained[0]))


@pytest.mark.parametrize("sampling", ["stream", pytest.param("random", marks=pytest.mark.slow)])
def test_the_longest_history_is_the_evaluation_to_the_digit(
    trained, tiny_world, monkeypatch, sampling
):
    evaluated = trained[1][sampling] = tuned(tiny_world, trained[0], sampling)
    record = measured(trained, sampling, tiny_world / "ddd17", monkeypatch)
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
    record = measured(trained, "pretraining", tiny_world / "1mpx", monkeypatch, (1, 2, 8))
    segments = record.config["segments"]
    losses = {
        name.partition(" ")[0]: numbers["loss_masked"] for name, numbers in record.groups.items()
    }
    validated = trained[1]["pretraining"].metrics
    assert losses["all"] == validated["loss_masked_carried"]
    assert losses[str(segments)] == validated["loss_masked_zeroed"]
    assert losses[str(8 * segments)] == losses["all"]  # longer than the recordings
    assert len({*losses.values()}) == 3


@pytest.mark.parametrize("windows", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_a_history_is_a_clip_from_a_zero_state(trained, tiny_world, windows):
    network = load_trained(weights_of(trained, "stream"))
    task = build_task(network.settings, tiny_world / "ddd17")
    task.scored = [recording.subset(np.arange(12)) for recording in task.scored]
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
    "no setting": (
        "pretraining",
        lambda recipe: recipe.pop("dataset"),
        "setting 'dataset' is missing",
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
    data = Data(tiny_world / "ddd17", "sample")
    record = measure_history(path, data, setup_in(tmp_path))
    assert (record.cell.kind, record.cell.method) == ("history", "control")


def test_a_task_without_scores_is_refused(trained, tiny_world, tmp_path, monkeypatch):
    monkeypatch.delattr(SegmentationTask, "scores")
    data = Data(tiny_world / "ddd17", "sample")
    with pytest.raises(UserError, match="scores: is missing, so no score is the main one"):
        measure_history(weights_of(trained, "stream"), data, setup_in(tmp_path))


def test_a_backbone_alone_and_data_without_labels_are_refused(trained, tiny_world, tmp_path):
    setup = setup_in(tmp_path)
    backbone = weights_of(trained, "pretraining").with_name("backbone.safetensors")
    with pytest.raises(UserError, match=r"is missing; give the pretraining.safetensors"):
        measure_history(backbone, Data(tiny_world / "1mpx", "sample"), setup)
    root = shutil.copytree(tiny_world / "ddd17", tmp_path / "ddd17")
    for masks in root.glob("dir*/segmentation_masks*"):
        shutil.rmtree(masks) if masks.is_dir() else masks.unlink()
    with pytest.raises(UserError, match="segmentation_masks"):
        measure_history(weights_of(trained, "stream"), Data(root, "sample"), setup)


def test_the_command_prints_what_memory_adds_and_names_the_data_that_it_finds(
    trained, tiny_world, monkeypatch, capsys
):
    record = measured(trained, "stream", tiny_world / "ddd17", monkeypatch)
    commands = []

    def measure(path, data, setup):
        commands.append(setup.command)
        return measure_history(path, data, setup)

    monkeypatch.setattr(history, "measure_history", measure)
    monkeypatch.setenv("TESPEC_DATA", str(tiny_world))
    folder = trained[0]
    words = ["run", "--model", weights_of(trained, "stream"), "--history", "--device", "cpu"]
    words += ["--results", folder / "results", "--runs", folder / "runs"]
    assert main([str(word) for word in words]) == 0
    assert f" --data {tiny_world / 'ddd17'}" in commands[0]
    first, second = capsys.readouterr().out.splitlines()
    assert first == record.protocol["memory"]
    assert re.fullmatch(r"memory improves mIoU by \S+ \(all frames\), .*", first)
    assert (folder / "results" / "pictures" / f"{record.name}.png").is_file()
    assert record.name in second

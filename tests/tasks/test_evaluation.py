"""An evaluation with workers and lanes side by side predicts and scores what a plain loop over the labels does."""

import numpy as np
import pytest
import torch
import yaml

from tespec.core.boxes import Boxes
from tespec.core.errors import UserError
from tespec.core.paths import REPOSITORY
from tespec.datasets.recording import Recording
from tespec.metrics.depth import NAMES
from tespec.registry import TASKS
from tespec.runs.data import Data, settings_of
from tespec.tasks import build_task, import_tasks

CPU = torch.device("cpu")
WAYS = ((0, 1), (2, 1), (0, 3), (2, 3))  # workers and lanes


def predicted_one_by_one(task, model):
    """By recording and label: what is predicted for a recording that is played alone, window by window."""
    settings, found = task.settings, {}
    for number, recording in enumerate(task.scored):
        state = None
        for window in range(len(recording)):
            histograms = torch.from_numpy(recording.histograms(window, 1, settings.bins, settings.rule))[None]
            predictions, state = model.predict(histograms, state, torch.zeros(1, 2, dtype=torch.int64))
            for label in recording.labels_in(window, 1):
                found[number, label] = task.read(predictions)[0]
    return found


def predicted_in_evaluation(task, model, workers, monkeypatch):
    """By recording and label: what the evaluation predicts, and its scores."""
    found = {}

    def score(scorer, predicted, truth, recording, label):
        found[task.scored.index(recording), label] = predicted
        type(task).score(task, scorer, predicted, truth, recording, label)

    monkeypatch.setattr(task, "score", score)
    return found, task.evaluate(model, CPU, workers)


def numbers_of(prediction):
    """A prediction as numbers that a rounding moves little."""
    return np.sort(prediction.score) if isinstance(prediction, Boxes) else np.asarray(prediction, np.float64)


@pytest.mark.parametrize("name", ["ddd17", "mvsec", "gen1"])
@torch.no_grad()
def test_workers_and_lanes_change_no_prediction(tiny_world, name, monkeypatch):
    data, seen = Data(tiny_world / name, "sample"), {}
    for workers, lanes in WAYS:
        changes = ["segments=3", f"evaluation_lanes={lanes}"]
        task = build_task(settings_of(data, name, "recurrent", None, changes), data.root)
        # A few windows, beyond the first half second, in which no box is scored.
        task.scored = [each.part(12, 17 + number) for number, each in enumerate(task.scored[:2])]
        torch.manual_seed(0)
        model = task.model().eval()
        if name == "gen1":  # so that a fresh network finds boxes
            for conv in (*model.head.multi_level_conv_cls, *model.head.multi_level_conv_obj):
                conv.bias.zero_()
        seen[workers, lanes] = predicted_in_evaluation(task, model, workers, monkeypatch)
    for lanes in (1, 3):
        (here, scores), (there, others) = seen[0, lanes], seen[2, lanes]
        assert scores.overall().metrics() == others.overall().metrics()
        assert scores.by("recording") == others.by("recording")
        assert here.keys() == there.keys()
        assert all(np.array_equal(numbers_of(here[key]), numbers_of(there[key])) for key in here)
    alone = predicted_one_by_one(task, model)
    assert any(numbers_of(each).size for each in alone.values())
    for found, _ in seen.values():
        assert found.keys() == alone.keys()
        for key in alone:
            a, b = numbers_of(found[key]), numbers_of(alone[key])
            # A pixel whose two best classes lie within the rounding of another batch size may change.
            assert name != "ddd17" or (a != b).mean() < 0.01
            assert name == "ddd17" or (len(a) == len(b) and np.allclose(a, b, rtol=1e-3))


def test_a_recording_that_vanishes_ends_in_one_error(tiny_world, monkeypatch):
    data = Data(tiny_world / "ddd17", "sample")
    task = build_task(settings_of(data, "ddd17", "recurrent"), data.root)

    def gone(self, *_):
        raise FileNotFoundError(2, "No such file", "events")

    monkeypatch.setattr(Recording, "fill", gone)
    with pytest.raises(UserError, match="No such file"):
        task.evaluate(task.model(), CPU, 2)


@pytest.mark.parametrize(("kind", "main"), [("segmentation", "miou"), ("detection", "map"), ("depth", "abs")])
def test_titles_and_directions_of_scores_are_those_of_the_paper(kind, main):
    import_tasks()
    scores = TASKS.module_dict[kind].scores
    published = yaml.safe_load((REPOSITORY / "results" / "paper" / f"{kind}.yaml").read_text())
    for metric in published["metrics"]:
        assert (scores[metric["name"]].title, scores[metric["name"]].better) == (metric["title"], metric["better"])
    assert next(iter(scores)) == main
    assert all(score.title.endswith("↑" if score.better == "higher" else "↓") for score in scores.values())
    assert kind != "depth" or set(scores) == set(NAMES)

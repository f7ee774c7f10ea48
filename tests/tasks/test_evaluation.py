"""Evaluation with workers and parallel lanes predicts and scores as a loop over the labels does."""

from unittest.mock import Mock

import numpy as np
import pytest
import torch
import yaml
from twins import copied
from twins.rvt_archive import ONE_MPX, archive

from tespec.core.boxes import Boxes
from tespec.core.config import finetuning_settings
from tespec.core.errors import UserError
from tespec.core.paths import REPOSITORY
from tespec.metrics.depth import NAMES
from tespec.registry import TASKS
from tespec.runs.data import Data, settings_of
from tespec.tasks import build_task, import_tasks
from tespec.tasks.detection import DetectionTask

CPU = torch.device("cpu")


def predicted_one_by_one(task, model, clip=None):
    """Predictions by (recording, label): state carried, or of `clip` windows up to the label."""
    predictions = {}
    for number, recording in enumerate(task.scored):
        state = None
        n_past = 0
        for label, end in enumerate(recording.label_indices.tolist()):
            first = max(0, end + 1 - clip) if clip else n_past
            histograms = recording.histograms(first, end + 1 - first, task.settings.binning)
            index = torch.tensor([[0, end - first]])
            outputs, after = model.predict(torch.from_numpy(histograms)[None], state, index)
            if not clip:
                state = after
                n_past = end + 1
            predictions[number, label] = task.read(outputs)[0]
    return predictions


def numbers_of(prediction):
    """Numbers of a prediction that rounding changes little."""
    return (
        np.sort(prediction.score)
        if isinstance(prediction, Boxes)
        else np.asarray(prediction, np.float64)
    )


CARRIED = "state carried through the complete recording"
RESET = "state reset at the start of a clip of 3 windows that ends at the label"


@pytest.mark.parametrize(
    ("name", "sampling", "clip", "described"),
    [
        ("ddd17", "mixed", None, CARRIED),
        ("mvsec", "random", 3, RESET),
        ("gen1", "stream", None, CARRIED),
    ],
)
@torch.no_grad()
def test_workers_and_lanes_change_no_prediction(
    tiny_world, name, sampling, clip, described, monkeypatch
):
    data = Data(tiny_world / name, "sample")
    scorers = {}
    predictions = {}
    for workers, lanes in ((0, 1), (0, 3), (2, 3)):
        changes = ["segments=3", f"sampling={sampling}", f"evaluation_lanes={lanes}"]
        task = build_task(settings_of(data, name, "recurrent", None, changes), data.root)
        # A few windows after the first 0.5 s, since earlier boxes are not scored.
        task.scored = [
            recording.part(12, 17 + number) for number, recording in enumerate(task.scored[:2])
        ]
        torch.manual_seed(0)
        model = task.model().eval()
        for memory in model.backbone.lstms.parameters():
            memory.mul_(4)  # an untrained ConvLSTM has little effect
        if name == "gen1":  # so that an untrained network finds boxes
            for conv in (*model.head.multi_level_conv_cls, *model.head.multi_level_conv_obj):
                conv.bias.zero_()
        score = Mock(wraps=task.score)
        monkeypatch.setattr(task, "score", score)
        scorers[workers, lanes] = task.evaluate(model, CPU, workers)
        predictions[workers, lanes] = {
            (task.scored.index(recording), label): numbers_of(predicted)
            for _, predicted, _, recording, label in (call.args for call in score.call_args_list)
        }
    assert scorers[0, 3].overall().metrics() == scorers[2, 3].overall().metrics()
    assert scorers[0, 3].by("recording") == scorers[2, 3].by("recording")
    assert task.protocol()["events"].endswith(described)
    expected = predicted_one_by_one(task, model, clip)
    assert any(numbers_of(prediction).size for prediction in expected.values())
    assert all(by_label.keys() == expected.keys() for by_label in predictions.values())
    for key, prediction in expected.items():
        numbers = numbers_of(prediction)
        assert np.array_equal(predictions[0, 3][key], predictions[2, 3][key])
        for lanes in (1, 3):
            predicted = predictions[0, lanes][key]
            # Rounding depends on the batch size and may change the class of a pixel with two nearly
            # equal logits.
            assert name != "ddd17" or (predicted != numbers).mean() < 0.01
            assert name == "ddd17" or (
                len(predicted) == len(numbers) and np.allclose(predicted, numbers, rtol=1e-3)
            )


@pytest.mark.parametrize(("factor", "limits"), [(1, (60, 20)), (2, (30, 10))])
def test_the_limits_of_1mpx_are_in_px_of_the_sensor(
    tiny_world, tmp_path, monkeypatch, factor, limits
):
    """RVT drops boxes below a diagonal of 60 px or a side of 20 px (io/box_filtering.py)."""
    settings = finetuning_settings(
        "1mpx", "feedforward", "paper", [f"downsample.factor={factor}", "rule=rvt"]
    )
    monkeypatch.setattr(DetectionTask, "is_scored", lambda *_: True)  # all its boxes are smaller
    stored = copied(tiny_world, tmp_path, "1mpx")
    archive(stored, **ONE_MPX | {"factor": factor})
    for root in (tiny_world / "1mpx", stored):
        task = build_task(settings, root)
        filters = task.scorer().filters
        assert (filters.min_diagonal, filters.min_side) == limits
    ranked = "the 1000 boxes with the highest objectness times class score"
    assert ranked in task.protocol()["predictions"]


MISTAKES = [
    (
        "mvsec",
        "augmentation.zoom=0.5",
        r"augmentation.zoom: zoom augmentation is not supported for depth; set it to 0",
    ),
    ("mvsec", "head.min_depth=90.0", r"head.min_depth: 90 m is not below head.max_depth, 80 m"),
    ("dsec", "classes=[a, b]", "no masks of 2 classes in any known layout; list 11 or 19 classes"),
    (
        "dsec",
        "protocol.labels=some",
        r"protocol\.labels: 'some' is not allowed; it should be 'all' or 'ess'",
    ),
    (
        "gen1",
        "head.min_diagonal=-1.0",
        r"min_diagonal: -1.0 is not allowed; it should be greater than or equal to",
    ),
    ("ddd17", "protocol.rows=many", r"protocol\.rows: 'many' is not allowed"),
]


@pytest.mark.parametrize(("task", "change", "message"), MISTAKES)
def test_settings_that_do_not_go_together_are_named(tiny_world, task, change, message):
    data = Data(tiny_world / task, "sample")
    with pytest.raises(UserError, match=message):
        build_task(settings_of(data, task, "recurrent", None, [change]), data.root)


@pytest.mark.parametrize(
    ("kind", "main"), [("segmentation", "miou"), ("detection", "map"), ("depth", "abs")]
)
def test_titles_and_directions_of_scores_are_those_of_the_paper(kind, main):
    import_tasks()
    scores = TASKS.module_dict[kind].scores
    for metric in yaml.safe_load((REPOSITORY / "results" / "paper" / f"{kind}.yaml").read_text())[
        "metrics"
    ]:
        assert (scores[metric["name"]].title, scores[metric["name"]].better) == (
            metric["title"],
            metric["better"],
        )
    assert next(iter(scores)) == main
    assert all(
        score.title.endswith("↑" if score.better == "higher" else "↓") for score in scores.values()
    )
    assert kind != "depth" or set(scores) == set(NAMES)

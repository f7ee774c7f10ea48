import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from short_runs import setup_in, stopped_after

from tespec.comparison.records import read_records
from tespec.core.errors import UserError
from tespec.core.registry import register_methods
from tespec.datasets.evaluation import evaluation_of
from tespec.models.backbone import reset
from tespec.pretraining.method import find_method
from tespec.runs.data import Data, settings_of
from tespec.runs.finetune import FRAMES, Wanted, finetune
from tespec.tasks import build_task
from tespec.tasks.segmentation import SegmentationTask
from tespec.training.loop import Loop
from tespec.weights.load import WeightsReport

FEW = ["optimisation.steps=4", "optimisation.warmup_steps=1", "batch_size=2"]
FEW_PRETRAINING = ("optimisation.steps=2", "optimisation.warmup_steps=1", "batch_size=2", "segments=2")


def run(world, folder, method="scratch", arch="recurrent", seed=0, checkpoint=None, **changes):
    register_methods()
    setup = setup_in(folder, **changes)
    data = Data(world / "ddd17", "sample")
    settings = settings_of(data, "ddd17", arch, None, [*FEW, *(["segments=4"] if arch == "recurrent" else [])])
    return finetune(Wanted(method, find_method(method), settings, data, checkpoint, seed, setup, FEW_PRETRAINING))


@pytest.fixture(scope="module")
def straight(tiny_world, tmp_path_factory):
    folder = tmp_path_factory.mktemp("straight")
    return folder, run(tiny_world, folder)


def test_the_record_says_what_was_done(straight, tiny_world):
    folder, record = straight
    (path,) = (folder / "results" / "runs").iterdir()
    assert json.loads(path.read_text()) == record
    assert record.data == "sample"
    assert record.weights["source"] == "random initialisation"
    stages = {f"stage {number}" for number in range(1, 5)}
    assert stages <= set(record.groups) <= {"moving", "standing", *stages}
    assert all(1 <= record.groups[stage]["rank"] <= 192 for stage in stages)
    assert set(record.classes) == set(record.config["classes"])
    assert record.protocol["test"].startswith("dir2 (")
    facts = json.loads((tiny_world / "ddd17" / "dataset.json").read_text())
    assert list(record.recordings) == facts["splits"]["test"]


def test_ranks_are_those_of_the_trained_network_that_plays_the_scored_recordings(straight, tiny_world):
    folder, record = straight
    data = Data(tiny_world / "ddd17", "sample")
    settings = settings_of(data, "ddd17", "recurrent", None, [*FEW, "segments=4"])
    task = build_task(settings, data.root, "test")
    model = task.model().eval()
    untrained = last_features(model, settings, task)
    model.load_state_dict(load_file(folder / "runs" / record.name / "model.safetensors"))
    said = record.groups["stage 4"]
    assert said["rank"] == pytest.approx(rank(last_features(model, settings, task)), rel=1e-4)
    assert said["rank"] != pytest.approx(rank(untrained), rel=1e-2)


def last_features(model, settings, task):
    """(N, C) features of the last stage at every place of the first frames that are played, the state carried."""
    found, state = [], None
    with torch.no_grad():
        for batch in evaluation_of(settings, task.scored):
            maps, state = model.backbone(batch.histograms, reset(state, batch.fresh))
            found.append(maps[3].movedim(2, -1).flatten(0, 1))
            if sum(map(len, found)) >= FRAMES:
                break
    return torch.cat(found).flatten(0, -2).double().numpy()


def rank(features):
    """Effective rank: the exponential of the entropy of the singular values' shares."""
    shares = np.linalg.svd(features, compute_uv=False)
    shares = shares[shares > 0] / shares.sum()
    return np.exp(-(shares * np.log(shares)).sum())


def test_scores_lie_between_0_and_100(straight):
    metrics = straight[1].metrics
    assert set(metrics) == {"miou", "mean_class_acc", "pixel_acc"}
    assert all(0 <= value <= 100 for value in metrics.values())


def test_the_record_says_what_the_scores_of_its_task_are(tiny_world, tmp_path, monkeypatch):
    score = SimpleNamespace(title="mIoU", better="higher", unit="%")
    monkeypatch.setattr(SegmentationTask, "scores", {"miou": score}, raising=False)
    record = run(tiny_world, tmp_path)
    assert record.scores == {"miou": {"title": "mIoU", "better": "higher", "unit": "%"}}
    assert read_records(tmp_path / "results" / "runs") == ([record], [])


@pytest.mark.parametrize("arch", ["recurrent", pytest.param("feedforward", marks=pytest.mark.slow)])
def test_a_method_without_weights_is_pretrained_first(tiny_world, tmp_path, arch):
    record = run(tiny_world, tmp_path, method="tespec", arch=arch)
    assert record.weights["coverage"] == 1
    names = sorted(path.name.split("-")[0] for path in (tmp_path / "results" / "runs").iterdir())
    assert names == ["evaluation", "pretraining"]
    assert bool(record.weights["unused"]) == (arch == "feedforward")


def test_resumed_equals_uninterrupted(straight, tiny_world, tmp_path):
    with stopped_after(3, trained=1000.0), pytest.raises(KeyboardInterrupt):
        run(tiny_world, tmp_path)
    resumed = run(tiny_world, tmp_path)
    for part in ("id", "metrics", "recordings", "classes", "curve"):
        assert resumed[part] == straight[1][part], part
    assert all(1000 <= resumed.time[name] < 2000 for name in ("train", "total"))


def test_evaluation_does_not_depend_on_lanes_or_chunks(tiny_world):
    data = Data(tiny_world / "ddd17", "sample")
    task = build_task(settings_of(data, "ddd17", "recurrent"), data.root)
    torch.manual_seed(0)
    model = task.model()
    whole = task.evaluate(model, torch.device("cpu"))
    other = settings_of(data, "ddd17", "recurrent", None, ["segments=13", "evaluation_lanes=1"])
    parts = build_task(other, data.root).evaluate(model, torch.device("cpu"))
    assert parts.metrics["pixel_acc"] == pytest.approx(whole.metrics["pixel_acc"], abs=0.01)
    # A pixel of a rare class whose two best logits lie within the rounding of another batch size moves the mean.
    assert parts.metrics == pytest.approx(whole.metrics, abs=0.5)


def test_weights_of_another_width_are_refused_before_training(tiny_world, tmp_path):
    path = tmp_path / "other.safetensors"
    from tespec.models import EventSwin
    from tespec.weights.files import write_weights

    write_weights(path, EventSwin(arch="tiny", img_size=(64, 96)).state_dict(), {"width": "tiny"})
    with pytest.raises(UserError, match="this model needs"):
        run(tiny_world, tmp_path, method="tespec", checkpoint=path)
    assert not (tmp_path / "results").exists()


def test_a_pretrained_method_never_starts_at_random(tiny_world, tmp_path, monkeypatch):
    register_methods()
    monkeypatch.setattr(type(find_method("tespec")), "recipe", None)
    with pytest.raises(UserError, match=r"--method tespec: is pre-trained on 1Mpx; give --checkpoint FILE"):
        run(tiny_world, tmp_path, method="tespec")


def test_real_data_needs_a_checkpoint(tiny_world, tmp_path):
    register_methods()
    data = Data(tiny_world / "ddd17", "ddd17")
    settings = settings_of(data, "ddd17", "recurrent", "sample", FEW)
    with pytest.raises(UserError, match=r"--method tespec: needs pre-trained weights; give --checkpoint FILE"):
        finetune(Wanted("tespec", find_method("tespec"), settings, data, None, 0, setup_in(tmp_path)))


def test_what_fails_after_the_training_does_not_lose_it(straight, tiny_world, tmp_path, monkeypatch):
    def fail(*arguments):
        raise UserError("a mask", "is damaged", "copy it again")

    with monkeypatch.context() as patch:
        patch.setattr(SegmentationTask, "evaluate", fail)
        with pytest.raises(UserError, match="is damaged"):
            run(tiny_world, tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(Loop, "train_step", fail)
        resumed = run(tiny_world, tmp_path)
    assert resumed.metrics == straight[1].metrics
    left = sorted(path.name for path in (tmp_path / "runs" / resumed.name).iterdir())
    assert left == ["model.safetensors", "status.json"]


def test_another_start_of_the_same_method_is_another_result(straight, tiny_world, tmp_path, monkeypatch):
    def zeros(method, backbone, checkpoint, seed):
        for weight in backbone.parameters():
            torch.nn.init.zeros_(weight)
        return WeightsReport("zeros", "", 0, len(backbone.state_dict()))

    monkeypatch.setattr(type(find_method("scratch")), "initialise", zeros)
    assert run(tiny_world, tmp_path)["id"] != straight[1].id


def test_deterministic_mode_gives_the_same_result_on_a_cpu_and_is_recorded(straight, tiny_world, tmp_path):
    try:
        record = run(tiny_world, tmp_path, deterministic=True)
    finally:
        torch.use_deterministic_algorithms(False)
    assert record.environment["deterministic"] is True
    assert straight[1].environment["deterministic"] is False
    assert record.name == straight[1].name
    # Later ones have been through Adam, which turns the rounding of gradients that are nearly zero into whole steps.
    assert record.curve[0] == pytest.approx(straight[1].curve[0], rel=1e-4)

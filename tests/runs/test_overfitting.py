"""Every task overfits one short recording, which shows that data, model, loss and metric fit together."""

from dataclasses import replace

import pytest
import torch

from tespec.runs.data import Data, settings_of
from tespec.runs.train import CurveHook
from tespec.sample import make_world
from tespec.tasks import build_task
from tespec.training.trainer import Trainer

COMMON = ["augmentation.flip=0.0", "sampling=streams", "labels_per_chunk=null", "batch_size=1"]
COMMON += ["optimisation.peak_lr=2.0e-3", "optimisation.warmup_steps=30"]
# Windows of the recording, settings, metric, and the score to exceed.
MASKS = ["head.channels=96", "head.dropout=0.0", "optimisation.steps=600"]
CASES = {
    "ddd17": (3, MASKS, "pixel_acc", 97.0),  # one wrong pixel makes the IoU of an absent class 0
    "dsec": (3, MASKS, "pixel_acc", 97.0),
    "gen1": (20, ["optimisation.steps=250"], "ap50", 90.0),
    "mvsec": (4, ["optimisation.steps=300"], "delta_1", 0.9),
}


@pytest.fixture(scope="module")
def detailed_world(tmp_path_factory):
    """Path of the "small" sample world; masks of the tiny one are too coarse for features at stride 4."""
    return make_world("small", root=tmp_path_factory.mktemp("worlds"), processes=2, datasets=("ddd17", "dsec"))


@pytest.mark.slow
@pytest.mark.parametrize("task", CASES)
def test_one_short_recording_is_learned_by_heart(request, task):
    windows, changes, metric, wanted = CASES[task]
    world = request.getfixturevalue("detailed_world" if changes is MASKS else "tiny_world")
    data = Data(world / task, "sample")
    settings = settings_of(data, task, "recurrent", None, [*COMMON, f"segments={windows}", *changes])
    built = build_task(settings, data.root)
    built.train = built.scored = [replace(built.train[0].part(0, windows), name="one")]
    torch.manual_seed(0)
    model, curve = built.model(), CurveHook(interval=1)
    loop = Trainer(model, built.steps(0), settings.optimisation, seed=0, device=torch.device("cpu"), hooks=[curve])
    loop.run()
    losses = [point["loss"] for point in curve.curve]
    assert losses[0] >= 10 * sum(losses[-10:]) / 10
    assert built.evaluate(model, torch.device("cpu")).overall().metrics()[metric] > wanted

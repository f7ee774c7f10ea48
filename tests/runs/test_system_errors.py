"""An error of the system at any file operation of a run: the next start completes it, unchanged."""

import errno
import os
import shutil
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from made_records import cell
from matplotlib.figure import Figure
from short_runs import setup_in, stopped_after
from torch import nn

from tespec.comparison import records
from tespec.core.config import finetuning_settings
from tespec.core.errors import UserError
from tespec.core.files import sha256_of
from tespec.pictures import save_figure
from tespec.pretraining.method import find_method
from tespec.registry import register_methods
from tespec.runs import train as training
from tespec.runs.run import Run, run_or_load
from tespec.runs.train import train
from tespec.training.checkpoint import newest_complete
from tespec.training.loading import MicroBatches
from tespec.weights.files import write_weights

CODES = [errno.EIO, errno.EMFILE, errno.ESTALE, errno.EACCES, errno.ENOSPC]
EVENTS = ("open", "os.listdir", "os.scandir", "os.mkdir", "os.rename", "os.remove")
STEPS = 2
injected = SimpleNamespace(folder="-", at=0, code=0, count=0)


def inject(event: str, arguments: tuple) -> None:
    """Count the file operations in a folder, and make one of them fail."""
    if event not in EVENTS or not str(arguments[0]).startswith(injected.folder):
        return
    injected.count += 1
    if injected.count == injected.at:
        raise OSError(injected.code, os.strerror(injected.code), str(arguments[0]))


def stat(path, *arguments, real=os.stat, **options) -> os.stat_result:
    """Count `os.stat`, which has no audit event."""
    inject("open", (path,))
    return real(path, *arguments, **options)


def fsync(descriptor: int) -> None:
    """Count `os.fsync` without calling it, as it is slow."""
    inject("open", (os.readlink(f"/proc/self/fd/{descriptor}"),))


class Mean(nn.Module):
    """Model whose loss is the distance of its weight to the mean of a batch."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2))

    def loss(self, batch, state):
        return {"loss": (self.weight - batch["x"].mean()).square().sum()}, None


class Steps(torch.utils.data.Dataset):
    """Batches by step."""

    def __getitem__(self, step):
        return {"x": torch.full((2,), float(step))}


def compute(folder: Path) -> None:
    """Train, draw, save and record, as a run does."""
    settings = finetuning_settings("ddd17", "feedforward", "smoke")
    optimisation = replace(settings.optimisation, steps=STEPS, warmup_steps=0)
    model = Mean()
    run = Run(
        cell=cell("scratch", "feedforward"),
        row=find_method("scratch").row,
        settings=replace(settings, optimisation=optimisation),
        config={},
        data={"x": "x"},
        seed=0,
        setup=setup_in(folder),
    )

    def evaluate():
        save_figure(Figure((0.5, 0.5)), run.setup.results / "pictures" / "a.png", dpi=20)
        write_weights(run.folder / "model.safetensors", model.state_dict(), {})
        return {"protocol": {}, "metrics": {"weight": model.weight.sum().item()}}

    steps = partial(train, run, model, MicroBatches([Steps()]))
    run_or_load(run, evaluate, steps)


def outcome(folder: Path) -> dict:
    """Hashes of pictures and weights, and numbers of the record."""
    (record,) = folder.glob("results/runs/*.json")
    record = records.find_record(folder / "results", record.stem)
    files = [*folder.glob("runs/[!.]*/*"), *folder.glob("results/pictures/*")]
    hashes = {str(path.relative_to(folder)): sha256_of(path) for path in files}
    return {"metrics": record.metrics, "curve": record.curve, **hashes}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Folders of a complete run, and of one that was stopped after its first step."""
    register_methods()
    sys.addaudithook(inject)
    complete, stopped = (tmp_path_factory.mktemp(name) for name in ("complete", "stopped"))
    compute(complete)
    with stopped_after(1), pytest.raises(KeyboardInterrupt):
        compute(stopped)
    return complete, stopped


@pytest.mark.slow
@pytest.mark.parametrize("code", CODES, ids=errno.errorcode.get)
def test_the_next_start_completes_a_run_after_an_error_at_any_file_operation(
    folders, tmp_path, monkeypatch, code
):
    complete, stopped = folders
    monkeypatch.setattr(records, "environment", lambda device: {"device": device})  # is slow
    monkeypatch.setattr(training, "SECONDS_BETWEEN_CHECKPOINTS", 0.0)
    monkeypatch.setattr(os, "stat", stat)
    monkeypatch.setattr(os, "fsync", fsync)
    messages = []
    for before in (stopped, complete):
        number = 0
        while injected.count >= number:
            number += 1
            folder = shutil.copytree(before, tmp_path / f"{before.name}-{number}")
            injected.__dict__.update(folder=str(folder), at=number, code=code, count=0)
            try:
                compute(folder)
            except (OSError, UserError) as error:
                messages.append(str(error))
            injected.folder = "-"
            if not list(folder.glob("results/runs/*.json")):
                (run,) = folder.glob("runs/[!.]*")
                newest, damaged = newest_complete(run)
                assert (newest.name >= "step-000000001.pt", damaged) == (True, [])
            compute(folder)
            assert outcome(folder) == outcome(complete), number
            shutil.rmtree(folder)
    assert len(messages) > 20
    assert all(os.strerror(code) in message for message in messages)

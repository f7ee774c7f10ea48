import os
from types import SimpleNamespace

import pytest
import torch

from tespec.core.errors import UserError
from tespec.runs import train
from tespec.training import loading
from tespec.training.loading import choose_workers, deal, load_batches


def test_more_ranks_than_lanes_are_refused(monkeypatch):
    for module in (loading, train):
        monkeypatch.setattr(module, "world_size", lambda: 16)
    monkeypatch.setattr(loading, "rank", lambda: 5)
    with pytest.raises(UserError, match=r"8 does not divide evenly .*; use --set batch_size=16"):
        train.require_trainable(SimpleNamespace(batch_size=8), SimpleNamespace(accumulate=1))
    assert deal(lambda seed, part: [part], 0, 2)[1] == (11, 32)


BATCH = {"x": torch.zeros(250_000)}  # 1 MB
CHOSEN = [
    # cores, MB of free shared memory, processes, workers
    (16, 10_000, 1, 8),
    (6, 10_000, 1, 5),
    (2, 10_000, 1, 0),
    (16, 12, 1, 3),
    (16, 3, 1, 0),
    (16, 10_000, 4, 3),
    (16, 40, 4, 2),
]


@pytest.mark.parametrize(("cores", "free", "processes", "workers"), CHOSEN)
def test_workers_follow_cores_and_shared_memory(monkeypatch, capsys, cores, free, processes, workers):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(processes))
    monkeypatch.setattr(loading, "world_size", lambda: 64)  # on all machines
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: range(cores))
    monkeypatch.setattr(loading.shutil, "disk_usage", lambda path: SimpleNamespace(free=free * 1_000_000))
    assert choose_workers(BATCH) == choose_workers((BATCH["x"], [])) == workers
    assert capsys.readouterr().err.startswith(f"workers: {workers} (")


@pytest.mark.parametrize(
    ("workers", "pin", "said"),
    [(0, True, "--workers 0 with a GPU: it waits"), (None, True, "workers: 0 (2 cores, "), (None, False, "")],
)
def test_a_gpu_that_has_to_wait_for_its_batches_is_told_of(monkeypatch, capsys, workers, pin, said):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: range(2))
    monkeypatch.setattr(loading, "DataLoader", lambda steps, **options: [steps[0]] * (options["num_workers"] == 0))
    assert list(load_batches([BATCH], 0, 1, workers, pin=pin)) == [BATCH]
    err = capsys.readouterr().err
    assert (err.startswith(said), err.count("\n")) == (True, bool(said))

"""A run that could not be saved or recorded is refused before its first step."""

import shutil
from collections import namedtuple
from types import SimpleNamespace

import pytest
import torch
from short_runs import setup_in
from torch import nn

from tespec.core.errors import UserError
from tespec.runs.run import require_recordable
from tespec.training.checkpoint import require_space, save_checkpoint
from tespec.weights.files import read_tensors, write_weights


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(5, 5), nn.Linear(5, 5)
        self.b.weight = self.a.weight


class ExtraState(Tied):
    def get_extra_state(self):
        return {"not": "a tensor"}


def check(folder, recording="dir0", name="run", config=None, **setup):
    run = SimpleNamespace(
        name=name,
        folder=folder / "runs" / name,
        setup=setup_in(folder, **setup),
        config=config or {},
        data={f"0/{recording}: events.raw": "a hash"},
    )
    require_recordable(run)


def test_tied_weights_are_accepted_and_saved_and_nothing_is_left(tmp_path):
    check(tmp_path)
    require_space(tmp_path / "runs" / "run", Tied())
    assert list(tmp_path.iterdir()) == []
    state = Tied().state_dict()
    write_weights(tmp_path / "x", state, {})
    tensors, _ = read_tensors(tmp_path / "x")
    assert all(torch.equal(tensors[name], values) for name, values in state.items())


@pytest.mark.parametrize(
    ("message", "changes"),
    [
        ("cannot be recorded, as it is not UTF-8; rename it", {"command": "run --data \udcff"}),
        ("cannot be recorded, as it is not UTF-8; rename it", {"recording": "b\udcff"}),
        ("cannot be recorded, as it is not UTF-8; rename it", {"config": {"a": {"b": ["\udcff"]}}}),
        ("results/runs: cannot be written to .File name too long", {"name": "a" * 250}),
    ],
)
def test_what_a_record_cannot_hold_is_refused(tmp_path, message, changes):
    with pytest.raises(UserError, match=message):
        check(tmp_path, **changes)
    assert list(tmp_path.iterdir()) == []


def test_weights_that_a_file_cannot_hold_are_refused(tmp_path):
    sparse = Tied()
    sparse.register_buffer("extra", torch.eye(3).to_sparse())
    for model in (ExtraState(), sparse):
        name = type(model).__name__
        with pytest.raises(UserError, match=f"{name}: its state dict cannot be saved as safeten"):
            require_space(tmp_path, model)


@pytest.mark.parametrize("folder", ["runs", "results/runs", "results/pictures"])
def test_a_folder_that_cannot_be_written_is_refused(tmp_path, folder):
    (tmp_path / folder).parent.mkdir(exist_ok=True)
    (tmp_path / folder).write_text("a file")
    with pytest.raises(UserError, match=f"{folder}.*: cannot be written to .Not a directory"):
        check(tmp_path)


def test_space_for_all_checkpoints_is_required_less_those_that_exist(tmp_path, monkeypatch):
    layer = nn.Linear(1000, 1000)
    one = 3 * 4 * 1001 * 1000  # bytes: weights and both moments of Adam
    usage = namedtuple("usage", "free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(int(2.9 * one)))
    folder = tmp_path / "runs" / "run"
    with pytest.raises(UserError, match=r"needs 0\.04 GB for checkpoints, and 0\.03 GB are free"):
        require_space(folder, layer)
    save_checkpoint(folder, 1, {"x": torch.zeros(one // 4)})
    require_space(folder, layer)

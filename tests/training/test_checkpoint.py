import pytest
import torch

from tespec.errors import UserError
from tespec.training.checkpoint import checkpoints, latest_checkpoint, require_same_run, save_checkpoint

CONTENT = {"run": "a", "state": (torch.arange(3), {"h": torch.ones(2)}, None), "curve": [{"step": 1.0}]}


def test_reads_back_what_was_written(tmp_path):
    save_checkpoint(tmp_path, 7, CONTENT)
    content, torn = latest_checkpoint(tmp_path)
    assert torn == []
    assert torch.equal(content["state"][0], torch.arange(3))
    assert content["curve"] == [{"step": 1.0}]


def test_no_checkpoint_yet(tmp_path):
    assert latest_checkpoint(tmp_path / "never") == (None, [])


def test_keeps_the_newest_two_and_leaves_nothing_else(tmp_path):
    for step in (5, 10, 100):
        save_checkpoint(tmp_path, step, {"step": step})
    assert [path.name for path in checkpoints(tmp_path)] == ["step-000000010.pt", "step-000000100.pt"]
    assert len(list(tmp_path.iterdir())) == 2
    assert latest_checkpoint(tmp_path)[0] == {"step": 100}


@pytest.mark.parametrize("length", [0, 1, 100, 400])
def test_a_torn_file_is_passed_over_by_name(tmp_path, length):
    save_checkpoint(tmp_path, 1, {"step": 1})
    path = save_checkpoint(tmp_path, 2, {"step": 2, "tensor": torch.zeros(1000)})
    path.write_bytes(path.read_bytes()[:length])
    assert latest_checkpoint(tmp_path) == ({"step": 1}, ["step-000000002.pt"])


def test_a_failed_write_leaves_the_old_checkpoint_alone(tmp_path):
    save_checkpoint(tmp_path, 1, {"step": 1})
    with pytest.raises(Exception, match="pickle"):
        save_checkpoint(tmp_path, 2, {"unwritable": lambda: None})
    assert [path.name for path in tmp_path.iterdir()] == ["step-000000001.pt"]


def test_another_runs_checkpoint_is_refused(tmp_path):
    require_same_run({"run": "a"}, "a", tmp_path)
    with pytest.raises(UserError, match="other settings"):
        require_same_run({"run": "a"}, "b", tmp_path)

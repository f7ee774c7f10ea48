import errno
import os
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tespec.core.errors import UserError
from tespec.training.checkpoint import (
    newest_complete,
    read_checkpoint,
    remove_checkpoints,
    remove_unfinished,
    save_checkpoint,
)

CONTENT = {
    "run": "a",
    "state": (torch.arange(3), {"h": torch.ones(2)}, None),
    "curve": [{"step": 1.0}],
}


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize(
    ("saved", "remaining"),
    [((5, 10, 100), (10, 100)), ((200, 300, 346, 117), (117,)), ((1, 3, 3), (1, 3))],
)
def test_the_newest_two_stay_and_none_of_a_later_step(tmp_path, saved, remaining):
    for number, step in enumerate(saved):
        path = save_checkpoint(tmp_path, step, CONTENT | {"number": number})
    assert names(tmp_path) == [f"step-{step:09d}.pt" for step in remaining]
    assert newest_complete(tmp_path) == (path, [])
    content = read_checkpoint(path, "a")
    assert (content["number"], content["curve"]) == (number, [{"step": 1.0}])
    assert torch.equal(content["state"][0], torch.arange(3))
    with pytest.raises(UserError, match="belongs to a run with different settings; remove it"):
        read_checkpoint(path, "b")
    (tmp_path / ".step-000000002.pt.abc.part").write_bytes(b"of a process that was killed")
    remove_unfinished(tmp_path)
    assert len(names(tmp_path)) == len(remaining)
    remove_checkpoints(tmp_path)
    assert names(tmp_path) == []
    assert newest_complete(tmp_path) == (None, [])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(data=st.data())
def test_a_damaged_checkpoint_is_skipped_by_name(tmp_path, data):
    remove_checkpoints(tmp_path)
    older, path = (save_checkpoint(tmp_path, step, CONTENT | {"step": step}) for step in (1, 2))
    content = path.read_bytes()
    position = data.draw(st.integers(0, len(content) - 1))
    if data.draw(st.booleans()):
        path.write_bytes(content[:position])
        assert newest_complete(tmp_path) == (older, [path.name])
        return
    path.write_bytes(
        content[:position]
        + bytes([content[position] ^ data.draw(st.integers(1, 255))])
        + content[position + 1 :]
    )
    # A changed byte may have no effect, as in padding or a date.
    if newest_complete(tmp_path) != (older, [path.name]):
        content = read_checkpoint(path, "a")
        assert content["step"] == 2
        assert torch.equal(content["state"][0], torch.arange(3))


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_full_disk_leaves_the_old_ones_alone(tmp_path, monkeypatch, call):
    for step in (1, 2):
        save_checkpoint(tmp_path, step, CONTENT)
    monkeypatch.setattr(
        os, call, Mock(side_effect=OSError(errno.ENOSPC, "No space left on device"))
    )
    with pytest.raises(OSError, match="No space left"):
        save_checkpoint(tmp_path, 3, CONTENT)
    assert names(tmp_path) == ["step-000000001.pt", "step-000000002.pt"]


class Bomb:
    def __reduce__(self):
        return os.mkdir, ("/tmp/exploded",)


@pytest.mark.parametrize(
    "content", [{"run": "a", "bomb": Bomb()}, {"run": "a", "at": Path()}, [1, 2], {"other": 1}]
)
def test_another_file_is_refused_and_not_skipped_and_its_code_is_not_run(tmp_path, content):
    save_checkpoint(tmp_path, 1, CONTENT)
    torch.save(content, path := tmp_path / "step-000000002.pt")
    assert newest_complete(tmp_path) == (path, [])
    with pytest.raises(UserError, match="is not a training checkpoint; remove it"):
        read_checkpoint(path, "a")
    assert not os.path.exists("/tmp/exploded")


def test_a_checkpoint_with_a_damaged_directory_is_skipped(tmp_path):
    older, path = (save_checkpoint(tmp_path, step, CONTENT | {"step": step}) for step in (1, 2))
    content = path.read_bytes()
    position = (
        content.index(b"PK\x01\x02") + 35
    )  # the number of a disk, which zipfile does not check
    path.write_bytes(content[:position] + bytes([content[position] ^ 1]) + content[position + 1 :])
    assert newest_complete(tmp_path) == (older, [path.name])

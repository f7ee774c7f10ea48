import errno
import os
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure

from tespec.comparison.records import find_record
from tespec.core.errors import UserError
from tespec.core.files import sha256_of, write_all
from tespec.pictures import save_figure
from tespec.training.checkpoint import (
    OVERWRITTEN,
    newest_complete,
    read_checkpoint,
    remove_checkpoints,
    remove_leftovers,
    remove_unfinished,
    save_checkpoint,
    start_again,
)
from tespec.weights.files import read_tensors, write_weights

CONTENT = {
    "run": "a",
    "state": (torch.arange(3), {"h": torch.ones(2)}, None),
    "curve": [{"step": 1.0}],
}


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize(
    ("saved", "remaining"),
    [((5, 10, 100), (10, 100)), ((5, 10), (5, 10)), ((1, 3, 3), (1, 3))],
)
def test_the_newest_two_stay(tmp_path, saved, remaining):
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
    (tmp_path / ".ab12.part" / "dir1").mkdir(parents=True)  # unfinished predictions
    (tmp_path / ".of_an_editor").mkdir()
    remove_unfinished(tmp_path)
    assert names(tmp_path)[0] == ".of_an_editor"
    (tmp_path / ".of_an_editor").rmdir()
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


def test_damaged_ones_of_later_steps_stay_until_the_training_replaces_them(tmp_path):
    damaged = [tmp_path / f"step-000000{step}.pt" for step in (300, 200)]
    for path in damaged:
        path.write_bytes(b"half")
    for step in (100, 150, 199):
        path = save_checkpoint(tmp_path, step, CONTENT)
        assert newest_complete(tmp_path) == (path, [other.name for other in damaged])
    assert {other.read_bytes() for other in damaged} == {b"half"}
    path = save_checkpoint(tmp_path, 200, CONTENT)
    assert newest_complete(tmp_path) == (path, [damaged[0].name])
    assert names(tmp_path) == [f"step-000000{step}.pt" for step in (199, 200, 300)]


@pytest.mark.parametrize("record_before", [None, "old", "damaged"])
def test_overwriting_resumes_its_start_until_the_record_is_new(tmp_path, record_before):
    record, folder = tmp_path / "record.json", tmp_path / "run"
    if record_before:
        record.write_text(record_before)
    for text in ("new", "newer"):
        save_checkpoint(folder, 7, CONTENT)  # of another start
        start_again(folder, record)
        assert newest_complete(folder) == (None, [])
        path = save_checkpoint(folder, 3, CONTENT)
        for _ in range(2):
            start_again(folder, record)
            assert newest_complete(folder) == (path, [])
        record.write_text(text)
    remove_checkpoints(folder)
    assert names(folder) == []


ERRORS = [errno.EIO, errno.EMFILE, errno.ESTALE, errno.EACCES, errno.ENOSPC, errno.ENOMEM]
# System calls that an action cannot do without.
CALLS = {
    "save": ["mkdir", "open", "write", "fsync", "replace", "listdir", "unlink"],
    "write weights": ["mkdir", "open", "write", "fsync", "replace"],
    "write a record": ["mkdir", "open", "write", "fsync", "replace"],
    "draw": ["mkdir", "savefig", "open", "fsync", "replace"],
    "read weights": ["stat", "open", "read"],
    "find a record": ["stat", "open", "read"],
    "resume": ["listdir", "stat", "open", "read"],
    "start again": ["stat", "open", "read"],
}


class FailingFile:
    """Open file whose `call` fails, after half of the content if it is `write`."""

    def __init__(self, file, call, failure):
        self.file, self.call, self.failure = file, call, failure

    def read(self, *size):
        return self.failure() if self.call == "read" else self.file.read(*size)

    def write(self, content):
        return self.file.write(content[: len(content) // 2]) and self.failure()

    def __getattr__(self, name):
        return getattr(self.file, name)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.file.close()


def make_fail(patch, call, code):
    """Make a system call fail from now on."""
    failure = Mock(side_effect=OSError(code, os.strerror(code)))
    if call in ("read", "write"):
        real = Path.open
        patch.setattr(
            Path, "open", lambda *how, **more: FailingFile(real(*how, **more), call, failure)
        )
    else:
        is_of_os = call in ("fsync", "replace", "listdir")
        patch.setattr(os if is_of_os else Figure if call == "savefig" else Path, call, failure)


@pytest.mark.parametrize("code", ERRORS, ids=errno.errorcode.get)
@pytest.mark.parametrize(
    ("action", "call"), [(action, call) for action, calls in CALLS.items() for call in calls]
)
def test_an_error_of_the_system_is_raised_and_loses_nothing(
    tmp_path, monkeypatch, action, call, code
):
    names = ("run", "runs/record.json", "weights.safetensors", "picture.png")
    folder, record, weights, picture = (tmp_path / name for name in names)
    record.parent.mkdir()
    for path in (record, picture):
        path.write_text("old")
    write_weights(weights, {"weight": torch.zeros(2)}, {})
    start_again(folder, record)
    for step in (1, 2):
        save_checkpoint(folder, step, CONTENT | {"step": step})
    files = (record, weights, picture)
    before = {path: path.read_bytes() for path in [*files, *folder.iterdir()]}
    actions = {
        "save": lambda: save_checkpoint(folder, 3, CONTENT | {"step": 3}),
        "write weights": lambda: write_weights(weights, {"weight": torch.ones(2)}, {}),
        "write a record": lambda: write_all({record: "new"}),
        "draw": lambda: save_figure(Figure((0.5, 0.5)), picture, dpi=20),
        "read weights": lambda: read_tensors(weights),
        "find a record": lambda: find_record(tmp_path, "record"),
        "resume": lambda: newest_complete(folder),
        "start again": lambda: start_again(folder, record),
    }
    with monkeypatch.context() as patch:
        make_fail(patch, call, code)
        with pytest.raises((OSError, UserError), match=os.strerror(code)):
            actions[action]()
    saved = (action, call) in (("save", "listdir"), ("save", "unlink"))
    path, damaged = newest_complete(folder)
    assert (read_checkpoint(path, "a")["step"], damaged) == (3 if saved else 2, [])
    if saved:
        path.unlink()
    assert before == {path: path.read_bytes() for path in [*files, *folder.iterdir()]}


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


def test_leftovers_are_those_of_a_complete_training_that_replaces_no_record(tmp_path):
    folder = tmp_path / "run"
    record = tmp_path / "record.json"
    record.write_text("old")
    save_checkpoint(folder, 3, CONTENT)
    remove_leftovers(folder, record, 4)  # stopped: the same run may have other results
    save_checkpoint(folder, 4, CONTENT)
    (folder / OVERWRITTEN).write_text(sha256_of(record))
    remove_leftovers(folder, record, 4)  # stopped before the record was replaced
    assert len(names(folder)) == 3
    record.write_text("new")
    remove_leftovers(folder, record, 4)
    assert names(folder) == []

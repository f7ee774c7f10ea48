from __future__ import annotations

import errno
import hashlib
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tespec.core.errors import UserError
from tespec.training import checkpoint
from tespec.training.checkpoint import (
    MANIFEST,
    REST,
    WEIGHTS,
    checkpoints,
    clear,
    latest_checkpoint,
    newest_whole,
    require_same_run,
    save_checkpoint,
    tidy,
)

REST_OF_IT = {"run": "a", "state": (torch.arange(3), {"h": torch.ones(2)}, None), "curve": [{"step": 1.0}]}
SHARED = torch.arange(12.0).reshape(3, 4)
TENSORS = {"a": SHARED, "b": SHARED.T, "c": SHARED[0], "share": torch.zeros((), dtype=torch.float64)}


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_reads_back_what_was_written(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, 7, TENSORS, REST_OF_IT)
    weights, rest, torn = latest_checkpoint(tmp_path)
    assert torn == []
    assert set(weights) == set(TENSORS)
    assert all(torch.equal(weights[name], tensor) and weights[name].dtype == tensor.dtype
               for name, tensor in TENSORS.items())  # fmt: skip
    assert torch.equal(rest["state"][0], torch.arange(3))
    assert rest["curve"] == [{"step": 1.0}]


def test_no_checkpoint_yet(tmp_path: Path) -> None:
    assert latest_checkpoint(tmp_path / "never") == ({}, {}, [])
    assert newest_whole(tmp_path / "never") is None


def test_keeps_the_newest_two_and_leaves_nothing_else(tmp_path: Path) -> None:
    for step in (5, 10, 100):
        save_checkpoint(tmp_path, step, {}, {"step": step})
    assert names(tmp_path) == ["step-000000010", "step-000000100"]
    assert latest_checkpoint(tmp_path)[1] == {"step": 100}
    assert names(tmp_path / "step-000000100") == [MANIFEST, WEIGHTS, REST]
    clear(tmp_path)
    assert names(tmp_path) == []


def test_what_is_saved_last_is_what_is_found_beside_later_steps_of_an_earlier_start(tmp_path: Path) -> None:
    for step in (200, 300, 346):
        save_checkpoint(tmp_path, step, {}, {"step": step})
    saved = save_checkpoint(tmp_path, 117, {}, {"step": 117})
    assert saved == newest_whole(tmp_path)
    assert latest_checkpoint(tmp_path)[1] == {"step": 117}


def test_the_manifest_tells_sizes_and_hashes(tmp_path: Path) -> None:
    path = save_checkpoint(tmp_path, 3, TENSORS, REST_OF_IT)
    listed = json.loads((path / MANIFEST).read_text())["files"]
    assert {name: facts["bytes"] for name, facts in listed.items()} == {
        name: (path / name).stat().st_size for name in (WEIGHTS, REST)
    }


def test_the_same_step_twice_keeps_the_second(tmp_path: Path) -> None:
    for number in (1, 2):
        save_checkpoint(tmp_path, 3, {}, {"number": number})
    assert latest_checkpoint(tmp_path)[1] == {"number": 2}
    assert names(tmp_path) == ["step-000000003"]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(data=st.data())
def test_a_damaged_checkpoint_is_passed_over_by_name(tmp_path: Path, data: st.DataObject) -> None:
    clear(tmp_path)
    save_checkpoint(tmp_path, 1, TENSORS, {"step": 1})
    path = save_checkpoint(tmp_path, 2, TENSORS, {"step": 2})
    victim = path / data.draw(st.sampled_from([MANIFEST, WEIGHTS, REST]))
    content = victim.read_bytes()
    if data.draw(st.booleans()):
        victim.write_bytes(content[: data.draw(st.integers(0, len(content) - 1))])
    else:
        place = data.draw(st.integers(0, len(content) - 1))
        changed = bytes([content[place] ^ data.draw(st.integers(1, 255))])
        victim.write_bytes(content[:place] + changed + content[place + 1 :])
    _, rest, torn = latest_checkpoint(tmp_path)
    # A manifest may be changed where it means the same, as in a blank.
    if victim.name != MANIFEST or rest == {"step": 1}:
        assert (rest, torn) == ({"step": 1}, ["step-000000002"])
        assert newest_whole(tmp_path) == tmp_path / "step-000000001"


def test_a_missing_file_is_a_torn_checkpoint(tmp_path: Path) -> None:
    for name in (MANIFEST, WEIGHTS, REST):
        path = save_checkpoint(tmp_path, 2, TENSORS, {"step": 2})
        (path / name).unlink()
        assert latest_checkpoint(tmp_path) == ({}, {}, ["step-000000002"])


def test_what_cannot_be_written_leaves_the_old_one_alone(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, 1, {}, {"step": 1})
    with pytest.raises(Exception, match="pickle"):
        save_checkpoint(tmp_path, 2, {}, {"unwritable": lambda: None})
    assert names(tmp_path) == ["step-000000001"]


@pytest.mark.parametrize("after", range(6))
def test_a_full_disk_leaves_the_old_ones_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    for step in (1, 2):
        save_checkpoint(tmp_path, step, TENSORS, {"step": step})
    left = [after]

    def fsync(handle: int, _real: Any = os.fsync) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        _real(handle)

    monkeypatch.setattr(checkpoint.os, "fsync", fsync)
    with suppress(OSError):
        save_checkpoint(tmp_path, 3, TENSORS, {"step": 3})
    rest = latest_checkpoint(tmp_path)[1]
    assert rest["step"] == (3 if after >= 4 else 2)
    assert len(checkpoints(tmp_path)) >= 2
    assert not list(tmp_path.glob(".checkpoint.*"))


def test_a_disk_that_lies_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_checkpoint(tmp_path, 1, TENSORS, {"step": 1})
    written = checkpoint._write
    monkeypatch.setattr(checkpoint, "_write", lambda path, content: written(path, content[:-1] + b"?"))
    with pytest.raises(UserError, match="does not hold what was written to it"):
        save_checkpoint(tmp_path, 2, TENSORS, {"step": 2})
    assert names(tmp_path) == ["step-000000001"]


def test_leftovers_of_a_killed_process_go(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, 1, {}, {"step": 1})
    (tmp_path / ".checkpoint.abc").mkdir()
    (tmp_path / ".checkpoint.abc" / REST).write_bytes(b"half")
    (tmp_path / ".replaced.step-000000001.7").mkdir()
    tidy(tmp_path)
    assert names(tmp_path) == ["step-000000001"]


def test_code_in_a_checkpoint_is_not_run(tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "exploded"),)

    path = save_checkpoint(tmp_path, 1, {}, {"step": 1})
    torch.save({"bomb": Bomb()}, path / REST)
    manifest = json.loads((path / MANIFEST).read_text())
    content = (path / REST).read_bytes()
    manifest["files"][REST] = {"bytes": len(content), "sha256": checkpoint.hashlib.sha256(content).hexdigest()}
    (path / MANIFEST).write_text(json.dumps(manifest))
    assert latest_checkpoint(tmp_path) == ({}, {}, ["step-000000001"])
    assert not (tmp_path / "exploded").exists()


def test_another_runs_checkpoint_is_refused(tmp_path: Path) -> None:
    require_same_run({"run": "a"}, "a", tmp_path)
    with pytest.raises(UserError, match="other settings"):
        require_same_run({"run": "a"}, "b", tmp_path)


def resign(path: Path, name: str, content: bytes) -> None:
    """Put a file into a checkpoint as somebody would who knows how its manifest is made."""
    (path / name).write_bytes(content)
    manifest = json.loads((path / MANIFEST).read_text())
    manifest["files"][name] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    (path / MANIFEST).write_text(json.dumps(manifest))


@pytest.mark.parametrize("files", [[WEIGHTS, REST], {WEIGHTS: 1, REST: 2}, "x", {"../a": {}, WEIGHTS: {}}, {}])
def test_a_manifest_that_lists_no_files_is_that_of_a_torn_checkpoint(tmp_path: Path, files: object) -> None:
    path = save_checkpoint(tmp_path, 2, TENSORS, {"step": 2})
    (path / MANIFEST).write_text(json.dumps({"format": 1, "step": 2, "files": files}))
    assert latest_checkpoint(tmp_path) == ({}, {}, ["step-000000002"])


@pytest.mark.parametrize("name", [WEIGHTS, REST])
def test_files_of_a_checkpoint_are_its_own(tmp_path: Path, name: str) -> None:
    path = save_checkpoint(tmp_path / "run", 2, TENSORS, {"step": 2})
    (path / name).rename(tmp_path / "elsewhere")
    (path / name).symlink_to(tmp_path / "elsewhere")
    assert latest_checkpoint(tmp_path / "run") == ({}, {}, ["step-000000002"])

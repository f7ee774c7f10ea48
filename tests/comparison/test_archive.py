"""Records in an archive: read as those of the folder beside it, and never more than that."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

import tespec
from tespec.cli.main import main
from tespec.comparison import archive
from tespec.comparison.archive import ARCHIVE, write_archive
from tespec.comparison.records import Record, by_other_code, find_record, of_same_training, read_records, write_record

Make = Callable[..., Record]


def packed(path: Path, *records: Record, folder: str = "runs") -> Path:
    return write_archive(path / ARCHIVE, {f"{folder}/{each['name']}.json": json.dumps(each) for each in records})


def test_archived_records_are_read_beside_those_of_the_folder_which_win(tmp_path: Path, record: Make) -> None:
    old, other = record(seed=0, miou=1.0), record(seed=1, miou=2.0)
    packed(tmp_path, old, other)
    runs = tmp_path / "runs"
    assert read_records(runs) == ([old, other], [])
    new = Record(**(old | {"metrics": {"miou": 9.0}}))  # type: ignore[typeddict-item]
    write_record(new, runs)
    assert read_records(runs) == ([new, other], [])
    assert find_record(runs, old["name"]) == new
    assert find_record(runs, other["name"]) == other
    assert find_record(runs, "evaluation-none") is None


def test_runs_find_archived_records_of_other_code_and_of_the_same_training(tmp_path: Path, record: Make) -> None:
    training = "training-scratch-ddd17-recurrent-s0"
    one, two = (record(code=code, training=training) for code in ("00000001", "00000002"))
    packed(tmp_path, one)
    assert by_other_code(tmp_path / "runs", two["name"]) == [one]
    assert of_same_training(tmp_path / "runs", training, two["name"]) == [one]
    assert of_same_training(tmp_path / "runs", training, one["name"]) == []


def test_an_archive_holds_folders_beside_the_runs(tmp_path: Path, record: Make, capsys: pytest.CaptureFixture) -> None:
    packed(tmp_path, record(), folder="curves/runs")
    assert read_records(tmp_path / "runs") == ([], [])
    assert len(read_records(tmp_path / "curves" / "runs")[0]) == 1
    assert len(tespec.results(tmp_path / "curves")) == 3
    out = ["--out", str(tmp_path / "out")]
    assert main(["tables", "--only", "segmentation", "--results", str(tmp_path / "curves"), *out]) == 0
    assert "40.000" in capsys.readouterr().out


def test_the_same_records_give_the_same_bytes(tmp_path: Path, record: Make) -> None:
    one, two = record(seed=0), record(seed=1)
    assert packed(tmp_path / "a", one, two).read_bytes() == packed(tmp_path / "b", two, one).read_bytes()
    with zipfile.ZipFile(tmp_path / "a" / ARCHIVE) as file:
        assert {info.date_time for info in file.infolist()} == {(1980, 1, 1, 0, 0, 0)}


def test_what_is_no_archive_is_one_line(tmp_path: Path, record: Make) -> None:
    whole = packed(tmp_path, record()).read_bytes()
    for content in (b"", b"PK\x03\x04", whole[: len(whole) // 2], b"\x00" * 4000):
        (tmp_path / ARCHIVE).write_bytes(content)
        records, (problem,) = read_records(tmp_path / "runs")
        assert records == []
        assert "records.zip: not a readable archive" in problem
        assert len(problem.splitlines()) == 1
    (tmp_path / ARCHIVE).unlink()
    os.mkfifo(tmp_path / ARCHIVE)
    assert "no regular file" in read_records(tmp_path / "runs")[1][0]


def test_hostile_names_sizes_and_copies_are_left_out(
    tmp_path: Path, record: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    good, text = record(), json.dumps(record(seed=1))
    with zipfile.ZipFile(tmp_path / ARCHIVE, "w") as file:
        file.writestr(f"runs/{good['name']}.json", json.dumps(good))
        for name in ("../x.json", "/etc/x.json", "runs/../../x.json", "runs/a/b.json", "runs/x\n.exe", "x.json"):
            file.writestr(name, text)
    records, (problem,) = read_records(tmp_path / "runs")
    assert records == [good]
    assert "is at no place of a record, nor are 5 others" in problem
    assert len(problem.splitlines()) == 1
    assert {path.name for path in tmp_path.rglob("*")} == {ARCHIVE}
    with zipfile.ZipFile(tmp_path / ARCHIVE, "w") as file:
        file.writestr(f"runs/{good['name']}.json", json.dumps(good))
        file.writestr("runs/huge.json", b" " * ((1 << 24) + 1), zipfile.ZIP_DEFLATED)
        file.writestr("runs/other.json", text)
        file.writestr("runs/lzma.json", text, zipfile.ZIP_LZMA)
        file.writestr("runs/bytes.json", b"\xff\xfe")
        file.writestr("runs/twice.json", text)
        with pytest.warns(UserWarning, match="Duplicate"):
            file.writestr("runs/twice.json", text)
    records, problems = read_records(tmp_path / "runs")
    assert records == [good]
    # Both of a pair, whichever a reader would take.
    assert [problem.partition(".json")[0].rpartition("/")[2] for problem in problems] == [
        *("bytes", "huge", "lzma", "twice", "twice", "other")
    ]
    monkeypatch.setattr(archive, "LARGEST_ARCHIVE", 3000)
    packed(tmp_path, *(record(seed=seed) for seed in range(5)))
    assert len(read_records(tmp_path / "runs")[0]) < 3
    monkeypatch.setattr(archive, "LARGEST_ARCHIVE", 1 << 28)
    monkeypatch.setattr(archive, "MOST", 4)
    assert "more than 4 files" in read_records(tmp_path / "runs")[1][0]


def test_a_damaged_byte_leaves_out_one_record(tmp_path: Path, record: Make) -> None:
    one, two = record(seed=0), record(seed=1)
    path = packed(tmp_path, one, two)
    content = bytearray(path.read_bytes())
    content[150] ^= 0xFF
    path.write_bytes(content)
    records, (problem,) = read_records(tmp_path / "runs")
    assert records == [two]
    assert one["name"] in problem

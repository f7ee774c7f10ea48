"""Scans in the cache save time and decide nothing."""

from pathlib import Path

import numpy as np
import pytest

from tespec.core.errors import UserError
from tespec.events import open_events
from tespec.events.readers.records import Records
from tespec.events.scans import Scan, scan_once

SCAN = Scan(np.array([5, 9], np.int64), 3, -2, 640, 480, 70, np.array([[7, 8, 9], [1, 2, 3]], np.int64))
REAL = Path(__file__).parents[1] / "data"


class Counting:
    def __init__(self):
        self.times = 0

    def __call__(self):
        self.times += 1
        return SCAN


def same(one, other):
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TESPEC_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def recording(tmp_path):
    path = tmp_path / "a.dat"
    path.write_bytes(b"events")
    return path


def test_a_file_is_scanned_once(cache, recording):
    scan = Counting()
    assert all(same(scan_once(recording, scan), SCAN) for _ in range(3))
    assert scan.times == 1
    assert len(list((cache / "scans").iterdir())) == 1


def test_a_file_that_changed_is_scanned_again(cache, recording):
    scan = Counting()
    scan_once(recording, scan)
    recording.write_bytes(b"other events")
    scan_once(recording, scan)
    assert scan.times == 2


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"x" * 300])
def test_a_damaged_scan_is_made_again(cache, recording, content):
    scan = Counting()
    scan_once(recording, scan)
    (kept,) = (cache / "scans").iterdir()
    kept.write_bytes(content)
    assert same(scan_once(recording, scan), SCAN)
    assert same(scan_once(recording, scan), SCAN)
    assert scan.times == 2


def test_a_scan_whose_parts_do_not_fit_is_made_again(cache, recording):
    scan = Counting()
    scan_once(recording, scan)
    (kept,) = (cache / "scans").iterdir()
    np.savez(kept, latest=SCAN.latest, numbers=np.zeros(5, np.int64), places=SCAN.places[:1])
    assert same(scan_once(recording, scan), SCAN)
    assert scan.times == 2


@pytest.mark.parametrize("name", ["evt3_640x480_2.08s.raw", "davis.aedat4"])
def test_recordings_that_are_decoded_from_front_to_back_are_so_once(cache, tmp_path, monkeypatch, name):
    path = tmp_path / name
    path.write_bytes((REAL / name).read_bytes())
    first = open_events(path)
    wanted = first.slice(first.t_first, first.t_last + 1)
    assert len(list((cache / "scans").iterdir())) == 1

    def again(*arguments):
        raise AssertionError("decoded from front to back again")

    reader = "prophesee_raw" if name.endswith(".raw") else "aedat4"
    monkeypatch.setattr(f"tespec.events.readers.{reader}.scan_blocks", again)
    second = open_events(path)
    facts = ("height", "width", "count", "t_first", "t_last", "clamped")
    assert [getattr(second, fact) for fact in facts] == [getattr(first, fact) for fact in facts]
    for one, other in zip(second.slice(first.t_first, first.t_last + 1), wanted, strict=True):
        np.testing.assert_array_equal(one, other)
    middle = (first.t_first + first.t_last) // 2
    np.testing.assert_array_equal(second.slice(middle, middle + 5_000).t, first.slice(middle, middle + 5_000).t)


def test_a_cache_that_cannot_be_written_to_costs_time_only(cache, recording):
    cache.write_text("a file where a folder should be")
    scan = Counting()
    assert all(same(scan_once(recording, scan), SCAN) for _ in range(2))
    assert scan.times == 2


def test_records_are_read_by_part_and_field(tmp_path):
    kind = np.dtype([("t", "<u4"), ("word", "<u4")])
    rows = np.zeros(100, kind)
    rows["t"], rows["word"] = np.arange(100), np.arange(100) ** 2
    path = tmp_path / "a"
    path.write_bytes(b"header" + rows.tobytes())
    records = Records(path, kind, 6, 100)
    assert len(records) == 100
    np.testing.assert_array_equal(records[10:20], rows[10:20])
    np.testing.assert_array_equal(records.field("word")[95:200], rows["word"][95:])
    assert len(records[7:3]) == 0
    path.write_bytes(path.read_bytes()[:300])
    with pytest.raises(UserError, match="has become shorter since it was opened; copy it again"):
        records[90:100]
    path.unlink()
    with pytest.raises(UserError, match=r"a: cannot be read \(No such file or directory\)"):
        records[0:1]

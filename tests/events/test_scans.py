"""Scans in the cache save time and decide nothing."""

import numpy as np
import pytest

from tespec.errors import UserError
from tespec.events.readers.records import Records
from tespec.events.scans import Scan, scan_once

SCAN = Scan(np.array([5, 9], np.int64), 3, -2, 640, 480)


class Counting:
    def __init__(self):
        self.times = 0

    def __call__(self):
        self.times += 1
        return SCAN


def same(one, other):
    return one[1:] == other[1:] and np.array_equal(one.latest, other.latest)


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

"""The cache of packed recordings: its limit, its listing, and the places that it may be in."""

import os
import re
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from event_files import random_events

from tespec.cli.main import main
from tespec.core.errors import UserError
from tespec.core.paths import cache_root
from tespec.datasets.sources import EventSource, pack_missing
from tespec.events import cache, open_events
from tespec.events.cache import free_space, list_stores
from tespec.events.readers.dat import write_dat

EVENTS = 20_000  # of a recording, 80 kB


@pytest.fixture
def stores(tmp_path, monkeypatch):
    """Folder of the stores in a cache of this test alone."""
    monkeypatch.setenv("TESPEC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(cache, "_in_use", set())
    return tmp_path / "cache" / "stores"


def recording(path, seed=0):
    write_dat(path, *random_events(EVENTS, height=60, width=80, end=3_000_000, seed=seed), 60, 80)
    return path


def packed_by_another_run(path, seed, used):
    """Pack a recording into the cache as another run did, which used it `used` seconds ago."""
    pack_missing([EventSource(recording(path, seed))])
    store = open_events(path).path
    cache._in_use.clear()
    os.utime(store, (time.time() - used,) * 2)
    for file in store.iterdir():
        os.utime(file, (time.time() - used - 9,) * 2)
    return store


def test_the_least_recently_used_stores_make_room_and_a_line_says_so(
    stores, tmp_path, monkeypatch, capsys
):
    names = {"old.dat": 300, "older.dat": 4000, "new.dat": 20}
    made = {
        name: packed_by_another_run(tmp_path / name, seed, names[name])
        for seed, name in enumerate(names)
    }
    monkeypatch.setenv("TESPEC_CACHE_LIMIT", "0.00033")  # three stores have 313 kB
    pack_missing([EventSource(recording(tmp_path / "next.dat", 9))])
    assert not made["older.dat"].exists()
    assert open_events(tmp_path / "new.dat").path == made["new.dat"]
    line = (
        "least recently used recordings removed: 1, "
        "for its limit of 330,000 bytes (TESPEC_CACHE_LIMIT)"
    )
    assert f"{stores}: {line}\n" in capsys.readouterr().err
    assert {store.path.name.partition("-")[0] for store in list_stores()} == {
        "old.dat",
        "new.dat",
        "next.dat",
    }


def test_what_this_run_uses_or_another_packs_is_never_removed(stores, tmp_path, monkeypatch):
    store = packed_by_another_run(tmp_path / "used.dat", 0, 9000)
    open_events(tmp_path / "used.dat")
    os.utime(store, (1, 1))
    (stores / ".b.unfinished").mkdir()
    (stores / ".b.unfinished" / "events.u32").write_bytes(bytes(50_000))
    monkeypatch.setenv("TESPEC_CACHE_LIMIT", "0.0002")
    what = (
        r"stores: may hold 200,000 bytes, but the packed events of this run need about 160,000 "
        "more; set TESPEC_CAC"
    )
    with pytest.raises(UserError, match=what):
        free_space(40_000)
    assert [each.path for each in list_stores()] == [store]
    # An hour without a write: the process that packed it was killed.
    for path in (stores / ".b.unfinished" / "events.u32", stores / ".b.unfinished"):
        os.utime(path, (time.time() - 4000,) * 2)
    assert len(list_stores()) == 2
    free_space(20_000)
    assert [path.name for path in stores.iterdir()] == [store.name]


def test_a_removed_store_is_packed_again_and_the_links_to_it_hold(stores, tmp_path):
    store = packed_by_another_run(tmp_path / "a.dat", 0, 9)
    os.utime(tmp_path / "a.dat", (1, 1))
    assert open_events(tmp_path / "a.dat").path == store
    assert len(list(stores.iterdir())) == 2
    cache.remove(store)
    assert open_events(tmp_path / "a.dat").path == tmp_path / "a.dat"
    pack_missing([EventSource(tmp_path / "a.dat")])
    assert open_events(tmp_path / "a.dat").path == store
    assert len(list_stores()) == 1


def test_the_limit_is_a_quarter_of_the_disk_unless_the_user_sets_a_size(stores, monkeypatch):
    monkeypatch.delenv("TESPEC_CACHE_LIMIT", raising=False)
    monkeypatch.setattr(cache.shutil, "disk_usage", lambda path: SimpleNamespace(total=4 * 10**11))
    assert cache.limit_bytes() == 10**11
    for text in ("much", "-1", "nan", "inf", "200TB", "1e3"):
        monkeypatch.setenv("TESPEC_CACHE_LIMIT", text)
        what = f"TESPEC_CACHE_LIMIT={text}: is not a size in GB; give a number, such as 200"
        with pytest.raises(UserError, match=f"^{re.escape(what)}$"):
            free_space(1)


def test_the_command_lists_and_empties_the_cache(stores, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TESPEC_CACHE_LIMIT", "1.5")
    for name, used in (("b\ntwo.dat", 40), ("a one.dat", 4000)):
        packed_by_another_run(tmp_path / name, used, used)
    names = [store.path.name for store in list_stores()]
    assert main(["data", "cache"]) == 0
    *rows, total, limit = capsys.readouterr().out.splitlines()
    assert [row.split()[-1] for row in rows] == names
    assert [name.partition("-")[0] for name in names] == ["a_one.dat", "b_two.dat"]
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d +0\.1 MB  [\w.-]+", row) for row in rows)
    assert (total, limit) == (
        "cached: 2 recordings, 0.000 GB",
        f"limit: 1.500 GB (TESPEC_CACHE_LIMIT) in {stores}",
    )
    assert main(["data", "cache", "--empty"]) == 0
    assert "removed: 2 recordings" in capsys.readouterr().out
    assert list(stores.iterdir()) == []


@pytest.mark.parametrize(
    ("variables", "folder"),
    [
        ({"TESPEC_CACHE": "/a", "XDG_CACHE_HOME": "/b"}, "/a"),
        ({"XDG_CACHE_HOME": "/b"}, "/b/tespec"),
        ({"XDG_CACHE_HOME": "relative"}, "/home/u/.cache/tespec"),
        ({"TESPEC_CACHE": "", "XDG_CACHE_HOME": ""}, "/home/u/.cache/tespec"),
    ],
)
def test_the_cache_is_where_the_user_keeps_caches(monkeypatch, variables, folder):
    for name in ("TESPEC_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in ({"HOME": "/home/u"} | variables).items():
        monkeypatch.setenv(name, value)
    assert cache_root() == Path(folder)

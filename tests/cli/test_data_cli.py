import re
import shutil

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from twins import copied, fingerprint, opened
from twins.layouts import relayout

from tespec.core.paths import REPOSITORY
from tespec.core.settings import Binning
from tespec.events.store import store_of

DATASETS = ["ddd17", "1mpx", "gen1", "dsec", "mvsec"]


@pytest.mark.parametrize("dataset", DATASETS)
def test_a_sound_dataset_passes(call, tiny_world, tmp_path, dataset):
    path = tmp_path / "figures" / "a.csv"
    code, out, _ = call("data", "check", dataset, tiny_world / dataset, "--out", path)
    assert code == 0, out
    assert out.splitlines()[-1].startswith("no problems: ")
    table = pd.read_csv(path)
    assert set(table["split"]) == {"train", "val", "test"}
    assert (table[["events_count", "labels_count"]] > 0).all(axis=None)
    quick, shorter, _ = call("data", "check", dataset, tiny_world / dataset, "--quick")
    assert quick == 0
    needed = out.splitlines()[-3].partition(",")[0]  # free space, after the comma, varies
    assert "needed by `prepare`" in needed == shorter.splitlines()[-2].partition(",")[0]


def test_one_recording_in_two_splits_fails_under_any_name(call, tiny_world, tmp_path):
    root = copied(tiny_world, tmp_path, "gen1")
    for ending in ("_td.dat", "_bbox.npy"):
        shutil.copy(*(min((root / split).glob(f"*{ending}")) for split in ("train", "test")))
    code, out, _ = call("data", "check", "gen1", root, "--quick")
    assert code == 2
    assert re.search(
        r"^error: .*this test recording is a copy of \S+ in train; ", out, re.MULTILINE
    )
    assert out.splitlines()[-1].startswith("1 problem in ")


@pytest.mark.parametrize("dataset", DATASETS)
def test_packed_data_is_the_same_data(call, tiny_world, tmp_path, dataset):
    root = copied(tiny_world, tmp_path, dataset)
    before = opened(root, dataset).recordings("test")
    known, histograms = fingerprint(before), before[0].histograms(2, 3, Binning(10, "edges"))
    code, text, _ = call("data", "prepare", dataset, root)
    assert (code, text.startswith("packed: ")) == (0, True)
    after = opened(root, dataset).recordings("test")
    assert all((store_of(each.path) / "header.json").is_file() for each in after)
    assert fingerprint(after) == known
    np.testing.assert_array_equal(after[0].histograms(2, 3, Binning(10, "edges")), histograms)


def test_a_damaged_recording_is_named_and_the_rest_packed_if_asked_for(call, tiny_world, tmp_path):
    root = copied(tiny_world, tmp_path, "gen1")
    path = min((root / "train").glob("*_td.dat"))
    path.write_bytes(path.read_bytes()[:300])
    given = ("data", "prepare", "gen1", root)
    code, _, err = call(*given)
    assert (code, f"{path}: " in err, ", or skip it with --skip-damaged" in err) == (2, True, True)
    code, text, _ = call(*given, "--skip-damaged", "--processes", "2")
    assert (code, f"skipped: {path}: " in text, "packed: 3 recordings" in text) == (2, True, True)
    assert len(list(root.rglob("events.u32"))) == 3
    assert not path.with_name(f"{path.name}.store").exists()


def test_an_archive_needs_no_packing(call, tiny_world, tmp_path):
    root = copied(tiny_world, tmp_path, "gen1")
    relayout(root, "gen1", "rvt-archive")
    code, _, err = call("data", "prepare", "gen1", root)
    assert (code, "contains histograms, which need no packing" in err) == (2, True)


@pytest.mark.parametrize("dataset", DATASETS)
def test_a_preview_shows_something(call, tiny_world, tmp_path, dataset):
    path = tmp_path / "a.png"
    assert (
        call("data", "preview", dataset, tiny_world / dataset, "--out", path, "--count", 2)[0] == 0
    )
    with Image.open(path) as image:
        assert image.size[0] > 900
        assert len(np.unique(np.asarray(image.convert("RGB")).reshape(-1, 3), axis=0)) > 50


def test_a_picture_does_not_replace_an_older_one(call, tiny_world, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    written = [
        call("data", "preview", "ddd17", tiny_world / "ddd17", "--count", 1)[1].split()[-1]
        for _ in range(3)
    ]
    assert written == ["preview-ddd17.png", "preview-ddd17-2.png", "preview-ddd17-3.png"]
    assert {path.name for path in tmp_path.glob("preview-*")} >= set(written)


@pytest.mark.parametrize("dataset", DATASETS)
def test_a_guide_for_every_dataset(call, dataset):
    code, out, _ = call("data", "download-guide", dataset)
    assert (code, "https://" in out, "Licence" in out, "Nothing is downloaded" in out) == (
        0,
        True,
        True,
        True,
    )


def test_a_recording_that_does_not_name_its_sensor_is_read_with_a_given_size(
    call, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    content = (REPOSITORY / "tests" / "data" / "evt3_640x480_2.08s.raw").read_bytes()
    (tmp_path / "drive.raw").write_bytes(b"% evt 3.0\n" + content[content.index(b"% end\n") + 6 :])
    for words, said in {
        "data check recordings drive.raw": " 640x480 ",
        "data preview recordings drive.raw --at 1 1.35 --high-pass": "preview-recordings.png\n",
        "pretrain --method tespec --profile smoke --data drive.raw --dry-run": "120 x 160 px",
    }.items():
        code, out, err = call(*words.split())
        assert (code, "give --sensor WIDTHxHEIGHT" in out + err) == (2, True)
        code, out, _ = call(*words.split(), "--sensor", "640x480")
        assert (code, said in out) == (0, True), out

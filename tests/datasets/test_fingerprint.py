import shutil

import numpy as np
import pytest
from ddd17_copies import copy_archive, extract, open_ddd17, png

from tespec.core.settings import Downsample
from tespec.datasets.folder import divide
from tespec.datasets.recording import fingerprint


def of_archive(root, window_ms=None):
    return fingerprint(open_ddd17(root, window_ms).recordings("test"))


@pytest.fixture
def archive(tiny_world, tmp_path):
    return copy_archive(tiny_world, tmp_path)


def test_the_same_data_elsewhere_is_the_same(archive, tmp_path):
    first = of_archive(archive)
    assert len(first) == 12
    shutil.copytree(archive, tmp_path / "Kopie mit Ü" / "ddd17")
    (archive / "dir2" / "Thumbs.db").write_text("x")
    assert of_archive(tmp_path / "Kopie mit Ü" / "ddd17") == of_archive(archive) == first


def test_zipped_or_not_and_window_length_do_not_count(archive):
    first = of_archive(archive)
    assert of_archive(archive, window_ms=100) == first
    extract(archive / "dir2")
    assert of_archive(archive) == first


def change_byte(path, place):
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


def change_mask(recording):
    first = min(extract(recording).iterdir())
    first.write_bytes(png(np.zeros((64, 96), np.uint8)))


CHANGES = {
    "first event": lambda recording: change_byte(recording / "events.dat.xyp", 4),
    "last event": lambda recording: change_byte(recording / "events.dat.xyp", -2),
    "mask": change_mask,
    "missing mask": lambda recording: min(extract(recording).iterdir()).unlink(),
    "label time": lambda recording: change_byte(recording / "index" / "index_50ms.npy", 128 + 24 * 30 + 2),
    "speed": lambda recording: change_byte(recording / "ego_speed.npy", -1),
}


@pytest.mark.parametrize("what", CHANGES)
def test_changed_data_is_other_data(archive, what):
    before = of_archive(archive)
    CHANGES[what](archive / "dir2")
    assert of_archive(archive) != before


def test_of_unlabelled_recordings_the_reduction_counts(tiny_world):
    divisions = [divide(tiny_world / "1mpx", 50, Downsample(factor, "nearest")) for factor in (1, 1, 2)]
    whole, again, half = (fingerprint(division.train) for division in divisions)
    assert whole == again != half
    assert fingerprint(divisions[0].held_out) != whole


def test_moving_a_recording_to_another_split_changes_it(tiny_world):
    first, second = open_ddd17(tiny_world / "ddd17").recordings("train")
    assert fingerprint([first], [second]) != fingerprint([first, second], [])
    assert fingerprint([first], [second]) != fingerprint([second], [first])

"""How large a sensor is, for recordings that do not say it, and formats that are found by their suffix."""

import json
import pickle
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from event_cases import assert_refused, random_events
from h5_files import rvt
from recording_files import ADDR_X, ADDR_Y, dat, evt3, evt3_time

from tespec.core.config import finetuning_settings
from tespec.core.errors import UserError
from tespec.core.settings import Downsample
from tespec.datasets.folder import divide
from tespec.datasets.recording import fingerprint
from tespec.events import load_events, opening
from tespec.events.opening import READERS, open_reader, readers_in
from tespec.inference.predict import find

REAL = Path(__file__).parents[1] / "data" / "evt3_640x480_2.08s.raw"
WHOLE = Downsample(1, "nearest")


@pytest.fixture
def nameless(tmp_path):
    """The real recording under a header as older recorders wrote it, which does not say its size."""
    path = tmp_path / "drive.raw"
    content = REAL.read_bytes()
    path.write_bytes(b"% Date 2017-03-21 15:02:10\n% evt 3.0\n" + content[content.index(b"% end\n") + 6 :])
    return path


def size(path, *given):
    reader = open_reader(path, *given)
    return reader.width, reader.height


def raw(folder, header=b""):
    return evt3(folder / "a.raw", *evt3_time(5), (ADDR_Y, 3), (ADDR_X, 7), header=b"% evt 3.0\n" + header)


WITHOUT = {
    "raw": raw,
    "dat": lambda folder: dat(folder / "a.dat", [(3, 2, 1, 1)], header="% Version 2\n"),
    "h5": lambda folder: rvt(folder / "a.h5", *random_events(50), events__height=None),
}


@pytest.mark.parametrize("kind", WITHOUT)
def test_the_user_goes_before_a_description_beside_the_recording_and_nothing_is_guessed(tmp_path, kind):
    path = WITHOUT[kind](tmp_path)
    (tmp_path / "dataset.json").write_text(json.dumps({"splits": {"train": ["a"]}}))
    assert_refused(path, r"give --sensor WIDTHxHEIGHT.*% geometry WIDTHxHEIGHT.*dataset\.json")
    (tmp_path / "dataset.json").write_text(json.dumps({"sensor": {"width": 96, "height": 80}}))
    assert size(path) == (96, 80)
    assert size(path, 120, 160) == (160, 120)


def test_a_size_that_contradicts_the_file_is_refused(tmp_path):
    named = rvt(tmp_path / "a.h5", *random_events(50), height=48, width=64)
    for path, own in ((named, "64x48"), (REAL.parent / "davis.aedat4", "346x260"), (REAL, "640x480")):
        assert_refused(path, f"its sensor is {own} px, not 1280x720; leave --sensor out", 720, 1280)


def test_the_size_reaches_workers_and_the_fingerprint(nameless):
    with pytest.raises(UserError, match=r"drive\.raw: does not name the sensor's size"):
        divide(nameless.parent, 50, WHOLE)
    division = divide(nameless.parent, 50, WHOLE, (480, 640))
    assert division.size == (480, 640)
    # Worker processes get the recording as a pickle and open it themselves.
    again = pickle.loads(pickle.dumps(division.train[0]))
    real = divide(REAL, 50, WHOLE).train[0]
    np.testing.assert_array_equal(again.histograms(3, 4, 10, "edges"), real.histograms(3, 4, 10, "edges"))
    assert fingerprint(division.train) != fingerprint(divide(nameless.parent, 50, WHOLE, (720, 1280)).train)


def test_predictions_take_the_size_of_their_own_recording(nameless):
    trained = finetuning_settings("ddd17", "recurrent", "sample", ["sensor_px=346x260"])
    found = find(trained, str(nameless), None, "640x480")
    assert (found.region.height, found.region.width) == (480, 640)
    with pytest.raises(UserError, match="does not name the sensor's size"):
        find(trained, str(nameless), None)


@pytest.fixture
def command(capsys):
    def called(verb, *arguments):
        from tespec.cli.main import main

        code = main([verb, *map(str, arguments)])
        return code, "".join(capsys.readouterr())

    return called


def test_commands_take_it(command, nameless, tmp_path):
    looks = (["check", "recordings"], ["preview", "recordings", "--out", tmp_path / "a.png", "--count", 1])
    training = ["--method", "tespec", "--profile", "sample", "--dry-run", "--device", "cpu", "--data"]
    for verb, (first, *others) in (("data", looks[0]), ("data", looks[1]), ("pretrain", training)):
        arguments = [first, *others, nameless] if verb == "pretrain" else [first, others[0], nameless, *others[1:]]
        code, said = command(verb, *arguments)
        assert (code, "give --sensor WIDTHxHEIGHT" in said) == (2, True)
        more = ["--set", "downsample.factor=8"] if verb == "pretrain" else []
        code, said = command(verb, *arguments, "--sensor", "640x480", *more)
        assert code == 0, said


@pytest.mark.parametrize("text", ["640", "640x", "0x480", "640x480x2", "20000x480", "-5x5"])
def test_what_is_no_size_is_refused_at_once(command, nameless, text):
    code, said = command("data", "check", "recordings", nameless, f"--sensor={text}")
    assert code == 2
    assert f"--sensor {text}: no size of a sensor; give WIDTHxHEIGHT in px" in said


OWN = """
import numpy as np
from tespec.events.stream import Events, Reader

def open_text(path, height=None, width=None):
    x, y, t, p = np.loadtxt(path, dtype=np.int64).T
    events = Events(x.astype(np.uint16), y.astype(np.uint16), t, p.astype(np.uint8))
    return Reader(path, 8, 8, len(t), lambda: iter([events]))

READS = {".txt": open_text}
"""


def test_a_file_among_the_readers_reads_its_suffix(tmp_path, monkeypatch):
    assert set(READERS) == {".dat", ".raw", ".aedat4", ".npy", ".npz"}
    (tmp_path / "plain_text.py").write_text(OWN)
    package = ModuleType("own_readers")
    package.__path__ = [str(tmp_path)]
    monkeypatch.setitem(sys.modules, "own_readers", package)
    monkeypatch.setitem(opening.READERS, ".txt", readers_in(package)[".txt"])
    np.savetxt(tmp_path / "drive.txt", [[1, 2, 10, 0], [3, 4, 20, 1]], fmt="%d")
    assert load_events(tmp_path / "drive.txt").slice(0, 100).x.tolist() == [1, 3]

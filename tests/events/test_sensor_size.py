"""How large a sensor is, for recordings that do not say it: the user, or `dataset.json`."""

import json
import pickle
import sys
from pathlib import Path

import numpy as np
import pytest
from event_cases import random_events
from h5_files import rvt
from recording_files import ADDR_X, ADDR_Y, dat, evt2, evt2_event, evt3, evt3_time

from tespec.core.config import finetuning_settings
from tespec.core.errors import UserError
from tespec.core.settings import Downsample
from tespec.datasets import sources
from tespec.datasets.folder import EventFolder, divide
from tespec.datasets.prepare import prepare
from tespec.datasets.recording import fingerprint
from tespec.datasets.sources import EventSource, names_size
from tespec.events import open_events
from tespec.inference.predict import find

REAL = Path(__file__).parents[1] / "data" / "evt3_640x480_2.08s.raw"
WHOLE = Downsample(1, "nearest")
# Headers as recorders of their year wrote them: no size anywhere.
NAMELESS = b"% Date 2017-03-21 15:02:10\n% evt 3.0\n% serial_number 00000123\n"
OF_2020 = (
    b"% Date 2020-09-14 09:03:25\n% firmware_version 2.0.2\n% integrator_name Prophesee\n"
    b"% plugin_name hal_plugin_gen3_fx3\n% serial_number 30384338\n% system_ID 21\n% evt 2.0\n"
)


def body_of(path):
    content = path.read_bytes()
    return content[content.index(b"% end\n") + 6 :]


@pytest.fixture
def nameless(tmp_path):
    """The real recording under a header that does not say its size."""
    path = tmp_path / "drive.raw"
    path.write_bytes(NAMELESS + body_of(REAL))
    return path


def size(path, *given):
    stream = open_events(path, *given)
    return stream.width, stream.height


def raw(tmp_path, header):
    return evt3(tmp_path / "a.raw", *evt3_time(5), (ADDR_Y, 3), (ADDR_X, 7), header=b"% evt 3.0\n" + header)


@pytest.mark.parametrize("header", [b"", b"% plugin_name hal_plugin_gen31_evk3\n", b"% geometry 640\n% height 480\n"])
def test_nothing_is_guessed(tmp_path, header):
    path = raw(tmp_path, header)
    assert not names_size(path)
    with pytest.raises(UserError) as caught:
        open_events(path)
    for remedy in ("--sensor WIDTHxHEIGHT", "% geometry WIDTHxHEIGHT", "dataset.json"):
        assert remedy in str(caught.value)
    assert size(path, 480, 640) == (640, 480)


def test_old_files_of_both_kinds_are_read(tmp_path):
    path = evt2(tmp_path / "a.raw", *evt2_event(600, 400, 64, 1), header=OF_2020)
    assert size(path, 480, 640) == (640, 480)
    old = dat(tmp_path / "a.dat", [(300, 200, 3, 1)], header="% Data file containing Event2D events.\n% Version 2\n")
    assert size(old, 240, 304) == (304, 240)


@pytest.mark.parametrize("kind", ["raw", "dat", "h5"])
def test_a_description_beside_the_recording_says_it_for_every_format(tmp_path, kind):
    if kind == "raw":
        path = raw(tmp_path, b"")
    elif kind == "dat":
        path = dat(tmp_path / "a.dat", [(3, 2, 1, 1)], header="% Version 2\n")
    else:
        path = rvt(tmp_path / "a.h5", *random_events(50), events__height=None)
    (tmp_path / "dataset.json").write_text(json.dumps({"splits": {"train": ["a"]}}))
    with pytest.raises(UserError, match="does not name the sensor's size"):
        open_events(path)
    (tmp_path / "dataset.json").write_text(json.dumps({"sensor": {"width": 96, "height": 80}}))
    assert size(path) == (96, 80)
    assert size(path, 120, 160) == (160, 120)  # the user goes before it


def test_a_size_that_contradicts_the_file_is_refused(tmp_path):
    camera = raw(tmp_path, b"% geometry 640x480\n")
    named = rvt(tmp_path / "a.h5", *random_events(50), height=48, width=64)
    davis = REAL.parent / "davis.aedat4"
    for path, own in ((camera, "640x480"), (named, "64x48"), (davis, "346x260"), (REAL, "640x480")):
        with pytest.raises(UserError, match=f"its sensor is {own} px, not 1280x720; leave --sensor out"):
            open_events(path, 720, 1280)


def test_events_outside_of_a_given_size_are_refused(nameless):
    with pytest.raises(UserError, match=r"has events on \d+x\d+ px, its sensor is 320x240 px"):
        open_events(nameless, 240, 320)


def test_the_size_reaches_workers_stores_and_the_fingerprint(nameless, tmp_path):
    folder = nameless.parent
    with pytest.raises(UserError, match=r"drive\.raw: does not name the sensor's size"):
        divide(folder, 50, WHOLE)
    division = divide(folder, 50, WHOLE, (480, 640))
    assert division.size == (480, 640)
    # Worker processes get the recording as a pickle and open it themselves.
    again = pickle.loads(pickle.dumps(division.train[0]))
    real = divide(REAL, 50, WHOLE).train[0]
    np.testing.assert_array_equal(again.histograms(3, 4, 10, "edges"), real.histograms(3, 4, 10, "edges"))

    larger = divide(folder, 50, WHOLE, (720, 1280))
    assert fingerprint(division.train) != fingerprint(larger.train)
    before = fingerprint(division.train)
    prepare(EventFolder(folder, (480, 640)))
    assert size(folder / "drive.raw.store") == (640, 480)
    assert fingerprint(divide(folder, 50, WHOLE).train) == before
    sources._open.cache_clear()  # another process would have opened nothing yet
    with pytest.raises(UserError, match="its sensor is 640x480 px, not 1280x720"):
        EventSource(nameless, (720, 1280)).stream  # noqa: B018


def test_predictions_take_the_size_of_their_own_recording(nameless):
    trained = finetuning_settings("ddd17", "recurrent", "sample", ["sensor_px=346x260"])
    found = find(trained, str(nameless), None, "640x480")
    assert (found.region.height, found.region.width) == (480, 640)
    with pytest.raises(UserError, match="does not name the sensor's size"):
        find(trained, str(nameless), None)


@pytest.fixture
def command(monkeypatch, capsys):
    def called(module, *arguments):
        from tespec.cli.command import run

        monkeypatch.setattr(sys, "argv", ["a.py", *map(str, arguments)])
        try:
            code = run(module.main)
        except SystemExit as ended:
            code = ended.code
        return code, *capsys.readouterr()

    return called


def test_every_command_takes_it(command, nameless, tmp_path):
    from tespec.cli import data, pretrain

    for name in ("check", "stats", "preview", "prepare"):
        arguments = [name, "recordings", nameless]
        if name == "preview":
            arguments += ["--out", tmp_path / "a.png", "--count", 1]
        code, out, err = command(data, *arguments)
        if name != "stats":  # which lists what it can
            assert (code, "give --sensor WIDTHxHEIGHT" in out + err) == (2, True)
        code, out, err = command(data, *arguments, "--sensor", "640x480")
        assert code == 0, out + err
    (nameless.parent / "drive.raw.store" / "header.json").rename(tmp_path / "header.json")
    training = ["--method", "tespec", "--data", nameless, "--profile", "sample", "--dry-run", "--device", "cpu"]
    code, _, err = command(pretrain, *training)
    assert (code, "give --sensor WIDTHxHEIGHT" in err) == (2, True)
    code, out, err = command(pretrain, *training, "--sensor", "640x480", "--set", "downsample.factor=8")
    assert code == 0, err
    assert "sensor_px: 640x480" in out


@pytest.mark.parametrize("text", ["640", "640x", "0x480", "640x480x2", "20000x480", "-5x5"])
def test_what_is_no_size_is_refused_at_once(command, nameless, text):
    from tespec.cli import data

    code, _, err = command(data, "check", "recordings", nameless, f"--sensor={text}")
    assert code == 2
    assert f"--sensor {text}: no size of a sensor; give WIDTHxHEIGHT in px" in err

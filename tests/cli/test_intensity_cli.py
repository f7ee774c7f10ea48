"""`data.py intensity` as its user sees it."""

from pathlib import Path

import pytest
from PIL import Image

from tespec.cli import data
from tespec.cli.command import run

REAL = Path(__file__).parents[1] / "data" / "davis.aedat4"
RAW = REAL.with_name("evt3_640x480_2.08s.raw")


@pytest.fixture
def call(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)

    def called(*arguments):
        try:
            code = run(lambda: data.main(["intensity", *map(str, arguments)]))
        except SystemExit as ended:
            code = ended.code
        return code, *capsys.readouterr()

    return called


@pytest.mark.parametrize("options", [[], ["--at", 0.05, 0.1, "--crop", 10, 20, 64, 48, "--norm-events", 500]])
def test_a_picture_of_any_recording(call, tmp_path, options):
    code, out, err = call(REAL, *options)
    assert (code, out, err) == (0, "written: intensity.png\n", "")
    with Image.open(tmp_path / "intensity.png") as picture:
        assert picture.width > 300


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--at", 3], "3 s is outside of the recording; give times from 0.05 to 0.1 s"),
        (["--crop", 300, 0, 64, 48], "--crop 300 0 64 48: does not lie inside of 346x260 px"),
        (["--crop", 0, 0, 0, 48], "--crop 0 0 0 48: does not lie inside of 346x260 px"),
        (["--norm-events", 0], "--norm-events"),
        (["--alpha", "nan"], "--alpha"),
    ],
)
def test_a_mistake_is_one_line_and_writes_nothing(call, tmp_path, options, message):
    code, out, err = call(REAL, *options)
    assert (code, out) == (2, "")
    assert message in err
    assert len(err.splitlines()) == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("given", [["--sensor", "640x480"], ["--set", "sensor_px=640x480"]])
def test_a_recording_that_does_not_name_its_sensor(call, tmp_path, given):
    content = RAW.read_bytes()
    (tmp_path / "drive.raw").write_bytes(b"% evt 3.0\n" + content[content.index(b"% end\n") + 6 :])
    arguments = ["drive.raw", "--at", 1]
    code, _, err = call(*arguments)
    assert (code, "give --sensor WIDTHxHEIGHT" in err) == (2, True)
    assert call(*arguments, *given) == (0, "written: intensity.png\n", "")
    code, _, err = call(*arguments, *given, "--set", "bins=5")
    assert (code, err) == (2, "error: --set bins=5: recordings have no such setting; leave it out\n")


def test_a_file_that_is_no_recording_is_named(call, tmp_path):
    (tmp_path / "x.txt").write_text("no events")
    code, _, err = call("x.txt")
    assert code == 2
    assert err.startswith("error: x.txt: ")

"""The speed command at tiny sizes: that both ways of each stage agree, and what it writes; never how fast it was."""

import json
import sys

import numpy as np
import pytest

from benchmarks import speed, stages
from tespec.cli.main import run


def call(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["speed.py", *map(str, arguments)])
    return run(speed.main)


def test_both_ways_of_every_stage_agree_and_are_written(tmp_path, monkeypatch, capfd):
    path = tmp_path / "speed.json"
    assert call(monkeypatch, "--quick", "--json", path) == 0
    written, shown = json.loads(path.read_text()), capfd.readouterr().out
    assert {"revision", "cpu", "cores", "packages"} <= set(written["environment"])
    assert (written["threads"], written["environment"]["device"]) == (1, "cpu")
    compared = {row["stage"] for row in written["rows"] if "ratio" in row}
    assert compared == {*stages.STAGES, "rectified"} - {"tables"}
    for row in written["rows"]:
        assert not row["failed"]
        assert f"{row['stage']} " in shown
        assert row["unit"] in shown
        if "ratio" in row:
            assert row["ratio"] == pytest.approx(row["plain_seconds"] / row["seconds"])


def with_one_event_moved(path):
    with stages.h5py.File(path, "a") as file:
        file["x"][7] = file["x"][7] ^ 1
    return path


WRONG = {
    "histogram": ("put_histogram", lambda counts: counts + 1),
    "store": ("write_columns", with_one_event_moved),
    "batch": ("counted_then_mapped", lambda counts: counts.flip(-1)),
    "recurrent": ("frame_by_frame", lambda features: [2 * each for each in features]),
    "metric": ("by_pycocotools", lambda scores: [scores[0] + 1e-3, *scores[1:]]),
}


@pytest.mark.parametrize("stage", WRONG)
def test_a_stage_whose_ways_differ_is_named_and_ends_with_1(stage, monkeypatch, capfd):
    name, spoil = WRONG[stage]
    plain = getattr(stages, name)
    monkeypatch.setattr(stages, name, lambda *given: spoil(plain(*given)))
    assert call(monkeypatch, "--quick", "--only", stage) == 1
    assert f"{stage:10} FAILED: the two ways give different results" in capfd.readouterr().out


def test_a_window_that_is_not_rectified_differs():
    for case in stages.rectified(quick=True):
        assert case.same(case.ours(), case.plain())
        assert not case.same(case.plain(), case.plain())


def test_an_unknown_stage_is_refused_in_one_line(monkeypatch, capsys):
    assert call(monkeypatch, "--only", "histogran") == 2
    message = "error: --only histogran: unknown stage; did you mean 'histogram'?\n"
    assert capsys.readouterr().err == message


def test_only_a_whole_run_at_full_size_goes_to_the_results(tmp_path, monkeypatch):
    def stage(quick):
        yield stages.Case("one", "a number", lambda: 1, lambda: 1, "the same", np.array_equal, 1, "numbers")

    monkeypatch.setattr(speed, "STAGES", {"one": stage})
    monkeypatch.setattr(speed, "RESULTS", tmp_path)
    monkeypatch.setattr(speed, "SECONDS", 0.0)
    assert [call(monkeypatch, *given) for given in (["--quick"], ["--only", "one"])] == [0, 0]
    assert not list(tmp_path.iterdir())
    assert call(monkeypatch) == 0
    (written,) = (tmp_path / "speed").iterdir()
    assert written.name == f"{speed.machine_name()}.json"

"""Short runs of the tools: searches for faults, learning rates, simulated intervals of gains."""

import importlib
import json
import os
import runpy
import signal
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from tespec.core.config import pretraining_settings
from tespec.core.errors import UserError
from tespec.core.paths import REPOSITORY

TOOLS = REPOSITORY / "tools"


@pytest.fixture(scope="module")
def fuzz():
    """The module tools/fuzz.py, by a name under which its processes can import it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(TOOLS)
        yield importlib.import_module("fuzz")


@pytest.mark.slow
def test_damaged_files_are_refused_in_one_line_or_read(fuzz):
    fuzz.world()
    for name in fuzz.TARGETS:
        counts, failures = fuzz.search(name, 0, 20, 1)
        assert (failures, counts.total()) == ([], 20), name


def hang(path):
    os.mkfifo(path.with_name("pipe"))
    path.with_name("pipe").read_bytes()


def loop(path):
    while True:
        pass


def refuse(path):
    raise UserError(path, "is damaged", "copy it again")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("read", "kind", "failure"),
    [
        (Path.exists, "accepted", ""),
        (refuse, "refused", ""),
        (
            lambda _: os.kill(os.getpid(), signal.SIGSEGV),
            "failed",
            "ended the process with code -11",
        ),
        (hang, "failed", "ended the process with code 1"),
        (loop, "failed", f"ended the process with code -{signal.SIGPROF:d}"),
        (lambda _: np.ones(1_100 << 20, np.uint8), "failed", "GB of memory"),
        (lambda _: np.empty(8 << 30, np.uint8), "failed", "MemoryError"),
        (lambda path: (path.parents[1] / "stray").touch(), "failed", "the folder: {'stray'}"),
        (json.loads, "failed", "TypeError"),
        (sys.exit, "failed", "SystemExit"),
    ],
)
def test_each_kind_of_failure_is_one_of_a_case_and_the_next_one_runs(
    fuzz, monkeypatch, read, kind, failure
):
    monkeypatch.setattr(fuzz, "SECONDS", 0.1 if read in (hang, loop) else 20)
    monkeypatch.setitem(
        fuzz.TARGETS, "x", fuzz.Target("a.bin", lambda path: path.write_bytes(b"1"), in_cases(read))
    )
    counts, failures = fuzz.search("x", 5, 2, 0)
    assert counts == {kind: 2}
    assert [text[:8] for text in failures] == ["case 5: ", "case 6: "] if failure else not failures
    assert all(failure in text for text in failures), failures


def in_cases(read):
    """Reader that accepts the intact file."""
    return lambda path: path.parent.name == "sound" or read(path)


@pytest.mark.slow
def test_a_run_killed_anywhere_goes_on_as_if_it_had_not_been():
    torch.set_num_threads(1)  # a process that has started threads cannot be forked safely
    soak = runpy.run_path(str(TOOLS / "kills.py"))["soak"]
    counts = soak(kills=4, minutes=60.0, seed=0, names=("run",))
    assert (counts["kills"] >= 4, counts["completed"] >= 1) == (True, True)


@pytest.fixture(scope="module")
def rates():
    """Names of tools/learning_rates.py."""
    return runpy.run_path(str(TOOLS / "learning_rates.py"))


def test_profile_sample_has_the_learning_rates_that_the_committed_results_choose(rates):
    expected = rates["chosen_rates"](rates["read"]())
    assert set(expected) == set(rates["compared_methods"]())
    for profile in ("sample", "study", "smoke"):
        assert {
            name: pretraining_settings(name, profile).optimisation.peak_lr for name in expected
        } == expected


@pytest.mark.parametrize(
    ("losses", "ranks", "chosen"),
    [
        ((1.0, 2.0), (9.0, 9.0), 2.5e-4),
        ((2.0, 1.0), (9.0, 9.0), 1.0e-3),
        ((2.0, 1.0), (9.0, 7.9), 2.5e-4),
        ((2.0, 1.0), (1.0, 8.0), 1.0e-3),
        ((1.0, 2.0), (7.9, 1.0), 1.0e-3),
        ((1.0,), (9.0,), None),
    ],
)
def test_the_lower_loss_is_chosen_unless_the_last_stage_collapses_there(
    rates, losses, ranks, chosen
):
    rows = pd.DataFrame({"peak_lr": rates["RATES"][: len(losses)], "loss": losses, "rank": ranks})
    assert rates["choose"](rows) == chosen


@pytest.mark.slow
def test_learning_rates_are_searched_once_and_what_changes_is_printed(
    rates, tiny_world, tmp_path, capsys
):
    out = tmp_path / "rates.csv"
    options = {"work": tmp_path / "work", "world": tiny_world, "steps": 3}
    rates["main"](only=("imagenet",), out=out, **options)
    printed, table = capsys.readouterr().out, pd.read_csv(out)
    assert list(table["peak_lr"]) == list(rates["RATES"])
    (chosen,) = table[table["chosen"] == "yes"]["peak_lr"]
    assert rates["chosen_rates"](rates["read"](out)) == {"imagenet": chosen}
    present = pretraining_settings("imagenet", "sample").optimisation.peak_lr
    assert ("imagenet: {optimisation: {peak_lr:" in printed) == (chosen != present)
    written = out.read_bytes()
    (tmp_path / "work").rename(tmp_path / "moved")
    rates["main"](only=("imagenet",), out=out, **options)
    assert out.read_bytes() == written
    assert not (tmp_path / "work").exists()


def test_intervals_cover_true_gains_in_networks_of_unequal_noise():
    """Between pre-trainings there is no noise in one network, and much in the other.

    Pooled over networks, the variance between pre-trainings gave a coverage of 1.00 and 0.87, and a
    family error of 0.15.
    """
    tool = runpy.run_path(str(TOOLS / "coverage_of_gains.py"))
    columns = tool["simulate"](tool["Scenario"](ratios=(0.0, 2.0)), tables=150)
    assert 0.935 < columns["coverage feed-forward"] < 0.965
    assert 0.935 < columns["coverage recurrent"] < 0.965
    assert 0.0 < columns["family error"] <= 0.055
    assert columns["power 1 sd"] < columns["power 2 sd"] < columns["power 3 sd"]

"""What a run starts from decides its learning rate, and whatever names that rate beforehand says the same."""

import argparse
from dataclasses import replace

import pytest
from short_runs import setup_in

from benchmarks.grid_states import states_of
from benchmarks.reproduce_states import wanted
from benchmarks.reproduction import EVALUATION, Piece, read_reproduction
from tespec.comparison.cells import GridCell
from tespec.core.registry import register_methods
from tespec.models import EventSwin
from tespec.pretraining.method import find_method
from tespec.runs.data import Data, settings_of
from tespec.runs.finetune import open_cell
from tespec.weights.files import write_weights

LOWER = "peak_lr_after.1Mpx=0.00025"


@pytest.fixture
def start(tmp_path):
    def start(data):
        path = tmp_path / f"{data}.safetensors"
        recipe = {"width": "micro", "recurrent": True, "bins": 10, "sensor": [90, 150], "dataset": "1mpx"}
        write_weights(path, EventSwin(arch="micro", img_size=(96, 160)).state_dict(), recipe | {"data": data})
        return path

    register_methods()
    return start


@pytest.mark.parametrize(("data", "peak"), [("sample", 0.00025), ("drive", 0.001)])
def test_a_run_takes_the_rate_that_its_weights_ask_for(tiny_world, tmp_path, start, data, peak):
    world = Data(tiny_world / "1mpx", "sample")
    settings = settings_of(world, "1mpx", "feedforward", None, [LOWER])
    cell = open_cell("evaluation", "ecddp", find_method("ecddp"), settings, world, start(data), 0, setup_in(tmp_path))
    assert cell.settings.optimisation.peak_lr == cell.run.config["optimisation"]["peak_lr"] == peak


def test_a_dry_run_prints_it(tiny_world, tmp_path, start, monkeypatch, capsys):
    from benchmarks import run as run_cli

    given = ["--task", "1mpx", "--method", "ecddp", "--arch", "feedforward", "--data", str(tiny_world / "1mpx")]
    for data, peak in (("sample", 0.00025), ("drive", 0.001)):
        command = ["run.py", *given, "--set", LOWER, "--checkpoint", str(start(data)), "--dry-run", "--device", "cpu"]
        monkeypatch.setattr("sys.argv", command)
        run_cli.main()
        assert f"peak_lr: {peak}\n" in capsys.readouterr().out


def test_the_grid_looks_for_records_of_that_rate(tiny_world, tmp_path, monkeypatch):
    register_methods()
    sought = []
    monkeypatch.setattr("tespec.comparison.cells.is_done", lambda cell, config, *rest: sought.append(config))
    for changes in ([LOWER], [LOWER, "pretraining.dataset=gen1"]):
        options = argparse.Namespace(
            data=tiny_world, profile=None, set=changes, checkpoints=[], runs=tmp_path, accept_code=[]
        )
        # Nothing is known of weights with changed settings, so that their records are not asked for.
        states_of([GridCell("ecddp", "1mpx", "feedforward", 0)], options, [])
    assert [config["optimisation"]["peak_lr"] for config in sought] == [0.00025]


def test_a_reproduction_looks_for_records_of_that_rate():
    reproduction = replace(read_reproduction("small"), profile="paper")

    def peak(method, *changes):
        return wanted(Piece(EVALUATION, method, "1mpx", "recurrent", 0, changes), reproduction)["optimisation"][
            "peak_lr"
        ]

    assert (peak("tespec"), peak("ecddp"), peak("moby"), peak("scratch")) == (1e-4, 1e-4, 3.46e-4, 3.46e-4)
    assert peak("tespec", "dataset=gen1") == 3.46e-4

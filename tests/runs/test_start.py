"""What a run starts from decides its learning rate, and whatever names that rate beforehand says the same."""

import pytest
from short_runs import setup_in

from tespec.core.registry import register_methods
from tespec.models import EventSwin
from tespec.pretraining.method import find_method
from tespec.runs.data import Data, settings_of
from tespec.runs.finetune import CellSpec, prepare_run
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
    wanted = CellSpec("ecddp", find_method("ecddp"), settings, world, start(data), 0, setup_in(tmp_path))
    opened = prepare_run("evaluation", wanted)
    assert opened.settings.optimisation.peak_lr == opened.run.config["optimisation"]["peak_lr"] == peak


def test_runs_of_all_seeds_may_start_from_one_pretraining(tiny_world, tmp_path):
    world, setup = Data(tiny_world / "ddd17", "sample"), setup_in(tmp_path)
    settings = settings_of(world, "ddd17", "feedforward", None, [])
    few = ("optimisation.steps=1", "optimisation.warmup_steps=0", "batch_size=2")
    first, other = (
        prepare_run(
            "evaluation", CellSpec("tespec", find_method("tespec"), settings, world, None, seed, setup, few, "test", 3)
        )
        for seed in (3, 4)
    )
    assert [first.run.seed, other.run.seed] == [3, 4]
    assert first.run.start["sha256"] == other.run.start["sha256"]
    assert first.run.start["recipe"]["seed"] == other.run.start["recipe"]["seed"] == 3


def test_a_dry_run_prints_it(tiny_world, tmp_path, start, monkeypatch, capsys):
    from tespec.cli import run as run_cli

    given = ["--task", "1mpx", "--method", "ecddp", "--arch", "feedforward", "--data", str(tiny_world / "1mpx")]
    for data, peak in (("sample", 0.00025), ("drive", 0.001)):
        command = ["run.py", *given, "--set", LOWER, "--checkpoint", str(start(data)), "--dry-run", "--device", "cpu"]
        monkeypatch.setattr("sys.argv", command)
        run_cli.main()
        assert f"peak_lr: {peak}," in capsys.readouterr().out

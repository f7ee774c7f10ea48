"""Two processes compute the same as one for every task and objective, and resume its runs.

The file is also their program: torchrun --nproc-per-node 2 test_several_processes.py WORLD FOLDER
CASE...
"""

import os
import signal
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
from short_runs import cell_spec, setup_in, short_pretrainings, stopped_after

from tespec.comparison.records import read_records
from tespec.core.config import pretraining_settings
from tespec.core.errors import Preempted
from tespec.core.paths import REPOSITORY
from tespec.datasets.batches import LabelledBatches
from tespec.registry import register_methods
from tespec.runs.data import Data
from tespec.runs.finetune import finetune
from tespec.runs.identity import required_settings
from tespec.runs.pretrain import pretrain
from tespec.training.device import launched

ENVIRONMENT = os.environ | {
    "OMP_NUM_THREADS": "1",
    "PYTHONPATH": f"{REPOSITORY}{os.pathsep}{REPOSITORY / 'tests'}",
}
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
FEW = ["optimisation.steps=4", "optimisation.warmup_steps=1", "batch_size=4"]
STILL = ["head.dropout=0.0"]  # each process draws its own dropout
FROZEN = "optimisation.peak_lr=1e-15"
# Data, architecture and changes.
TASKS = {
    "ddd17": ("ddd17", "recurrent", ["segments=3", *STILL]),
    "dsec, no memory": ("dsec", "feedforward", STILL),
    "gen1": ("gen1", "recurrent", ["segments=4"]),
    "mvsec": ("mvsec", "recurrent", ["segments=4"]),
    # Lanes 2 and 3, those of the second process, have no labels.
    "ddd17, unlabelled": ("ddd17", "recurrent", ["segments=3", *STILL]),
    "gen1, unlabelled": ("gen1", "recurrent", ["segments=4"]),
    "mvsec, unlabelled": ("mvsec", "recurrent", ["segments=4"]),
    # Weights do not change, so all scores are of the same weights.
    "ddd17, frozen": ("ddd17", "recurrent", ["segments=3", *STILL, FROZEN]),
    "gen1, frozen": ("gen1", "feedforward", [FROZEN, "head.score_threshold=0.0"]),
    "mvsec, frozen": ("mvsec", "recurrent", ["segments=4", FROZEN]),
}
# Method, data and changes.
OBJECTIVES = {
    "tespec": ("tespec", "1mpx", []),
    "tespec, feedforward": ("tespec", "1mpx", ["recurrent=false"]),
    "cpc": ("tespec", "1mpx", ["objective=cpc"]),
    "ecddp": ("ecddp", "1mpx", []),
    "ecdp": ("ecdp", "ddd17", ["optimisation.peak_lr=1e-4"]),
    "mem-tokenizer": ("mem-tokenizer", "1mpx", []),
    # Without stochastic depth: for sequences, multiple processes drop other branches than one
    # process.
    "mem": ("mem", "1mpx", ["recurrent=true", "segments=3", "sampling=stream", "drop_path=0.0"]),
    "cm3ae": ("cm3ae", "ddd17", []),
    "scaleevent": ("scaleevent", "ddd17", []),
    "moby": ("moby", "objects", []),
    "imagenet": ("imagenet", "objects", []),
}


UPSTREAM = {"mem": "mem-tokenizer", "ecdp": "imagenet", "scaleevent": "imagenet"}


def compute(case, world, folder, stop=0, **changes):
    """Run a case in a folder, or stop it by SIGTERM after step `stop`, as a scheduler would."""
    register_methods()
    stop_or_not = stopped_after(stop, signal.SIGTERM) if stop else nullcontext()
    with stop_or_not, short_pretrainings(), pytest.MonkeyPatch.context() as patch:
        if "unlabelled" in case:
            choose = LabelledBatches._choose  # of loader, labels, lane and step
            patch.setattr(LabelledBatches, "_choose", lambda *given: choose(*given)[: given[2] < 2])
        if case in TASKS:
            task, arch, own = TASKS[case]
            finetune(cell_spec(world, folder, task, arch, changes=[*FEW, *own], **changes))
        else:
            name, dataset, own = OBJECTIVES[case]
            recipe = pretraining_settings(name, "sample", [*own, *FEW])
            if (
                name in UPSTREAM
            ):  # is not trained, since rounding would change what is learned from it
                first = required_settings(recipe, UPSTREAM[name])
                still = replace(first, optimisation=replace(first.optimisation, peak_lr=1e-15))
                for module in ("pretrain", "identity"):
                    patch.setattr(
                        f"tespec.runs.{module}.required_settings", lambda settings, name: still
                    )
            pretrain(name, recipe, Data(world / dataset, "sample"), 0, setup_in(folder, **changes))


def record_of(folder, case=""):
    """Record of a case, not that of the network that it learns from."""
    records, problems = read_records(folder / "results")
    assert problems == []
    (record,) = [each for each in records if each.cell.method != UPSTREAM.get(case)]
    return record


def compute_by_two(tiny_world, folder, *cases):
    command = [*TORCHRUN, __file__, tiny_world, folder, *cases]
    ended = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=500)
    assert ended.returncode == 0, ended.stderr[-3000:]


@pytest.mark.slow
def test_two_processes_compute_what_one_computes(tiny_world, tmp_path):
    cases = [*TASKS, *OBJECTIVES]
    compute_by_two(tiny_world, tmp_path / "two", *cases)
    for case in cases:
        compute(case, tiny_world, tmp_path / "one" / case)
        one, two = (record_of(tmp_path / processes / case, case) for processes in ("one", "two"))
        assert two.environment.processes == 2
        # The weights of the network that a method learns from are a choice of it, and may differ by
        # rounding.
        assert two.name == one.name or case in UPSTREAM, case
        curves = list(zip(one.curve, two.curve, strict=True))
        assert len(curves) == 4
        # After the first loss, Adam's first steps turn the rounding of nearly zero gradients into
        # full steps; the size of the effect depends on the processor.
        exact = 4 if "frozen" in case else 1
        for step, (ours, theirs) in enumerate(curves):
            relative, absolute = (1e-5, 1e-6) if step < exact else (5e-3, 5e-3)
            assert theirs == pytest.approx(ours, rel=relative, abs=absolute), case
        if "frozen" in case:
            assert two.metrics == pytest.approx(one.metrics, rel=1e-5), case
            assert two.recordings.keys() == one.recordings.keys()


@pytest.mark.slow
def test_a_run_goes_on_with_more_processes(tiny_world, tmp_path):
    cases = "mvsec", "tespec"
    for case in cases:
        compute(case, tiny_world, tmp_path / "straight" / case)
        with pytest.raises(Preempted):
            compute(case, tiny_world, tmp_path / "stopped" / case, stop=2)
    compute_by_two(tiny_world, tmp_path / "stopped", *cases)
    for case in cases:
        straight, resumed = (
            record_of(tmp_path / folder / case, case) for folder in ("straight", "stopped")
        )
        assert resumed.name == straight.name
        for ours, theirs in zip(straight.curve, resumed.curve, strict=True):
            assert theirs == pytest.approx(ours, rel=1e-5, abs=1e-5), case


@pytest.mark.parametrize(
    "case", ["tespec", pytest.param("dsec, no memory", marks=pytest.mark.slow)]
)
def test_gradient_accumulation_computes_what_one_batch_computes(tiny_world, tmp_path, case):
    compute(case, tiny_world, tmp_path / "whole")
    compute(case, tiny_world, tmp_path / "accumulated", accumulate=2)
    whole, accumulated = record_of(tmp_path / "whole"), record_of(tmp_path / "accumulated")
    assert accumulated.environment.accumulate == 2
    # The name differs: sums are rounded in another order, and batch statistics are those of a
    # micro-batch.
    assert accumulated.name != whole.name
    tolerance = 1e-5 if case.startswith("tespec") else 0.2
    for ours, theirs in zip(whole.curve, accumulated.curve, strict=True):
        assert theirs == pytest.approx(ours, rel=tolerance, abs=tolerance)


@pytest.mark.slow
def test_the_command_line_by_two_processes_and_a_stop(tiny_world, tmp_path):
    places = [
        "--data",
        tiny_world / "mvsec",
        "--results",
        tmp_path / "results",
        "--runs",
        tmp_path / "runs",
    ]
    what = [
        "--method",
        "scratch",
        "--task",
        "mvsec",
        "--profile",
        "sample",
        "--launcher",
        "pytorch",
        "--device",
        "cpu",
    ]
    changes = ["--set", "optimisation.steps=400", "--set", "batch_size=2", "--set", "segments=2"]
    command = [*TORCHRUN, REPOSITORY / "benchmarks" / "run.py", *what, *changes, *places]
    started = subprocess.Popen(command, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True)
    assert any("fine-tuning:" in line for line in iter(started.stderr.readline, ""))
    started.send_signal(signal.SIGTERM)
    _, said = started.communicate()
    assert started.returncode != 0
    (run,) = (tmp_path / "runs").glob("evaluation-*")
    assert "error" not in said.splitlines()[0]
    (checkpoint,) = run.glob("step-*")
    assert f"stopped after step {int(checkpoint.stem[5:])}" in said


if __name__ == "__main__":
    world, folder, *cases = sys.argv[1:]
    with launched("pytorch", "cpu"):
        for case in cases:
            compute(case, Path(world), Path(folder) / case)

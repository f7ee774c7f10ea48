"""Benchmark scripts at tiny sizes on a CPU: their checks, files and output, never the timings."""

import json
import subprocess
import sys

import pytest
import torch

from benchmarks import gpu, speed
from tespec.cli import main
from tespec.cli.main import run
from tespec.core.config import pretraining_settings
from tespec.core.paths import REPOSITORY
from tespec.runs.cost import estimate_training, input_size
from tespec.runs.setup import Setup

CPU = torch.device("cpu")


def call(script, *arguments):
    return run(lambda: main.call(script.app, [*map(str, arguments)]))


@pytest.mark.slow
def test_both_ways_of_every_stage_agree_and_are_written(tmp_path, capfd):
    path = tmp_path / "speed.json"
    assert call(speed, "--quick", "--json", path) == 0
    written, shown = json.loads(path.read_text()), capfd.readouterr().out
    assert {"revision", "cpu", "cores", "packages"} <= set(written["environment"])
    assert (written["threads"], written["environment"]["device"]) == (1, "cpu")
    assert {row["stage"] for row in written["rows"]} == set(speed.STAGES)
    for row in written["rows"]:
        assert (row["failed"], f"{row['stage']} " in shown, row["unit"] in shown) == (
            False,
            True,
            True,
        )
        assert row["ratio"] == pytest.approx(row["plain_seconds"] / row["seconds"])


def with_one_event_moved(path):
    with speed.h5py.File(path, "a") as file:
        file["x"][7] = file["x"][7] ^ 1
    return path


WRONG = {
    "histogram": ("put_histogram", lambda counts: counts + 1),
    "store": ("write_columns", with_one_event_moved),
    "batch": ("counted_then_mapped", lambda counts: counts.flip(-1)),
    "recurrent": ("frame_by_frame", lambda features: [2 * each for each in features]),
    "frozen_feedforward": ("head_step", lambda weights: weights + 1e-3),
    "frozen_recurrent": ("head_step", lambda weights: weights + 1e-3),
    "metric": ("by_pycocotools", lambda scores: [scores[0] + 1e-3, *scores[1:]]),
}


@pytest.mark.parametrize("stage", WRONG)
def test_a_stage_whose_ways_differ_is_named_and_ends_with_1(stage, monkeypatch, capfd, tmp_path):
    name, spoil = WRONG[stage]
    plain = getattr(speed, name)
    monkeypatch.setattr(speed, name, lambda *given: spoil(plain(*given)))
    monkeypatch.setattr(speed, "RESULTS", tmp_path)
    assert call(speed, "--quick", "--only", stage) == 1
    assert "): FAILED; " in (shown := capfd.readouterr().out)
    assert "note the two implementations give different results" in shown
    assert not list(tmp_path.iterdir())  # a partial run writes no file of results


def test_a_window_that_is_not_rectified_differs(tmp_path):
    case = speed.rectified(True, tmp_path)
    assert case.same(case.ours(), case.plain())
    assert not case.same(case.plain(), case.plain())


@pytest.mark.slow
def test_without_a_gpu_all_stages_run_from_beginning_to_end(tmp_path):
    path = tmp_path / "gpu.json"
    command = [
        sys.executable,
        "benchmarks/gpu.py",
        "--device",
        "cpu",
        "--small",
        "--json",
        str(path),
    ]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads(path.read_text())["rows"]
    assert {row["stage"] for row in rows} == set(gpu.STAGES) - {"losses"}
    assert all("gradient_error" in row for row in rows if row["stage"] == "agreement")
    assert all(row["seconds"] > 0 for row in rows if row["stage"] == "step")


@pytest.mark.parametrize(
    "name",
    [
        name if name in ("ddd17", "gen1", "tespec") else pytest.param(name, marks=pytest.mark.slow)
        for name in gpu.TRAININGS
    ],
)
def test_the_steps_that_are_compared_do_not_depend_on_random_numbers(name, tiny_world, monkeypatch):
    monkeypatch.setattr(gpu, "make_world", lambda *_, **__: tiny_world)
    loss, gradient = gpu.gradients(name, "fp32", CPU)
    training = gpu.training
    monkeypatch.setattr(
        gpu, "training", lambda *given: (*training(*given), torch.manual_seed(1))[:2]
    )
    again, same_gradient = gpu.gradients(name, "fp32", CPU)
    assert (again, torch.equal(same_gradient, gradient)) == (loss, True)


@pytest.mark.parametrize("wrong", [(1.01, 1.0), (1.0, 1.05)])
def test_another_loss_or_other_gradients_fail_the_check(wrong, monkeypatch):
    def gradients(name, precision, device):
        loss, gradient = (1.0, 1.0) if device == CPU else wrong
        return loss, torch.full((3,), gradient)

    monkeypatch.setattr(gpu, "gradients", gradients)
    assert gpu.agreement("ddd17", "fp32", torch.device("meta"), True)["failed"]
    assert not gpu.agreement("ddd17", "fp32", CPU, True)["failed"]


def test_a_gradient_of_zero_fails_however_coarse_the_precision_is(monkeypatch):
    def gradients(name, precision, device):
        gradient = torch.tensor([1.0, 1.0]) if precision == "fp32" else torch.tensor([1.0, -0.4])
        return 1.0, gradient if device == CPU else 0 * gradient

    monkeypatch.setattr(gpu, "gradients", gradients)
    assert gpu.agreement("gen1", "bf16", torch.device("meta"), True)["failed"]


def test_the_losses_that_are_compared_do_not_depend_on_random_numbers(tiny_world, monkeypatch):
    monkeypatch.setattr(gpu, "make_world", lambda *_, **__: tiny_world)
    losses = gpu.loss_curve("ddd17", "fp32", CPU, 2)
    training = gpu.training

    def with_another_seed(*given):
        loop, batch_of = training(*given)
        loop._seed = 1
        return loop, batch_of

    monkeypatch.setattr(gpu, "training", with_another_seed)
    assert torch.equal(losses, gpu.loss_curve("ddd17", "fp32", CPU, 2))
    assert losses[0] != losses[1]
    assert 0 < (losses - gpu.loss_curve("ddd17", "bf16", CPU, 2)).abs().max() < 0.1


@pytest.mark.parametrize(("device_error", "failed"), [(0.019, False), (0.021, True)])
def test_losses_may_differ_by_twice_the_rounding_of_the_cpu(device_error, failed, monkeypatch):
    def loss_curve(name, precision, device, steps):
        error = {"fp32": 0, "bf16": 0.01 if device == CPU else device_error}[precision]
        return torch.linspace(2, 1, steps) * (1 + error)

    monkeypatch.setattr(gpu, "loss_curve", loss_curve)
    row = gpu.losses("tespec", "bf16", torch.device("meta"), False)
    assert row["failed"] is failed
    assert row["allowed"] == pytest.approx(0.02, rel=1e-4)


@pytest.mark.slow
def test_without_a_gpu_the_losses_are_those_of_the_cpu(capsys):
    assert call(gpu, "--only", "losses", "--device", "cpu", "--small") == 0
    *rows, last = capsys.readouterr().out.splitlines()
    assert [row.split(":")[0] for row in rows] == ["losses (ddd17, bf16)", "losses (tespec, bf16)"]
    assert last == "2 rows; failed: none"


def test_a_step_on_a_known_gpu_has_a_fraction_of_its_peak(monkeypatch):
    monkeypatch.setattr(gpu, "describe", lambda device: "NVIDIA H200")
    row = gpu.step("tespec", "fp32", CPU, True)
    settings = pretraining_settings("tespec", "sample", ("batch_size=2", "segments=2"))
    flops = estimate_training(settings, input_size(settings, "1mpx")).cost(Setup()).flops
    assert row["mfu"] == pytest.approx(flops / 494.7e12 / row["seconds"])


def test_a_step_that_raises_is_named_and_the_next_one_runs(monkeypatch, capsys):
    step = (lambda name, *_: {"note": "fine"} if name == "tespec" else 1 / 0), ("bf16",)
    monkeypatch.setitem(gpu.STAGES, "step", step)
    assert call(gpu, "--only", "step", "--device", "cpu", "--small") == 1
    broken, fine, *others = capsys.readouterr().out.splitlines()
    assert broken == "step (ddd17, fp32): FAILED; note ZeroDivisionError: division by zero"
    assert fine == "step (tespec, fp32): ok; note fine"
    assert others == ["2 rows; failed: step (ddd17, fp32)"]


def test_the_page_has_the_measured_times_of_a_gpu():
    page = (REPOSITORY / "docs" / "installation.md").read_text()
    (path,) = (REPOSITORY / "results" / "gpu").glob("*.json")
    rows = {(row["stage"], row["case"]): row for row in json.loads(path.read_text())["rows"]}
    for name in gpu.TRAININGS:
        step, compiled = (rows[stage, f"{name}, bf16"] for stage in ("step", "compiled"))
        cells = [
            f"{step['seconds']:.3f}",
            f"{step['frames_per_second']:.0f}",
            *hours_and_memory(step),
        ]
        cells += [f"{compiled['seconds']:.3f}", *hours_and_memory(compiled)]
        assert f"| {' | '.join(cells)} |" in page


def hours_and_memory(row):
    return f"{row['hours_of_all_steps']:.1f}", f"{row['peak_bytes'] / 1e9:.1f} GB"


def test_without_a_gpu_the_way_that_works_is_named(capsys):
    assert call(gpu, "--device", "cuda:99") == 2
    said = "error: --device cuda:99: no such GPU; use --device cpu --small for a smoke test"
    assert capsys.readouterr().err.startswith(said)

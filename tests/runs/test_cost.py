"""What a run takes, and the forecast of it, beside what a step really keeps and a checkpoint really takes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tespec.core.config import pretraining_settings
from tespec.pretraining.objective import build_objective
from tespec.runs.cost import BYTES_PER_PARAMETER, Forecast, ResourceMeter, bytes_saved_for_backward, forecast, repeated
from tespec.training.checkpoint import save_checkpoint
from tespec.training.loop import Loop

CPU = torch.device("cpu")
TOLD = Forecast(
    parameters={"backbone": 10},
    memory=160,
    fixed_seconds=0.5,
    frame_seconds=0.1,
    data_seconds=3.0,
    workers=0,
    frames=15,
    checkpoint_bytes=120,
    steps=1800,
    frames_measured=(1, 3),
)


def test_a_step_waits_for_its_data_unless_workers_build_it_meanwhile() -> None:
    assert TOLD.compute_seconds == 2.0
    assert (TOLD.seconds_per_step, TOLD.hours) == (5.0, 2.5)
    assert replace(TOLD, workers=1).seconds_per_step == 3.0
    assert replace(TOLD, workers=2).seconds_per_step == 2.0


def test_a_repeated_batch_has_its_labels_on_lanes_of_their_own() -> None:
    batch = {
        "histograms": torch.zeros(2, 3, 20, 8, 8, dtype=torch.uint8),
        "fresh": torch.ones(2, dtype=torch.bool),
        "label_place": torch.tensor([[0, 1], [1, 2], [1, 0]]),
    }
    twice = repeated(batch, 2)
    assert twice["histograms"].shape[:2] == (4, 3)
    assert twice["label_place"].tolist() == [[0, 1], [1, 2], [1, 0], [2, 1], [3, 2], [3, 0]]
    assert batch["label_place"].tolist() == [[0, 1], [1, 2], [1, 0]]


def test_memory_and_disk_are_those_of_a_full_step(tiny_world: Path, tmp_path: Path) -> None:
    settings = pretraining_settings("tespec", "sample", ["batch_size=4", "segments=4"])
    task = build_objective(settings, tiny_world / "1mpx")
    steps, optimisation = task.steps(0), settings.optimisation
    told = forecast(task.network(), task.small_batch(), steps, optimisation, CPU, frames=16)
    count = sum(told.parameters.values())
    assert told.frames_measured == (1, 3)
    assert told.steps == optimisation.steps

    loop = Loop(task.network(), steps, optimisation, seed=0, device=CPU)
    loop.model.train()
    saved = bytes_saved_for_backward(lambda: loop.train_step(steps[0]))
    # Beside activations a step keeps its weights, which the forecast counts once.
    assert told.memory - BYTES_PER_PARAMETER * count == pytest.approx(saved - 4 * count, rel=0.1)

    content = loop.state_dict()
    folder = save_checkpoint(tmp_path, 1, content.pop("model"), content)
    written = sum(file.stat().st_size for file in folder.iterdir())
    assert told.checkpoint_bytes == pytest.approx(written, rel=0.1)


def powercap(folder: Path, **zones: int) -> Path:
    """Counters as Linux shows them: one folder for each processor, and parts of it below."""
    for name, value in zones.items():
        zone = folder / f"intel-rapl:{name[-1]}"
        zone.mkdir(exist_ok=True)
        (zone / "energy_uj").write_text(f"{value}\n")
        (zone / "max_energy_range_uj").write_text("1000000\n")
        part = folder / f"intel-rapl:{name[-1]}:0"
        part.mkdir(exist_ok=True)
        (part / "energy_uj").write_text("999\n")
    return folder


def test_memory_is_that_of_the_process(tmp_path: Path) -> None:
    meter = ResourceMeter(CPU, tmp_path)
    kept = torch.ones(50_000_000, dtype=torch.uint8)
    found = meter.resources()
    assert set(found) == {"peak_memory_bytes"}
    assert len(kept) < found["peak_memory_bytes"] < 100e9


def test_energy_is_the_sum_of_the_processors_and_counters_wrap(tmp_path: Path) -> None:
    meter = ResourceMeter(CPU, powercap(tmp_path, zone0=100_000, zone1=900_000))
    powercap(tmp_path, zone0=400_000, zone1=200_000)
    assert meter.resources()["processor_energy_joules"] == pytest.approx(0.3 + 0.3)


def test_a_counter_that_nobody_may_read_is_left_out(tmp_path: Path) -> None:
    meter = ResourceMeter(CPU, powercap(tmp_path, zone0=1))
    (tmp_path / "intel-rapl:0" / "energy_uj").write_text("no number")
    assert "processor_energy_joules" not in meter.resources()

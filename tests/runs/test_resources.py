"""What a run took, by the counters of this machine."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tespec.runs.resources import ResourceMeter

CPU = torch.device("cpu")


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

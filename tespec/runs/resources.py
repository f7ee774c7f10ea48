"""What a run took of this machine: memory and energy, as far as it reports them."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

import torch

POWERCAP = Path("/sys/class/powercap")


class ResourceMeter:
    """Measures the memory and the energy that a run on `device` takes, from the moment it is made."""

    def __init__(self, device: torch.device, powercap: Path = POWERCAP) -> None:
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        self._device, self._powercap = device, powercap
        self._processors, self._board = _processors(powercap), _board(device)

    def resources(self) -> dict[str, float]:
        """What was taken since the start; what the machine does not report is left out.

        Returns:
            peak_memory_bytes of this process since it began, peak_device_memory_bytes that torch had allocated,
            processor_energy_joules of all that ran on the processors (RAPL), device_energy_joules of the GPU (NVML).
        """
        unit = 1 if sys.platform == "darwin" else 1024
        taken = {"peak_memory_bytes": float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit)}
        if self._device.type == "cuda":
            taken["peak_device_memory_bytes"] = float(torch.cuda.max_memory_allocated(self._device))
        before, now = self._processors, _processors(self._powercap)
        if now and now.keys() == before.keys():
            micro = sum(_advanced(self._powercap / zone, before[zone], now[zone]) for zone in now)
            taken["processor_energy_joules"] = micro / 1e6
        board = _board(self._device)
        if board is not None and self._board is not None:
            taken["device_energy_joules"] = board - self._board
        return taken


def _processors(powercap: Path) -> dict[str, int]:
    """Energy counters in microjoules of whole processors, by zone; empty where they cannot be read."""
    try:
        zones = [path for path in powercap.glob("intel-rapl:*") if path.name.count(":") == 1]
        return {path.name: int((path / "energy_uj").read_text()) for path in zones}
    except (OSError, ValueError):
        return {}


def _advanced(zone: Path, before: int, now: int) -> int:
    """How far a counter went; it starts again at zero beyond its range."""
    return now - before if now >= before else now + int((zone / "max_energy_range_uj").read_text()) - before


def _board(device: torch.device) -> float | None:
    """Energy in joules that a GPU has used since its driver was loaded; None where nothing says it."""
    if device.type != "cuda":
        return None
    try:
        import pynvml

        pynvml.nvmlInit()
        # Numbers of torch and of the driver differ under CUDA_VISIBLE_DEVICES; the identifier does not.
        identifier = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
        handle = pynvml.nvmlDeviceGetHandleByUUID(identifier)
        return float(pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)) / 1000
    except Exception:  # any of NVML's own errors, and old versions of torch: the figure is a courtesy
        return None

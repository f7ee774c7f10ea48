"""Watches the memory of a long streaming pre-training: flat, or something is kept that should not be.

python tests/soak/memory.py --steps 2000
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
FIRST = 100  # step from which on memory has to stay


def resident(process: int) -> float:
    """Resident memory of a process in MB, 0 where it is gone."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1000 for line in lines if line.startswith("VmRSS")), 0.0)


def watch(steps: int) -> list[tuple[int, float]]:
    """(step, MB) along a run on the sample world."""
    found: list[tuple[int, float]] = []
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(REPOSITORY / "benchmarks" / "pretrain.py"), "--method", "tespec", "--data",
                   "sample", "--set", f"optimisation.steps={steps}", "--set", "batch_size=2",
                   "--results", f"{folder}/results", "--runs", f"{folder}/runs"]  # fmt: skip
        with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process:
            assert process.stderr is not None
            for line in process.stderr:
                if line.startswith("training: "):
                    found.append((int(line.split()[1].split("/")[0]), resident(process.pid)))
        assert process.returncode == 0, line
    return found


def main() -> None:
    """Print the memory along the run, and how far it went after step 100."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=2000)
    options = parser.parse_args()
    began = time.monotonic()
    found = watch(options.steps)
    for step, megabytes in found[:: max(1, len(found) // 12)]:
        print(f"step {step:6}: {megabytes:7.1f} MB")
    later = [(step, megabytes) for step, megabytes in found if step >= FIRST]
    (first, start), (last, end) = later[0], later[-1]
    print(f"step {first}: {start:.1f} MB, step {last}: {end:.1f} MB, {end - start:+.1f} MB")
    print(f"{time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()

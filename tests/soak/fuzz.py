"""Damages whatever is read from strangers, at random, and holds the harness to refusing it in one line or reading it.

python tests/soak/fuzz.py --cases 100000
python tests/soak/fuzz.py --only records --seed 3 --first 1234 --cases 1     # one case again

Every case follows from (target, seed, number). Each target has a process of its own: a crash, a hang or a gigabyte of
memory is seen as what it is.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import math
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import numpy as np

sys.path[:0] = [str(Path(__file__).parents[up] / name) for up, name in ((0, ""), (1, "events"), (2, ""))]

SECONDS = 20  # a case may take
MEMORY = 1 << 30  # bytes that a target may take beyond what it needs to start
SHOWN = 5  # failures of a target
TOGETHER = 10  # cases that one watch is set for
ROOM = Path("/dev/shm")  # in memory, where there is such a place: files come and go by the hundred thousand


def run_target(name: str, first: int, cases: int, seed: int) -> dict[str, object]:
    """Run cases of one target in this process; counts, and the first failures."""
    from targets import TARGETS

    target = TARGETS[name]
    signal.signal(signal.SIGALRM, _hang)
    counts = {"refused": 0, "accepted": 0}
    failures: list[str] = []
    failed = 0
    with tempfile.TemporaryDirectory(prefix=f"fuzz-{name}-", dir=ROOM if ROOM.is_dir() else None) as place:
        root = Path(place)
        os.environ["TESPEC_CACHE"] = str(root / "cache")
        (root / "sound").mkdir()
        sound = target.write(root / "sound")
        target.read(sound)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        began = time.monotonic()
        for number in range(first, first + cases):
            rng = np.random.default_rng([seed, number, *name.encode()])
            folder = root / "case" / str(number)
            folder.mkdir(parents=True)
            signal.alarm(SECONDS)
            if (number - first) % TOGETHER == 0:
                # What hangs outside of Python hears no alarm.
                faulthandler.dump_traceback_later(TOGETHER * SECONDS, exit=True)
            try:
                counts[target.case(sound, folder, rng)] += 1
            except BaseException as error:
                if isinstance(error, KeyboardInterrupt):
                    raise
                failed += 1
                if len(failures) < SHOWN:
                    last = traceback.extract_tb(error.__traceback__)[-1]
                    where = f"{Path(last.filename).name}:{last.lineno}"
                    failures.append(f"case {number}: {type(error).__name__}: {str(error)[:300]} ({where})")
            finally:
                signal.alarm(0)
                _remove(folder)
                _remove(root / "cache")
        faulthandler.cancel_dump_traceback_later()
        seconds = time.monotonic() - began
        strays = sorted(path.name for path in root.iterdir() if path.name not in ("sound", "case", "cache"))
        if strays:
            failures.append(f"written outside of the folder: {strays}")
            failed += 1
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    if grown > MEMORY:
        failures.append(f"took {grown / 1e9:.2f} GB")
        failed += 1
    return {"failed": failed, "failures": failures, "memory": grown, "seconds": seconds, **counts}


def _hang(number: int, frame: object) -> None:
    raise TimeoutError(f"longer than {SECONDS} s")


def _remove(folder: Path) -> None:
    for path in sorted(folder.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
    if folder.is_dir():
        folder.rmdir()


def fuzz(
    names: list[str],
    cases: int,
    seed: int,
    first: int = 0,
    shown: Callable[[str, dict[str, object]], None] = lambda name, counts: None,
) -> dict[str, dict[str, object]]:
    """Run targets one after the other, each in a process of its own."""
    from targets import TARGETS

    found = {}
    whole = sum(TARGETS[name].weight for name in names)
    for name in names:
        share = math.ceil(cases * TARGETS[name].weight / whole)
        command = [sys.executable, __file__, "--only", name, "--first", str(first), "--cases", str(share)]
        ended = subprocess.run([*command, "--seed", str(seed), "--here"], capture_output=True, text=True, check=False)
        if ended.returncode == 0:
            found[name] = json.loads(ended.stdout.splitlines()[-1])
        else:
            said = " | ".join(ended.stderr.strip().splitlines()[-4:]) or "nothing said"
            found[name] = {"failed": 1, "failures": [f"the process ended with {ended.returncode}: {said}"]}
        shown(name, found[name])
    return found


def numbers_of(counts: dict[str, object]) -> list[int]:
    """Refused, accepted and failed cases."""
    return [int(counts.get(key, 0)) for key in ("refused", "accepted", "failed")]


def show(name: str, counts: dict[str, object]) -> None:
    """Print the line of a target as soon as it is known."""
    numbers = numbers_of(counts)
    rate = sum(numbers) / max(float(counts.get("seconds", 0)), 1e-9)
    cells = "".join(f"{number:{width}}" for number, width in zip(numbers, (9, 9, 8), strict=True))
    print(f"{name:16}{sum(numbers):8}{cells}{float(counts.get('memory', 0)) / 1e6:7.0f}{rate:9.0f}", flush=True)


def main() -> int:
    """Print a table of counts; 1 if something failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=100_000, help="in all, or of --only")
    parser.add_argument("--only", help="one target")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--here", action="store_true", help="run the target in this process, print JSON")
    options = parser.parse_args()
    if options.here:
        print(json.dumps(run_target(options.only, options.first, options.cases, options.seed)))
        return 0
    from targets import TARGETS

    names = [options.only] if options.only else list(TARGETS)
    print(f"{'target':16}{'cases':>8}{'refused':>9}{'accepted':>9}{'failed':>8}{'MB':>7}{'cases/s':>9}")
    found = fuzz(names, options.cases, options.seed, options.first, show)
    print(f"{'in all':16}{sum(map(sum, map(numbers_of, found.values()))):8}")
    failed = {name: counts for name, counts in found.items() if counts["failed"]}
    for name, counts in failed.items():
        for line in counts["failures"]:
            print(
                f"{name}: {line}\n  python tests/soak/fuzz.py --only {name} --seed {options.seed} --first N --cases 1"
            )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

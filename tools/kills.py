"""Kill and resume commands repeatedly, in file operations and at random moments.

python tools/kills.py --kills 200 --minutes 20 --seed 0

The commands are `run`, `pretrain` and `plan` on the tiny sample world, and `pretrain` on a raw
file. They pack recordings, train, evaluate, use worker processes and draw pictures. Each is killed
until it ends by itself; then its records (without times), weights and pictures must equal those of
an uninterrupted one. Processes are forked from one that has already imported everything.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import shutil
import signal
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import cyclopts
import torch

import tespec.cli.plan  # before the forks
import tespec.runs.finetune  # noqa: F401
from tespec.cli.main import main as call_tespec
from tespec.core.files import sha256_of
from tespec.core.paths import REPOSITORY
from tespec.runs import train
from tespec.sample import DEFAULT, make_world, world_folder

STEPS = "optimisation.steps=6"
COMMANDS = {
    "run": "run --method tespec --task ddd17 --data {world}/ddd17 --profile smoke "
    f"--set {STEPS} --set pretraining.{STEPS}",
    "pretrain": f"pretrain --method tespec --data {{world}}/1mpx --profile smoke --set {STEPS}",
    "raw": f"pretrain --method tespec --data {REPOSITORY}/tests/data/evt3_640x480_2.08s.raw "
    f"--profile smoke --set {STEPS}",
    "plan": "plan {world}/plan.yaml --data {world}",
}
PLAN = """
profile: smoke
cells: [{methods: [tespec], architectures: [feedforward], tasks: [ddd17]}]
"""
KINDS = ("in a file operation", "at a random moment")
VARYING = {"command", "written", "environment", "time", "cost"}  # fields of a record
# `os` functions where a process is killed
CALLS = ("write", "rename", "replace", "unlink", "rmdir", "mkdir", "open", "fsync")
made_calls: Any = multiprocessing.Value("i")  # by a command and its worker processes


def die_at_call(number: int) -> None:
    """Count calls of `CALLS`, and make all processes of this group die at one of them.

    They die before the call, after it or half-way.

    Args:
        number: of the call, from 1; 0: none.
    """
    made_calls.value = 0

    def wrap(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            made_calls.value += 1
            if made_calls.value == number:
                if name == "fsync":  # truncates what has been written
                    os.ftruncate(arguments[0], os.fstat(arguments[0]).st_size * (number % 5) // 4)
                elif name == "write" and number % 3 == 0:
                    real(arguments[0], arguments[1][: len(arguments[1]) // 2])
                elif number % 3 == 1:
                    with suppress(OSError):
                        real(*arguments, **options)
                os.killpg(0, signal.SIGKILL)
            return real(*arguments, **options)

        return call

    for name in CALLS:
        setattr(os, name, wrap(name, getattr(os, name)))


def in_child(work: Callable[[], int], log: Path) -> int:
    """Run `work` in a forked child that leads a process group.

    Args:
        work: returns the exit code.
        log: file for its output.

    Returns:
        Status of the child as `os.waitpid` returns it.
    """
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1]
    code = 1
    try:
        os.setsid()
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(output, 1)
        os.dup2(output, 2)
        code = work()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def start(words: list[str], folder: Path, call: int = 0, seconds: float = 0.0) -> int:
    """Run or resume a command in a child that dies.

    Args:
        words: arguments of `tespec`.
        folder: of results, runs and packed recordings.
        call: number of the file operation at which it dies, 0 for none.
        seconds: time after which it dies, 0 for none; its child processes then survive it.

    Returns:
        Status of the child.
    """

    def work() -> int:
        train.SECONDS_BETWEEN_CHECKPOINTS = 0.0
        die_at_call(call)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)  # kills; pytest has a handler
        signal.setitimer(signal.ITIMER_REAL, seconds)
        os.environ["TESPEC_CACHE"] = str(folder / "cache")
        return call_tespec([*words, f"--results={folder / 'results'}", f"--runs={folder / 'runs'}"])

    return in_child(work, folder.with_suffix(".log"))


def outcome(folder: Path) -> dict[str, Any]:
    """Content of records and hashes of pictures and weights by path."""
    contents: dict[str, Any] = {}
    # Without checkpoints, which stay if the process dies when it has just written the record.
    for pattern in ("results/*/[!.]*", "runs/*/*.safetensors"):
        for path in folder.glob(pattern):
            content: Any = sha256_of(path)
            if path.suffix == ".json":
                record = json.loads(path.read_text())
                content = {name: record[name] for name in record.keys() - VARYING}
            contents[str(path.relative_to(folder))] = content
    return contents


def soak(
    kills: int, minutes: float, seed: int, names: tuple[str, ...] = tuple(COMMANDS)
) -> Counter[str]:
    """Kill and resume commands, and compare their results with those of uninterrupted ones.

    Args:
        kills: number of kills after which it ends.
        minutes: time after which it ends.
        seed: seed of the moments.
        names: of the `COMMANDS`.

    Returns:
        Numbers of completed commands and of kills, by kind.
    """
    rng = random.Random(seed)
    end = time.monotonic() + 60 * minutes
    counts = Counter[str]()
    with tempfile.TemporaryDirectory(prefix="kills-") as root:
        world = world_folder("tiny", root=Path(root))
        make = partial(make_world, "tiny", root=Path(root), processes=1, datasets=DEFAULT)
        assert in_child(lambda: int(make() != world), Path(root, "world.log")) == 0
        (world / "plan.yaml").write_text(PLAN)
        expected = {}
        for name in names:
            words = COMMANDS[name].format(world=world).split()
            folder = Path(root, name)
            start_time = time.monotonic()
            assert start(words, folder) == 0, folder.with_suffix(".log").read_text()
            seconds = time.monotonic() - start_time
            expected[name] = words, made_calls.value, seconds, outcome(folder)
        while counts["kills"] < kills and time.monotonic() < end:
            name = rng.choice(names)
            words, calls, seconds, uninterrupted = expected[name]
            folder = Path(root, f"{name}-again")
            status = -1
            while status != 0:
                workers = f"--workers={rng.choice((0, 0, 2))}"
                options = [f"--run-args={workers}" if name == "plan" else workers]
                kind = rng.choice(KINDS)
                if kind == "in a file operation":
                    status = start([*words, *options], folder, call=rng.randrange(1, calls + 1))
                else:
                    status = start([*words, *options], folder, seconds=rng.uniform(0.01, seconds))
                if status != 0:
                    log = folder.with_suffix(".log").read_text()
                    killed = status in (signal.SIGKILL, signal.SIGALRM)
                    assert killed, f"seed {seed}, {counts}: {log}{sorted(folder.rglob('*'))}"
                    counts.update(["kills", kind, f"of {name}"])
            resumed = outcome(folder)
            paths = uninterrupted.keys() | resumed.keys()
            differing = [path for path in paths if uninterrupted.get(path) != resumed.get(path)]
            assert not differing, f"seed {seed}, {counts}: {differing} differ"
            counts["completed"] += 1
            shutil.rmtree(folder)
    return counts


def main(*, kills: int = 200, minutes: float = 20.0, seed: int = 0) -> None:
    """Kill and resume commands repeatedly, and print the counts.

    Args:
        kills: number of kills after which it ends.
        minutes: time after which it ends.
        seed: seed of the moments.
    """
    torch.set_num_threads(1)  # a process that has started threads cannot be forked safely
    for name, count in soak(kills, minutes, seed).items():
        print(f"{name}: {count}")


if __name__ == "__main__":
    cyclopts.run(main)

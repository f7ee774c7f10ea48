"""What the C library does with freed memory, told by a process of its own."""

import ctypes
import subprocess
import sys

import pytest

from tespec.core.paths import REPOSITORY

ROUNDS = """
import resource
from tespec.cli.allocator import keep_freed_memory
{keep}
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    b"x" * (64 * 2**20)  # more than glibc ever keeps by itself, freed at once
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
faults()
print(sum(faults() for _ in range(10)))
"""


def faults(keep: str) -> int:
    command = [sys.executable, "-c", ROUNDS.format(keep=keep)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=True)
    return int(done.stdout)


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="the C library has no mallopt")
def test_freed_memory_is_there_again_without_page_faults():
    assert 10 * faults("assert keep_freed_memory()") < faults("")


def test_another_c_library_is_left_alone(monkeypatch):
    from tespec.cli import allocator

    monkeypatch.setattr(allocator.ctypes, "CDLL", lambda name: object())
    assert not allocator.keep_freed_memory()

"""Which of how many processes this one is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import distributed

from tespec.processes.talk import wait


def _met() -> bool:
    return distributed.is_available() and distributed.is_initialized()


def number() -> int:
    """From 0 on."""
    return distributed.get_rank() if _met() else 0


def count() -> int:
    """How many there are."""
    return distributed.get_world_size() if _met() else 1


def is_first() -> bool:
    """Whether this is the one that writes files and speaks to the user."""
    return number() == 0


@contextmanager
def first_goes_first() -> Iterator[None]:
    """The first process does something, then the others: what it leaves on disk is there for them."""
    if not is_first():
        wait()
    yield
    if is_first():
        wait()

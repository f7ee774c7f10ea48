"""Processes beside this one that answer what they are asked, so that ways of a whole process can be compared."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

END = "end"


@contextmanager
def processes(work: Callable[..., None], arguments: Iterable[tuple[Any, ...]]) -> Iterator[list[Connection]]:
    """One process for each tuple of arguments, reached through these pipes; they end with the block.

    Args:
        work: what a process does, called with its arguments and a pipe; `questions` of it are what it is asked.
        arguments: of each process.
    """
    context = get_context("spawn")
    pipes, started = [], []
    for each in arguments:
        here, there = context.Pipe()
        started.append(context.Process(target=work, args=(*each, there), daemon=True))
        started[-1].start()
        there.close()  # so that the end of a process is heard of
        pipes.append(here)
    try:
        yield pipes
    finally:
        for pipe, process in zip(pipes, started, strict=True):
            if process.is_alive():
                pipe.send(END)
            process.join()


def answers(pipes: list[Connection], question: str) -> list[Any]:
    """What each process answers, in their order; all of them work at it at once."""
    for pipe in pipes:
        pipe.send(question)
    return [pipe.recv() for pipe in pipes]


def questions(pipe: Connection) -> Iterator[str]:
    """What a process is asked, to its end."""
    while (question := pipe.recv()) != END:
        yield question

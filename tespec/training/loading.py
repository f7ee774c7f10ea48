"""Batches from worker processes, with one clear error for data that vanish and for workers that die."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from tespec.core.errors import UserError

Batch = dict[str, Tensor]
PATIENCE = 2.0  # s that a dying process has to be gone


class _Answers(Dataset[Batch | UserError]):
    """Batches, or what kept them from being made: an exception of a worker would come back as another one."""

    def __init__(self, steps: Dataset[Batch]) -> None:
        self._steps = steps

    def __getitem__(self, step: int) -> Batch | UserError:
        try:
            return self._steps[step]
        except UserError as error:
            return error
        except OSError as error:
            where, what = error.filename or "reading data", error.strerror or str(error)
            return UserError(where, f"{what}, at step {step}", "bring it back, then --resume")


class Batches:
    """The batches of steps `first` to `last` in order, prepared by `workers` processes.

    Raises:
        UserError: data cannot be read any more.
    """

    def __init__(self, steps: Dataset[Batch], first: int, last: int, workers: int, *, pin: bool) -> None:
        loader = DataLoader(
            _Answers(steps), batch_size=None, sampler=range(first, last), num_workers=workers, pin_memory=pin
        )
        self._batches = iter(loader)
        self._workers = workers

    def __iter__(self) -> Iterator[Batch]:
        for batch in self._batches:
            if isinstance(batch, UserError):
                raise batch
            yield batch

    def require_workers(self, error: Exception, step: int) -> None:
        """Explain an error by the death of a worker, if one died.

        torch speaks of it wherever the training process is when it hears of it, and a pipe may break first.

        Raises:
            UserError: a worker died.
        """
        batches = self._batches
        if not isinstance(batches, _MultiProcessingDataLoaderIter) or not _one_died(batches):
            return
        # Until its workers are struck off, torch raises again, here as well.
        while batches._worker_pids_set:
            with suppress(RuntimeError):
                batches._shutdown_workers()
        raise UserError(
            f"--workers {self._workers}",
            f"a process that prepares batches died at step {step}, as for want of memory",
            "go on with fewer workers and --resume",
        ) from error


def _one_died(batches: _MultiProcessingDataLoaderIter) -> bool:
    for worker in batches._workers:
        with suppress(RuntimeError):
            worker.join(PATIENCE / len(batches._workers))
        if worker.exitcode not in (None, 0):
            return True
    return False

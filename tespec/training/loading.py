"""Loading of batches: divided among ranks and built by worker processes."""

import os
import re
import shutil
import signal
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader, Dataset

from tespec.core.distributed import rank, world_size
from tespec.core.errors import UserError
from tespec.core.progress import say

Batch = dict[str, Tensor]
PREFETCH = 2  # batches that a worker prepares ahead
MOST_WORKERS = 8


class MicroBatches(Dataset[Batch]):
    """Micro-batches of a rank: item k * accumulate + i belongs to step k, gradient accumulation step i.

    `parts` holds one data set per gradient accumulation step; its item k is that part of the batch
    of step k.
    """

    def __init__(self, parts: Sequence[Any]) -> None:
        self.parts, self.accumulate = parts, len(parts)

    def __getitem__(self, index: int) -> Batch:
        step, part = divmod(index, self.accumulate)
        return self.parts[part][step]

    def names(self, step: int) -> list[str]:
        """Names of the recordings used at a step, for parts that know them."""
        return sorted(
            {name for part in self.parts if hasattr(part, "names") for name in part.names(step)}
        )


def deal(steps: Callable[..., Any], seed: int, accumulate: int) -> MicroBatches:
    """Build this rank's micro-batches; `steps(seed, (index, count))` returns one of `count` parts of the batches."""
    parts = world_size() * accumulate
    return MicroBatches(
        [steps(seed, (rank() * accumulate + step, parts)) for step in range(accumulate)]
    )


class _Answers(Dataset[Batch | UserError]):
    """Batches, or the error that prevented one: an exception raised in a worker would change its type on the way."""

    def __init__(self, steps: Dataset[Batch]) -> None:
        self._steps = steps

    def __getitem__(self, step: int) -> Batch | UserError:
        try:
            return self._steps[step]
        except UserError as error:
            return error
        except OSError as error:
            where, what = error.filename or "reading data", error.strerror or str(error)
            return UserError(
                where, f"{what}, at step {step}", "restore it, then run the same command"
            )


def load_batches(
    steps: Dataset[Any], first: int, last: int, workers: int | None, *, pin: bool
) -> Iterator[Any]:
    """Yield batches of steps `first` to `last` - 1, prepared by `workers` processes (None: chosen for a GPU, else 0).

    Data that disappear and workers that die raise a `UserError`.
    """
    answers = _Answers(steps)
    if pin and workers == 0:
        say(
            "--workers 0 with a GPU: it waits for every batch; omit --workers to choose automatically"
        )
    elif pin and workers is None and first < last:
        workers = choose_workers(answers[first])
    before = signal.getsignal(signal.SIGCHLD)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "This DataLoader will create")  # more workers than cores
        loader = DataLoader(
            answers,
            batch_size=None,
            sampler=range(first, last),
            num_workers=workers or 0,
            prefetch_factor=PREFETCH if workers else None,
            pin_memory=pin,
            collate_fn=_as_it_is,
        )
        batches = iter(loader)
    if signal.getsignal(signal.SIGCHLD) != before:
        # When a worker dies, torch's handler would raise anywhere in the training; without it,
        # torch raises in `next`.
        signal.signal(signal.SIGCHLD, before or signal.SIG_DFL)
    for step in range(first, last):
        try:
            batch = next(batches)
        except (RuntimeError, OSError, EOFError) as error:
            # The pipe may break before torch notices the dead worker.
            broken = not isinstance(
                error, RuntimeError
            ) and "in DataLoader worker process" not in str(error)
            if not workers or not (broken or "DataLoader worker (pid" in str(error)):
                raise
            what = f"a worker process died at step {step}, possibly out of memory"
            raise UserError(
                f"--workers {workers}", what, "run the same command with fewer workers"
            ) from error
        if isinstance(batch, UserError):
            raise batch
        yield batch


def _as_it_is(batch: Any) -> Any:
    return batch


def choose_workers(batch: Any) -> int:
    """Choose and log the number of workers by this process's CPU cores, the free shared memory and the first batch.

    Prefetched batches take at most half of the free shared memory. One core is left to the
    training. With two cores, workers would cost as much time as they save, so there are none.
    """
    size = max(1, sum(each.nbytes for each in tree_leaves(batch) if isinstance(each, Tensor)))
    # torchrun reports how many processes share the cores; SLURM gives each its own and reports
    # processes per machine.
    started = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    on_machine = re.match(r"\d+", os.environ.get("SLURM_STEP_TASKS_PER_NODE", "1"))
    processes = max(started, int(on_machine[0])) if on_machine else started
    cores = len(os.sched_getaffinity(0)) // started
    free = shutil.disk_usage("/dev/shm").free
    workers = (
        min(MOST_WORKERS, cores - 1, free // 2 // processes // (PREFETCH * size))
        if cores > 2
        else 0
    )
    facts = (
        f"{cores} cores, batches of {size / 1e6:.3g} MB, {free / 1e9:.3g} GB of free shared memory"
    )
    say(f"workers: {workers} ({facts}; --workers sets another number)")
    return workers

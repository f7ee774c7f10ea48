"""Loading of batches: divided among ranks and built by worker processes."""

import os
import re
import shutil
import signal
import warnings
from collections.abc import Callable, Iterator, Sequence
from threading import Thread
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader, Dataset

from tespec.core.distributed import rank, world_size
from tespec.core.errors import UserError
from tespec.core.progress import log

Batch = dict[str, Tensor]
PREFETCH = 2  # batches that a worker prepares ahead
MOST_WORKERS = 8


class MicroBatches(Dataset[Batch]):
    """Micro-batches of a rank: item k * accumulate + i is gradient accumulation step i of step k.

    Args:
        parts: one data set per gradient accumulation step; item k is its part of the batch of
            step k.
    """

    def __init__(self, parts: Sequence[Any]) -> None:
        self.parts = parts
        self.accumulate = len(parts)

    def __getitem__(self, index: int) -> Batch:
        step, part = divmod(index, self.accumulate)
        return self.parts[part][step]

    def names(self, step: int) -> list[str]:
        """Names of the recordings that a step uses, of parts that have names."""
        return sorted(
            {name for part in self.parts if hasattr(part, "names") for name in part.names(step)}
        )


def split_batches(steps: Callable[..., Any], seed: int, accumulate: int) -> MicroBatches:
    """Build the micro-batches of this rank.

    Args:
        steps: function `steps(seed, (index, count))` that returns the data set of one of `count`
            parts of each batch.
        seed: seed of the batches.
        accumulate: gradient accumulation steps per optimizer step.
    """
    count = world_size() * accumulate
    first = rank() * accumulate
    return MicroBatches([steps(seed, (first + index, count)) for index in range(accumulate)])


class _BatchesOrErrors(Dataset[Batch | UserError]):
    """Batches, or the error that prevented one: a worker cannot raise a `UserError` unchanged."""

    def __init__(self, steps: Dataset[Batch]) -> None:
        self._steps = steps

    def __getitem__(self, step: int) -> Batch | UserError:
        try:
            return self._steps[step]
        except UserError as error:
            return error
        except OSError as error:
            where = error.filename or "reading data"
            what = f"{error.strerror or error}, at step {step}"
            return UserError(where, what, "restore it, then run the same command")


def load_batches(
    steps: Dataset[Any], first: int, last: int, workers: int | None, *, pin: bool
) -> Iterator[Any]:
    """Yield the batches of steps `first` to `last` - 1.

    Args:
        steps: data set whose item k is the batch of step k.
        first: first step.
        last: step after the last one.
        workers: number of processes that prepare batches; None: chosen for a GPU, else 0.
        pin: whether batches are copied to pinned memory, for a GPU.

    Raises:
        UserError: data disappeared, or a worker died.
    """
    batches_or_errors = _BatchesOrErrors(steps)
    if pin and workers == 0:
        log("--workers 0: the GPU waits for every batch; omit --workers to choose automatically")
    elif pin and workers is None and first < last:
        workers = choose_workers(batches_or_errors[first])
    before = signal.getsignal(signal.SIGCHLD)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "This DataLoader will create")  # more workers than cores
        loader = DataLoader(
            batches_or_errors,
            batch_size=None,
            sampler=range(first, last),
            num_workers=workers or 0,
            prefetch_factor=PREFETCH if workers else None,
            pin_memory=pin,
            collate_fn=_identity,
            worker_init_fn=_obey_parent,
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
            died = "DataLoader worker (pid" in str(error)
            if not isinstance(error, RuntimeError):
                died = died or "in DataLoader worker process" not in str(error)
            if not workers or not died:
                raise
            what = f"a worker process died at step {step}, possibly out of memory"
            remedy = "run the same command with fewer workers"
            raise UserError(f"--workers {workers}", what, remedy) from error
        if isinstance(batch, UserError):
            raise batch
        yield batch


def _obey_parent(worker: int) -> None:
    """Let a signal to the whole process group stop the main process alone, which saves first."""
    stopping = {signal.SIGTERM, signal.SIGUSR1}
    signal.pthread_sigmask(signal.SIG_BLOCK, stopping)

    def wait() -> None:
        while signal.sigwaitinfo(stopping).si_pid != os.getppid():
            pass
        os._exit(0)

    Thread(target=wait, daemon=True).start()


def _identity(batch: Any) -> Any:
    return batch


def choose_workers(batch: Any) -> int:
    """Choose and log the number of workers by CPU cores, free shared memory and the first batch.

    Prefetched batches take at most half of the free shared memory. One core is left to the
    training. With two cores, workers would cost as much time as they save, so there are none.
    """
    tensors = [leaf for leaf in tree_leaves(batch) if isinstance(leaf, Tensor)]
    size = max(1, sum(tensor.nbytes for tensor in tensors))
    # torchrun reports how many processes share the cores; SLURM gives each process its own and
    # reports processes per machine.
    local_ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    slurm_tasks = re.match(r"\d+", os.environ.get("SLURM_STEP_TASKS_PER_NODE", "1"))
    processes = max(local_ranks, int(slurm_tasks[0]) if slurm_tasks else 1)
    cores = len(os.sched_getaffinity(0)) // local_ranks
    free = shutil.disk_usage("/dev/shm").free
    workers = 0
    if cores > 2:
        in_memory = free // 2 // processes // (PREFETCH * size)
        workers = min(MOST_WORKERS, cores - 1, in_memory)
    log(
        f"workers: {workers} ({cores} cores, batches of {size / 1e6:.3g} MB, {free / 1e9:.3g} GB "
        "of free shared memory; --workers sets another number)"
    )
    return workers

"""Several processes that compute one run: who they are, what they tell each other, and means over all of their batches.

Where there is one process, every function here gives back what it is given.
"""

from tespec.processes.batch import alone, averaged, largest, of_all_rows, playing, rows, silenced, silent, summed
from tespec.processes.talk import agreed, first_says, of_all, wait
from tespec.processes.who import count, first_goes_first, is_first, number

__all__ = [
    "agreed",
    "alone",
    "averaged",
    "count",
    "first_goes_first",
    "first_says",
    "is_first",
    "largest",
    "number",
    "of_all",
    "of_all_rows",
    "playing",
    "rows",
    "silenced",
    "silent",
    "summed",
    "wait",
]

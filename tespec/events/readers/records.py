"""Records of a fixed size in a file, read some at a time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tespec.core.errors import UserError


def read_records(path: Path, dtype: np.dtype[Any], offset: int, count: int, at_once: int) -> Iterator[NDArray[Any]]:
    """The `count` records of a file that begin after `offset` bytes, `at_once` at a time.

    Raises:
        UserError: the file is gone or has become shorter.
    """
    for begin in range(0, count, at_once):
        wanted = min(at_once, count - begin)
        try:
            found = np.fromfile(path, dtype, wanted, offset=offset + begin * dtype.itemsize)
        except OSError as error:
            raise UserError(path, f"cannot be read ({error.strerror})", "check the disk it lies on") from error
        if len(found) < wanted:
            raise UserError(path, "has become shorter since it was opened", "copy it again")
        yield found

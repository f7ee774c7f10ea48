"""Records of a fixed size in a file, read part by part: neither held in memory nor mapped into it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tespec.core.errors import UserError


class Records:
    """An array on disk.

    Args:
        path: of the file.
        dtype: of a record.
        offset: bytes before the first record.
        count: number of records.
        field: the field that is given out, of records that have fields; None: whole records.
    """

    def __init__(self, path: Path, dtype: np.dtype[Any], offset: int, count: int, field: str | None = None) -> None:
        self._path, self._dtype, self._offset, self._count, self._field = path, dtype, offset, count, field

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, part: slice) -> NDArray[Any]:
        """Records of a slice without a step.

        Raises:
            UserError: the file is gone or has become shorter.
        """
        begin, end, _ = part.indices(self._count)
        count = max(end - begin, 0)
        try:
            found = np.fromfile(self._path, self._dtype, count, offset=self._offset + begin * self._dtype.itemsize)
        except OSError as error:
            raise UserError(self._path, f"cannot be read ({error.strerror})", "check the disk it lies on") from error
        if len(found) < count:
            raise UserError(self._path, "has become shorter since it was opened", "copy it again")
        return found if self._field is None else found[self._field]

    def field(self, name: str) -> Records:
        """One field of each record."""
        return Records(self._path, self._dtype, self._offset, self._count, name)

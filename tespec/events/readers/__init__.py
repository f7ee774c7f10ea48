"""One file per on-disk format, and the function that opens files of each suffix.

It takes a path, and the sensor's height and width in px where the file does not name them. Files that are empty,
truncated, damaged or of another kind are a `UserError`.
"""

from collections.abc import Callable
from pathlib import Path

from tespec.events.readers import aedat4, arrays, prophesee
from tespec.events.stream import Reader

READERS: dict[str, Callable[[Path, int | None, int | None], Reader]] = {
    ".dat": prophesee.open_dat,
    ".raw": prophesee.open_raw,
    ".aedat4": aedat4.open_aedat4,
    ".npy": arrays.open_arrays,
    ".npz": arrays.open_arrays,
}

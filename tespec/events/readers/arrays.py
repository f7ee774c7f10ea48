"""Arrays in `.npy` files, read without trusting them."""

from __future__ import annotations

import warnings
from pathlib import Path
from tokenize import TokenError

import numpy as np
from numpy.typing import NDArray

from tespec.errors import UserError

# What NumPy raises on a damaged header; it parses it as Python text.
DAMAGE = (ValueError, EOFError, OSError, SyntaxError, TokenError, OverflowError, MemoryError)


def load_array(path: Path) -> NDArray[np.generic]:
    """The array in a `.npy` file; no pickles and no archives.

    Raises:
        UserError: the file is missing, truncated or damaged.
    """
    try:
        with path.open("rb") as file, warnings.catch_warnings():
            # Damage may spell a type in a way that NumPy warns of.
            warnings.simplefilter("ignore")
            array: NDArray[np.generic] = np.lib.format.read_array(file, allow_pickle=False)
    except DAMAGE as error:
        raise UserError(path, "not a readable .npy file", "copy it again") from error
    return array

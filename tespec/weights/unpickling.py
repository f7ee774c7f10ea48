"""What `weights_only=True` may find beside tensors, read as inert containers of values.

Training scripts save their settings next to the weights: Microsoft's Swin and MoBY a yacs node, others argparse's
namespace or numpy's numbers. torch refuses the whole file for them. Each name below is read as a plain dictionary or as
nothing at all; the class itself is never imported, so none of its code runs. Every other name is refused by torch.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any


class Unread:
    """Stands for a value that is neither needed nor looked at."""

    def __init__(self, *_: Any) -> None:
        pass

    def __setstate__(self, _: Any) -> None:
        pass


HARMLESS: list[Callable[..., Any] | tuple[Callable[..., Any], str]] = [
    (OrderedDict, "yacs.config.CfgNode"),
    (OrderedDict, "argparse.Namespace"),
    *(
        (Unread, f"numpy.{name}")
        for name in (
            "dtype",
            "ndarray",
            "core.multiarray.scalar",
            "core.multiarray._reconstruct",
            "_core.multiarray.scalar",
            "_core.multiarray._reconstruct",
        )
    ),
]

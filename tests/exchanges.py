"""Counts what a rank exchanges with the others, for tests of several processes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.utils._python_dispatch import TorchDispatchMode


class Exchanges(TorchDispatchMode):
    """Counts what this rank exchanges with the others inside, what torch does for its replicas included.

    Attributes:
        calls: number of exchanges, by torch's name of their kind, such as "allreduce_".
        bytes: of the tensors that this rank hands over in them, likewise.
        groups: number of exchanges by the name of the group they go through.
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()
        self.groups: Counter[str] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Count an operation that is an exchange, and carry it out."""
        if func.namespace == "c10d":
            kind = func._schema.name.removeprefix("c10d::")
            groups = [each for each in args if isinstance(each, torch.ScriptObject) and "ProcessGroup" in str(each)]
            # What is gathered stands behind the places for it.
            handed = args[1] if "gather" in kind else args[0]
            self.calls[kind] += 1
            self.bytes[kind] += sum(each.nbytes for each in ([handed] if isinstance(handed, Tensor) else handed))
            self.groups[ProcessGroup.unbox(groups[0]).group_name] += 1
        return func(*args, **(kwargs or {}))

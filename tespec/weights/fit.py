"""Holds the tensors of a file against those of a network: all of them, or none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from tespec.errors import UserError
from tespec.weights.bias_tables import BIAS_TABLE, resize_table, same_windows
from tespec.weights.convert import Converted

LSTMS = "lstms."
COUNTER = "num_batches_tracked"


@dataclass(frozen=True)
class Fitted:
    """Tensors that go into a network.

    Attributes:
        tensors: by the network's names.
        adapted: names of those that were resized or repeated.
        fresh: names of the network's tensors that keep what they start from.
        unused: what the file holds beside them.
    """

    tensors: dict[str, Tensor]
    adapted: tuple[str, ...]
    fresh: tuple[str, ...]
    unused: tuple[str, ...]


def fit(
    converted: Converted,
    wanted: Mapping[str, Tensor],
    img_size: tuple[int, int],
    recipe: dict[str, Any],
    *,
    where: object,
    remedy: str,
) -> Fitted:
    """Choose the tensors for a network with the state `wanted`, built for `img_size`.

    ConvLSTMs are fresh where the file cannot have any: it is of a source without them, or its recipe says that it was
    written feed-forward. A feed-forward network leaves those of a file unused. Nothing else may be missing on either
    side: what a network has no place for, such as the blocks of a deeper one, would change what the weights compute.

    Raises:
        UserError: names the first tensor that is missing, has another shape, holds no weights, or has no place.
    """
    given = converted.tensors
    fresh = tuple(name for name in wanted if name.startswith(LSTMS)) if _without_lstms(converted, recipe) else ()
    chosen: dict[str, Tensor] = {}
    adapted = list(converted.repeated)
    for name, target in wanted.items():
        if name in fresh:
            continue
        if name not in given:
            raise UserError(where, f"{name} is missing", remedy)
        tensor = given[name]
        if not tensor.is_floating_point() and not name.endswith(COUNTER):
            raise UserError(where, f"{name} holds {tensor.dtype}, which are no weights", "give it unquantised")
        if tensor.shape != target.shape or not same_windows(name, img_size, recipe):
            if not name.endswith(BIAS_TABLE) or tensor.shape[1:] != target.shape[1:]:
                found, needed = tuple(tensor.shape), tuple(target.shape)
                raise UserError(where, f"{name} is {found}, this model needs {needed}", remedy)
            tensor = resize_table(name, tensor, img_size, recipe, where)
            adapted.append(name)
        chosen[name] = tensor
    left = sorted(name for name in given if name not in wanted)
    feedforward = not any(name.startswith(LSTMS) for name in wanted)
    for name in left:
        if not (feedforward and name.startswith(LSTMS)):
            raise UserError(where, f"{name} has no place in this model", remedy)
    return Fitted(chosen, tuple(adapted), fresh, (*left, *converted.unused))


def _without_lstms(converted: Converted, recipe: dict[str, Any]) -> bool:
    if any(name.startswith(LSTMS) for name in converted.tensors):
        return False
    has_lstms = converted.source.has_lstms
    return recipe.get("recurrent") is False if has_lstms is None else not has_lstms

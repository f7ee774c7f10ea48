"""What a source of published weights is, and what its conversion gives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from torch import Tensor

Tensors = Mapping[str, Tensor]
Renamed = tuple[dict[str, Tensor], tuple[str, ...]]  # tensors in our naming, and what was left out

SWIN_STEM = "swin.patch_embed.proj.weight"
RESNET_STEM = "resnet.conv1.weight"
FEW = 4


@dataclass(frozen=True)
class Source:
    """A naming in which weights are published.

    Attributes:
        name: word for it in reports and records.
        title: what it is, for people.
        fits: whether tensors, by their names and shapes, are of this source.
        rename: tensors in our naming, and what was left out; `where` names the file in errors.
        stem: our name of the convolution that sees the input channels where it may be repeated to more of them; None
            for weights that were trained on our histograms, whose channels must agree.
        sensor: rows and columns, in px, that the weights were trained at.
        has_lstms: whether ConvLSTMs belong to it; None: the recipe in the file says so.
        data: data set that its publisher trained it on, as tables call it; empty where the naming does not say.
    """

    name: str
    title: str
    fits: Callable[[Tensors], bool]
    rename: Callable[[Tensors, object], Renamed]
    stem: str | None
    sensor: tuple[int, int] | None
    has_lstms: bool | None
    data: str = ""


@dataclass(frozen=True)
class Converted:
    """Weights in our naming.

    Attributes:
        source: where they are from.
        tensors: by the names of `EventSwin.state_dict()`, or of a ResNet under `resnet.`.
        unused: what the file holds beside them; many names with one beginning are one entry with their number.
        repeated: names of tensors that were repeated to more input channels.
    """

    source: Source
    tensors: dict[str, Tensor]
    unused: tuple[str, ...]
    repeated: tuple[str, ...] = ()


def grouped(names: Iterable[str]) -> tuple[str, ...]:
    """Names, sorted; more than four of one beginning, or of one kind of buffer, become one entry."""
    listed = sorted(names)
    groups = {name: _group(name) for name in listed}
    sizes = Counter(groups.values())
    entries = [name if sizes[group] <= FEW else f"{group} ({sizes[group]})" for name, group in groups.items()]
    return tuple(dict.fromkeys(entries))


def _group(name: str) -> str:
    first, _, rest = name.partition(".")
    buffer = next((f".{buffer}" for buffer in BUFFERS if rest.endswith(buffer)), "")
    return f"{first}.*{buffer}"


BUFFERS = ("relative_position_index", "attn_mask")

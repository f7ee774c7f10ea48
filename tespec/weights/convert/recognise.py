"""Finds out by names and shapes what a file holds, and gives it in our naming."""

from __future__ import annotations

from tespec.core.errors import UserError
from tespec.weights.convert.channels import repeat_channels
from tespec.weights.convert.ecddp import ECDDP, ECDDP_STUDENT
from tespec.weights.convert.encoders import MOBY, SIMMIM
from tespec.weights.convert.own import OWN
from tespec.weights.convert.resnet import RESNET
from tespec.weights.convert.source import Converted, Source, Tensors
from tespec.weights.convert.strangers import refuse_strangers, refuse_variants
from tespec.weights.convert.swin import MICROSOFT, TIMM, TIMM_FEATURES
from tespec.weights.convert.tespec_release import TESPEC_RELEASE

# The first that fits is taken: those that hold a Swin under a prefix come before the bare ones.
SOURCES: tuple[Source, ...] = (
    OWN,
    TESPEC_RELEASE,
    MOBY,
    SIMMIM,
    ECDDP,
    ECDDP_STUDENT,
    MICROSOFT,
    TIMM_FEATURES,
    TIMM,
    RESNET,
)
DATA_PARALLEL = "module."


def convert(
    tensors: Tensors, channels: int, *, where: object, rescale: bool = False, stem: str | None = None
) -> Converted:
    """Foreign tensors in our naming; a pure function.

    Args:
        tensors: by the names of the file, unwrapped.
        channels: input channels of the network they are for, 2 * bins.
        where: the file, for errors.
        rescale: scale repeated input convolutions by the share of the channels they were trained on.
        stem: our name of the convolution that may be repeated where the source does not say.

    Raises:
        UserError: the names belong to no known source, or to one that cannot be used.
    """
    tensors, source = recognised(tensors)
    if source is None:
        refuse_strangers(tensors, where)
        raise UserError(
            where,
            f"its names are those of no known source (the first is {next(iter(tensors))!r})",
            "give weights of a source that docs/weights.md lists",
        )
    renamed, unused = source.rename(tensors, where)
    refuse_variants(renamed, where)
    name = source.stem or stem
    kernel = renamed.get(name) if name else None
    if name is None or kernel is None or kernel.ndim != 4 or kernel.shape[1] >= channels:
        return Converted(source, renamed, unused)
    return Converted(source, renamed | {name: repeat_channels(kernel, channels, rescale)}, unused, (name,))


def recognised(tensors: Tensors) -> tuple[Tensors, Source | None]:
    """Tensors without the prefix of torch's data parallelism, and the source whose naming they have, None for none."""
    if all(name.startswith(DATA_PARALLEL) for name in tensors):
        tensors = {name.removeprefix(DATA_PARALLEL): tensor for name, tensor in tensors.items()}
    return tensors, next((source for source in SOURCES if source.fits(tensors)), None)

"""Convert checkpoints of published formats: recognise one by its tensors, and rename them."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from torch import Tensor

from tespec.core.errors import UserError
from tespec.models.backbone import backbones
from tespec.weights.released import FORMATS, REFUSED, TESPEC, CheckpointFormat

HISTOGRAMS = "histograms"  # field of a recipe: the `HistogramSpec` of the training
# field of a recipe: whether `tespec weights convert` repeated the first convolution
REPEATED = "repeated"

IMAGE_CHANNELS = (1, 3)


class Converted(NamedTuple):
    """Checkpoint whose tensors are renamed to those of a backbone's `state_dict()`."""

    format: CheckpointFormat
    tensors: dict[str, Tensor]
    # other names in the file; more than four with the same first part are one entry
    unused: tuple[str, ...] = ()
    repeated: tuple[str, ...] = ()  # tensors that were repeated to more input channels
    # of events that it was trained on; None: any, since its first convolution is repeated
    representation: str | None = None


def convert(
    tensors: Mapping[str, Tensor], channels: int, *, where: object, recipe: Mapping[str, Any] = {}
) -> Converted:
    """Rename the tensors of a checkpoint to those of a backbone.

    The first convolution is repeated over more input channels if the format allows it, or if it was
    trained on images here. If the recipe names a backbone of this harness, tensor names stay as
    they are.

    Args:
        tensors: tensors of the file.
        channels: inputs of the target network, 2 * bins.
        where: file that errors name.
        recipe: recipe of the file.

    Raises:
        UserError: the format is unknown or unsupported, the naming is ambiguous, or the file is a
            fine-tuned network.
    """
    if "kind" in recipe:
        what = f"holds a fine-tuned network with a {str(recipe['kind'])[:40]} head"
        raise UserError(where, what, "give the backbone.safetensors of a pre-training")
    if "backbone" in recipe:
        converted = Converted(TESPEC, dict(tensors))
        if recipe.get(REPEATED):
            converted = converted._replace(repeated=tuple(filter(None, [stem_of(tensors)])))
        origin = original_format(recipe)
        of_images = origin is TESPEC and recipe.get("in_channels") in IMAGE_CHANNELS
        repeats = origin.repeats or of_images
        trained = recipe.get(HISTOGRAMS) or {}
        representation = trained.get("representation", origin.representation)
    else:
        tensors, checkpoint_format = recognise(tensors)
        if checkpoint_format is None:
            unknown = f"has an unknown format (the first tensor is {next(iter(tensors))!r})"
            matching = (known.reason for known in REFUSED if _has(tensors, known.mark))
            what = next(matching, unknown)
            raise UserError(where, what, "use a checkpoint in a format listed in docs/weights.md")
        converted = _rename(tensors, checkpoint_format, where)
        repeats = checkpoint_format.repeats
        representation = checkpoint_format.representation
    if not repeats:
        return converted._replace(representation=representation)
    stem = stem_of(converted.tensors)
    if stem is None or converted.tensors[stem].shape[1] >= channels:
        # A network of images has no representation of events that could differ.
        of_images = representation == "histogram"
        return converted if of_images else converted._replace(representation=representation)
    kernel = converted.tensors[stem]
    # Not scaled down: the paper does not mention a scale (appendix C, "Recurrent Backbone").
    kernel = kernel.repeat(1, -(-channels // kernel.shape[1]), 1, 1)[:, :channels].contiguous()
    return converted._replace(tensors=converted.tensors | {stem: kernel}, repeated=(stem,))


def original_format(recipe: Mapping[str, Any], name: str = TESPEC.name) -> CheckpointFormat:
    """Format of the published file that weights are, or were converted from.

    Args:
        recipe: of the weights.
        name: format of weights that were not converted.

    Returns:
        The format; this harness's for its own weights and unknown names.
    """
    source = recipe.get("source")
    if isinstance(source, dict):
        name = source.get("format", name)
    return next((known for known in FORMATS if known.name == name), TESPEC)


def stem_of(tensors: Mapping[str, Tensor]) -> str | None:
    """Name of the convolution that sees the input's channels, if it is among the tensors."""
    stems = [kind.stem for kind in backbones().values() if kind.stem in tensors]
    # (out_channels, in_channels, h, w)
    return next(
        (name for name in stems if tensors[name].ndim == 4 and tensors[name].shape[1]), None
    )


def recognise(
    tensors: Mapping[str, Tensor],
) -> tuple[Mapping[str, Tensor], CheckpointFormat | None]:
    """Recognise the format of a checkpoint by the names of its tensors.

    Returns:
        the tensors without the prefix of torch's data parallelism, and the format, None if unknown.
    """
    if all(name.startswith("module.") for name in tensors):
        tensors = {name.removeprefix("module."): tensor for name, tensor in tensors.items()}
    matching = (known for known in FORMATS if all(_has(tensors, mark) for mark in known.marks))
    return tensors, next(matching, None)


def _has(names: Iterable[str], pattern: str) -> bool:
    return any(re.fullmatch(pattern, name, re.DOTALL) for name in names)


def _rename(
    tensors: Mapping[str, Tensor], checkpoint_format: CheckpointFormat, where: object
) -> Converted:
    converted: dict[str, Tensor] = {}
    unused = []
    for name, tensor in tensors.items():
        matches = (
            (re.fullmatch(pattern, name, re.DOTALL), new)
            for pattern, new in checkpoint_format.renames
        )
        new_name = next((match.expand(new) for match, new in matches if match), "")
        if not new_name:
            unused.append(name)
        elif new_name in converted:
            what = f"holds {new_name} twice, under two names"
            raise UserError(where, what, "use the file as published")
        else:
            converted[new_name] = tensor
    try:
        converted = checkpoint_format.adapt(converted)
    except (KeyError, IndexError, RuntimeError, ValueError) as error:
        what = f"is no complete file of {checkpoint_format.title} ({error})"
        raise UserError(where, what, "use the file as published") from error
    parts = [name.partition(".")[0] for name in sorted(unused)]
    counts = Counter(parts)
    entries = [
        name if counts[part] <= 4 else f"{part}.* ({counts[part]})"
        for name, part in zip(sorted(unused), parts, strict=True)
    ]
    return Converted(checkpoint_format, converted, tuple(dict.fromkeys(entries)))

"""Convert checkpoints of published formats: recognise one by its tensors, and rename them."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from tespec.core.errors import UserError, require
from tespec.core.settings import Size
from tespec.weights.files import read_tensors
from tespec.weights.released import FORMATS, IMAGENET_SIZE, REFUSED, TESPEC, CheckpointFormat

HISTOGRAMS = "histograms"  # field of a recipe: the `HistogramSpec` of the training
# field of a recipe: whether `tespec weights convert` repeated the first convolution
REPEATED = "repeated"

IMAGE_CHANNELS = (1, 3)


class Checkpoint(NamedTuple):
    """A weights file whose tensors have the names of a backbone's `state_dict()`."""

    format: CheckpointFormat
    origin: CheckpointFormat  # of the published file that it was converted from, else the same
    tensors: dict[str, Tensor]
    recipe: dict[str, Any]  # {} for a published file
    # first parts of the other names in the file, with their numbers, such as "teacher (243)"
    unused: tuple[str, ...] = ()

    @property
    def size(self) -> Size:
        """Size (H, W) in px of the input that it was trained on."""
        return self.recipe.get("sensor") or self.format.sensor or IMAGENET_SIZE

    @property
    def repeats(self) -> bool:
        """Whether its first convolution may be repeated over more input channels."""
        of_images = self.origin is TESPEC and self.recipe.get("in_channels") in IMAGE_CHANNELS
        return self.origin.repeats or of_images

    @property
    def representation(self) -> str:
        """Representation of events that it was trained on, as in `CheckpointFormat`."""
        trained = self.recipe.get(HISTOGRAMS) or {}
        return trained.get("representation", self.origin.representation)


def read_checkpoint(path: Path) -> Checkpoint:
    """Read a weights file of any known format; see `convert` for errors."""
    tensors, recipe = read_tensors(path)
    return convert(tensors, recipe, path)


def convert(tensors: Mapping[str, Tensor], recipe: dict[str, Any], where: object) -> Checkpoint:
    """Rename the tensors of a file to those of a backbone.

    If the recipe names a backbone of this harness, tensor names stay as they are.

    Args:
        tensors: tensors of the file.
        recipe: recipe of the file.
        where: file that errors name.

    Raises:
        UserError: the format is unknown or unsupported, the naming is ambiguous, or the file is a
            fine-tuned network.
    """
    require(
        "kind" not in recipe,
        where,
        f"holds a fine-tuned network with a {str(recipe.get('kind'))[:40]} head",
        "give the backbone.safetensors of a pre-training",
    )
    if "backbone" in recipe:
        return Checkpoint(TESPEC, original_format(recipe), dict(tensors), recipe)
    tensors, known = recognise(tensors)
    if known is None:
        what = next(
            (reason for mark, reason in REFUSED.items() if _has(tensors, mark)),
            f"has an unknown format (the first tensor is {next(iter(tensors))!r})",
        )
        raise UserError(where, what, "use a checkpoint in a format listed in docs/weights.md")
    renamed, unused = _rename(tensors, known, where)
    return Checkpoint(known, known, renamed, recipe, unused)


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


def recognise(
    tensors: Mapping[str, Tensor],
) -> tuple[Mapping[str, Tensor], CheckpointFormat | None]:
    """Recognise the format of a checkpoint by the names of its tensors.

    Returns:
        the tensors without the prefix of torch's data parallelism, and the format, None if unknown.
    """
    if all(name.startswith("module.") for name in tensors):
        tensors = {name.removeprefix("module."): tensor for name, tensor in tensors.items()}
    return tensors, next(
        (known for known in FORMATS if all(_has(tensors, mark) for mark in known.marks)), None
    )


def _has(names: Iterable[str], pattern: str) -> bool:
    return any(re.fullmatch(pattern, name, re.DOTALL) for name in names)


def _rename(
    tensors: Mapping[str, Tensor], file_format: CheckpointFormat, where: object
) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """Rename tensors as the format says; also returns `Checkpoint.unused`."""
    renamed: dict[str, Tensor] = {}
    unused = Counter[str]()
    for name, tensor in tensors.items():
        matches = (
            (re.fullmatch(pattern, name, re.DOTALL), new) for pattern, new in file_format.renames
        )
        new_name = next((match.expand(new) for match, new in matches if match), "")
        if not new_name:
            unused[name.partition(".")[0]] += 1
        elif new_name in renamed:
            raise UserError(
                where, f"holds {new_name} twice, under two names", "use the file as published"
            )
        else:
            renamed[new_name] = tensor
    try:
        renamed = file_format.adapt(renamed)
    except (KeyError, IndexError, RuntimeError, ValueError) as error:
        raise UserError(
            where,
            f"is no complete file of {file_format.title} ({error})",
            "use the file as published",
        ) from error
    return renamed, tuple(f"{part} ({count})" for part, count in sorted(unused.items()))

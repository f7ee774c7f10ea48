"""Loads a backbone from a weights file, whole or not at all, and says what came from where."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from tespec.core.errors import UserError
from tespec.models import Backbone, build_backbone
from tespec.models.event_swin import WINDOW, is_table, resize_table, window_of
from tespec.models.layers import padded_size
from tespec.weights.convert import SOURCES, Converted, convert, recognised
from tespec.weights.files import read_recipe, read_tensors, read_weights, require_finite, sha256_of


@dataclass(frozen=True)
class WeightsReport:
    """What a backbone was started from.

    Attributes:
        source: file name of the weights, or "random initialisation".
        sha256: hash of the file; empty for a random initialisation.
        loaded: number of backbone tensors taken from the file.
        total: number of tensors the backbone has.
        adapted: names of tensors that were resized or repeated to fit.
        unused: names of tensors in the file that this backbone has no place for.
        recipe: settings of the pre-training that wrote the file, where it says so.
        format: name of the source whose naming the file has; empty for a random initialisation.
        fresh: names of ConvLSTM tensors that keep their random start, because the source has no ConvLSTMs.
    """

    source: str
    sha256: str
    loaded: int
    total: int
    adapted: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    recipe: dict[str, Any] = field(default_factory=dict)
    format: str = ""
    fresh: tuple[str, ...] = ()

    @property
    def coverage(self) -> float:
        """Share of the backbone's tensors that came from the file, 0 to 1."""
        return self.loaded / self.total if self.total else 0.0

    def summary(self) -> str:
        """One line on what came from where."""
        text = f"{self.source}: {self.loaded} of {self.total} tensors of the backbone"
        text += f", format {self.format}" if self.format else ""
        text += f", {len(self.adapted)} adapted" if self.adapted else ""
        return text + (f"; the ConvLSTMs ({len(self.fresh)} tensors) start at random" if self.fresh else "")

    def facts(self) -> dict[str, Any]:
        """What a record says about the weights."""
        return {
            "source": self.source,
            "sha256": self.sha256,
            "coverage": self.coverage,
            "loaded": self.loaded,
            "adapted": list(self.adapted),
            "unused": list(self.unused),
            "fresh": list(self.fresh),
            "format": self.format,
            "recipe": self.recipe,
        }


def fit_table(name: str, table: Tensor, img_size: tuple[int, int], recipe: dict[str, Any], where: object) -> Tensor:
    """Table ((2h-1)(2w-1), heads) of windows (h, w), interpolated over offsets to the windows of a padded image.

    The file's windows follow from its sensor, where the recipe names it, else from the number of rows.

    Raises:
        UserError: they follow from neither.
    """
    old = window_of(padded_size(*recipe["sensor"]), name) if "sensor" in recipe else _window_of_rows(len(table))
    if old is None or (2 * old[0] - 1) * (2 * old[1] - 1) != len(table):
        raise UserError(
            where, f"{name} has {len(table)} rows, which no windows up to {WINDOW}x{WINDOW} explain", "export again"
        )
    return resize_table(table, old, window_of(img_size, name))


def same_windows(name: str, img_size: tuple[int, int], recipe: dict[str, Any]) -> bool:
    """Whether a tensor means the same at another image size; tables of 3x5 and 5x3 windows have one shape.

    True for what is no table, and where the recipe does not name the sensor.
    """
    if not is_table(name) or "sensor" not in recipe:
        return True
    return window_of(padded_size(*recipe["sensor"]), name) == window_of(img_size, name)


def _window_of_rows(count: int) -> tuple[int, int] | None:
    sides = range(1, WINDOW + 1)
    fitting = [window for window in product(sides, sides) if (2 * window[0] - 1) * (2 * window[1] - 1) == count]
    return fitting[0] if len(fitting) == 1 else None


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


def fit(converted: Converted, network: Backbone, recipe: dict[str, Any], *, where: object, remedy: str) -> Fitted:
    """Choose the tensors for a network, which may be on the meta device; it is left as it is.

    ConvLSTMs are fresh where the file cannot have any: it is of a source without them, or its recipe says that it was
    written feed-forward. A feed-forward network leaves those of a file unused. Nothing else may be missing on either
    side: what a network has no place for, such as the blocks of a deeper one, would change what the weights compute.

    Raises:
        UserError: names the first tensor that is missing, has another shape, holds no weights, or has no place.
    """
    given, wanted, img_size = converted.tensors, network.state_dict(), network.img_size
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
            if not is_table(name) or tensor.shape[1:] != target.shape[1:]:
                found, needed = tuple(tensor.shape), tuple(target.shape)
                raise UserError(where, f"{name} is {found}, this model needs {needed}", remedy)
            tensor = fit_table(name, tensor, img_size, recipe, where)
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


IMAGES = (1, 3)  # channels of their pixels


def load_backbone(backbone: Backbone, path: Path, *, rescale: bool = False) -> WeightsReport:
    """Load every tensor of `backbone` from `path`, in place.

    The file may be one of this harness, whose recipe says so and whose names are taken as they are, or of a source in
    `tespec.weights.convert`, which is recognised by its content.
    Input convolutions of fewer channels are repeated, and the bias tables of windows that are smaller than 7 tokens
    (small maps) resized to the backbone's windows. A recurrent backbone keeps its ConvLSTMs as they are where the
    source has none, which the report names as `fresh`; weights that this harness wrote must hold them, unless their
    recipe says that they were trained feed-forward. Tensors the backbone has no place for, such as the ConvLSTMs of a
    recurrent pre-training for a feed-forward network, are reported as unused.

    Args:
        backbone: the network.
        path: safetensors, or a torch file, which is read with `weights_only=True`.
        rescale: scale repeated input convolutions (`tespec.weights.convert.repeat_channels`).

    Raises:
        UserError: unreadable file, unknown naming, a tensor that is missing, has another shape, no place, or values
            that are not finite. The backbone is then unchanged.
    """
    return load_tensors(backbone, *read_tensors(path), path, rescale=rescale)


def load_tensors(
    backbone: Backbone, tensors: Mapping[str, Tensor], recipe: dict[str, Any], path: Path, *, rescale: bool = False
) -> WeightsReport:
    """Load every tensor of `backbone`, in place, from what was read of the file `path`; see `load_backbone`.

    Raises:
        UserError: as `load_backbone` does.
    """
    # What saw images takes histograms like a published network does; what saw histograms has to have as many bins.
    stem = backbone.stem if recipe.get("in_channels") in IMAGES else None
    converted = convert(tensors, backbone.in_channels, where=path, recipe=recipe, rescale=rescale, stem=stem)
    require_finite(path, converted.tensors)
    remedy = _remedy(recipe, converted.source.title, backbone)
    fitted = fit(converted, backbone, recipe, where=path, remedy=remedy)
    wanted = backbone.state_dict()
    backbone.load_state_dict(wanted | fitted.tensors)
    return WeightsReport(
        source=path.name,
        sha256=sha256_of(path),
        loaded=len(fitted.tensors),
        total=len(wanted),
        adapted=fitted.adapted,
        unused=fitted.unused,
        recipe=recipe,
        format=converted.source.name,
        fresh=fitted.fresh,
    )


def _remedy(recipe: dict[str, Any], title: str, backbone: Backbone) -> str:
    made_for = f"the file was written for arch {recipe['width']!r}" if "width" in recipe else f"the file is {title}"
    return f"{made_for}; give weights of arch {backbone.arch!r}, recurrent={backbone.recurrent}"


def read_backbone(path: str | Path, *, height: int | None = None, width: int | None = None) -> Backbone:
    """Pre-trained backbone ready for `.step(histogram, state)`, in evaluation mode.

    Args:
        path: weights written by `benchmarks/pretrain.py` or `benchmarks/weights.py convert`; they hold the recipe the
            network is built from.
        height: rows of the sensor in px the network will see; default: those of the pre-training.
        width: columns, likewise.

    Raises:
        UserError: unreadable file, or one without a recipe.
    """
    path = Path(path)
    _, recipe = read_weights(path)
    if "width" not in recipe:
        raise UserError(path, "holds no recipe", "convert it with benchmarks/weights.py convert")
    for setting in ("sensor", "recurrent", "bins"):
        if setting not in recipe:
            raise UserError(path, f"the recipe in it does not name {setting}", "write the file again")
    rows, columns = recipe["sensor"]
    size = padded_size(height or rows, width or columns)
    backbone = build_backbone(recipe["width"], recipe["recurrent"], recipe["bins"], size, recipe.get("in_channels"))
    load_backbone(backbone, path)
    backbone.recipe = recipe
    return backbone.eval()


SAMPLE = "sample"
# What the file of a whole network says beside the settings of its training: (H, W) of its histograms in px, the run's
# seed, and the hash of the recordings whose labels it has learned.
SENSOR, SEED, TRAINED_ON = BESIDE = ("sensor", "seed", "trained_on")


class Origin(NamedTuple):
    """Data of a pre-training.

    Attributes:
        data: name of the data set; empty for no pre-training, and where it is not known.
        sample: whether it is the sample world's twin of that data set.
    """

    data: str = ""
    sample: bool = False


def require_other_labels(weights: WeightsReport, trained_on: str, where: object) -> None:
    """Refuse weights that have learned the labels of the recordings that they would be fine-tuned on.

    Args:
        weights: what a backbone was started from.
        trained_on: hash of the recordings of the fine-tuning.
        where: the file, for messages.

    Raises:
        UserError: the file says that its network was trained on them.
    """
    if weights.recipe.get(TRAINED_ON) == trained_on:
        what = "has learned the labels of the recordings that it would be fine-tuned on"
        raise UserError(where, what, "train it on others, such as a sample world with another seed")


def origin_of(path: Path) -> Origin:
    """What the weights in a file were pre-trained on.

    Weights of this harness say it in their header, those converted from another source name that source, and a file of
    a known source has what was published of it. Any other file says nothing of its data.
    """
    try:
        recipe = read_recipe(path)
        if recipe.get("data") == SAMPLE:
            return Origin(str(recipe.get("dataset", "")), sample=True)
        if recipe.get("data"):
            return Origin(str(recipe["data"]))
        if recipe:
            source = recipe.get("source")
            written = source.get("format") if isinstance(source, dict) else None
            return Origin(next((each.data for each in SOURCES if each.name == written), ""))
        found = recognised(read_tensors(path)[0])[1]
    except UserError:
        # A method may read files of its own; one that nobody can read is refused where it is loaded.
        return Origin()
    return Origin(found.data if found else "")

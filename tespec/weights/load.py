"""Load a backbone from a checkpoint completely or not at all, and report which tensor came from where."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from tespec.core.errors import UserError
from tespec.models import Backbone, build_backbone
from tespec.models.layers import padded_size
from tespec.weights.files import problem_of, read_recipe, read_tensors, sha256_of
from tespec.weights.formats import FORMATS, IMAGENET, Converted, convert, recognise

LSTMS = "lstms."
SAMPLE = "sample"
# The recipe of a fine-tuned network holds beside its settings: (H, W) of its histograms in px, the run's seed, and the
# hash of the recordings whose labels it has learned.
SENSOR, SEED, TRAINED_ON = BESIDE = ("sensor", "seed", "trained_on")


@dataclass(frozen=True)
class WeightsReport:
    """What a backbone was started from, a file or a random initialisation."""

    source: str  # name of the file, or "random initialisation"
    sha256: str  # of the file, "" without one
    loaded: int  # of the backbone's tensors
    total: int
    adapted: tuple[str, ...] = ()  # tensors that were resized or repeated to fit
    unused: tuple[str, ...] = ()  # tensors in the file that this backbone has no place for
    recipe: dict[str, Any] = field(default_factory=dict)  # settings of the pre-training, if the file names them
    format: str = ""  # of the file
    random: tuple[str, ...] = ()  # ConvLSTMs' tensors that start at random, because the format has none

    @property
    def coverage(self) -> float:
        """Share of the backbone's tensors that came from the file, 0 to 1."""
        return self.loaded / self.total if self.total else 0.0

    def summary(self) -> str:
        """Describe the start in one line."""
        text = f"{self.source}: {self.loaded} of {self.total} tensors of the backbone"
        text += f", format {self.format}" if self.format else ""
        text += f", {len(self.adapted)} adapted" if self.adapted else ""
        return text + (f"; the ConvLSTMs ({len(self.random)} tensors) start at random" if self.random else "")

    def facts(self) -> dict[str, Any]:
        """What a record stores about the weights."""
        same = {name: getattr(self, name) for name in ("source", "sha256", "coverage", "loaded", "format", "recipe")}
        return same | {"adapted": list(self.adapted), "unused": list(self.unused), "fresh": list(self.random)}


class MatchedState(NamedTuple):
    """Tensors of a checkpoint by the names of a network, and why some cannot be loaded; the rest as `WeightsReport`."""

    tensors: dict[str, Tensor]
    adapted: tuple[str, ...]
    random: tuple[str, ...]
    unused: tuple[str, ...]
    problems: tuple[str, ...]
    total: int

    def require_complete(self, where: object, remedy: str) -> None:
        """Refuse a checkpoint that does not fill the network, with the first tensors that do not match."""
        if self.problems:
            more = f" (and {len(self.problems) - 3} more)" if len(self.problems) > 3 else ""
            raise UserError(where, ", ".join(self.problems[:3]) + more, remedy)


def match_state(converted: Converted, network: Backbone, recipe: Mapping[str, Any]) -> MatchedState:
    """Match a checkpoint with a network, which may be on the meta device; nothing is loaded.

    ConvLSTMs stay random if the file cannot have any: its format has none, or its recipe says that it was trained
    feed-forward. A feed-forward network leaves those of a file unused. Nothing else may be missing on either side: what
    a network has no place for, such as the blocks of a deeper one, would change what the weights compute.
    """
    given, wanted = converted.tensors, network.state_dict()
    resized = network.resize(given, padded_size(*(recipe.get("sensor") or converted.format.sensor or IMAGENET)))
    has_lstms = converted.format.has_lstms
    if has_lstms is None:
        has_lstms = recipe.get("recurrent") is not False
    no_lstms = not has_lstms and not any(name.startswith(LSTMS) for name in given)
    random = tuple(name for name in wanted if no_lstms and name.startswith(LSTMS))
    chosen, problems = {}, []
    for name, target in wanted.items():
        tensor = resized.get(name)
        if name in random:
            continue
        if tensor is None:
            problems.append(f"{name} is missing")
        elif problem := problem_of(tensor, target):
            problems.append(f"{name} {problem}")
        else:
            chosen[name] = tensor
    left = sorted(name for name in given if name not in wanted)
    may_stay = () if any(name.startswith(LSTMS) for name in wanted) else (LSTMS,)
    problems += [f"{name} has no place in this model" for name in left if not name.startswith(may_stay)]
    adapted = (*converted.repeated, *(name for name in chosen if chosen[name] is not given[name]))
    return MatchedState(chosen, adapted, random, (*left, *converted.unused), tuple(problems), len(wanted))


def load_backbone(backbone: Backbone, path: Path) -> WeightsReport:
    """Load every tensor of `backbone` from `path`, in place, whatever known format it has; see `match_state`.

    Raises:
        UserError: unreadable file, unknown format, or tensors that do not match; the backbone is then unchanged.
    """
    tensors, recipe = read_tensors(path)
    converted = convert(tensors, backbone.in_channels, where=path, recipe=recipe)
    matched = match_state(converted, backbone, recipe)
    trained = f"written for arch {recipe['width']!r}" if "width" in recipe else converted.format.title
    remedy = f"the file is {trained}; give weights of arch {backbone.arch!r}, recurrent={backbone.recurrent}"
    matched.require_complete(path, remedy)
    backbone.load_state_dict(backbone.state_dict() | matched.tensors)
    loaded = len(matched.tensors), matched.total, matched.adapted, matched.unused
    return WeightsReport(path.name, sha256_of(path), *loaded, recipe, converted.format.name, matched.random)


def read_backbone(path: Path, *, height: int | None = None, width: int | None = None) -> Backbone:
    """Backbone of a file that holds a recipe, in evaluation mode; a `UserError` if it cannot be built and filled."""
    recipe = read_recipe(path)
    if "width" not in recipe:
        raise UserError(path, "holds no recipe", "convert it with `tespec weights convert`")
    if missing := [name for name in ("sensor", "recurrent", "bins") if name not in recipe]:
        raise UserError(path, f"the recipe in it does not name {missing[0]}", "write the file again")
    rows, columns = recipe["sensor"]
    size = padded_size(height or rows, width or columns)
    backbone = build_backbone(recipe["width"], recipe["recurrent"], recipe["bins"], size, recipe.get("in_channels"))
    load_backbone(backbone, path)
    backbone.recipe = recipe
    return backbone.eval()


class Origin(NamedTuple):
    """Data of a pre-training: name of the data set, "" if there is none or it is not known; whether of the sample."""

    data: str = ""
    sample: bool = False


def origin_of(path: Path) -> Origin:
    """Data that the weights in a file were pre-trained on, by its recipe or the format that it has or was made from."""
    recipe = read_recipe(path)
    if recipe.get("data"):
        sample = recipe["data"] == SAMPLE
        return Origin(str(recipe.get("dataset", "") if sample else recipe["data"]), sample)
    source = recipe.get("source")
    name = source.get("format") if isinstance(source, dict) else None
    found = None if recipe else recognise(read_tensors(path)[0])[1]
    return Origin(next((each.data for each in FORMATS if each is found or each.name == name), ""))


def require_other_labels(weights: WeightsReport, trained_on: str, where: object) -> None:
    """Refuse, by a `UserError`, weights that have learned the labels of the recordings of this hash."""
    if weights.recipe.get(TRAINED_ON) == trained_on:
        what = "has learned the labels of the recordings that it would be fine-tuned on"
        raise UserError(where, what, "train it on others, such as a sample world with another seed")

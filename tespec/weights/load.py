"""Load a backbone from a checkpoint completely or not at all; inspect, convert and fetch checkpoints."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tespec.core.errors import UserError
from tespec.core.files import sha256_of
from tespec.core.paths import cache_root
from tespec.core.settings import HistogramSpec, build
from tespec.models import Backbone, build_backbone
from tespec.models.layers import padded_size
from tespec.registry import BACKBONES
from tespec.weights.files import problem_of, read_recipe, read_tensors, write_weights
from tespec.weights.formats import FORMATS, IMAGENET, Converted, convert, recognise

LSTMS = "lstms."
FALLBACK = "swin_tiny"  # architecture that files of unknown width are compared with
DEFAULT_BINS = 10
PREFIX = "timm:"
# Fields that the recipe of a fine-tuned network has in addition to its settings: its
# `HistogramSpec`, the run's seed, and the hash of the recordings whose labels it was trained on.
HISTOGRAMS, SEED, TRAINED_ON = BESIDE = ("histograms", "seed", "trained_on")


@dataclass(frozen=True)
class WeightsReport:
    """Report on the initial weights of a backbone, from a file or from random initialisation."""

    source: str  # name of the file, or "random initialisation"
    sha256: str  # of the file, "" without one
    loaded: int  # of the backbone's tensors
    total: int
    adapted: tuple[str, ...] = ()  # tensors that were resized or repeated to fit
    unused: tuple[str, ...] = ()  # tensors in the file without a counterpart in the backbone
    # settings of the pre-training, if the file holds them
    recipe: dict[str, Any] = field(default_factory=dict)
    format: str = ""  # of the file
    # ConvLSTM tensors that are randomly initialised, because the format has none
    random: tuple[str, ...] = ()

    @property
    def coverage(self) -> float:
        """Share of the backbone's tensors that came from the file, 0 to 1."""
        return self.loaded / self.total

    def summary(self) -> str:
        """Describe the initial weights in one line."""
        text = f"{self.source}: {self.loaded} of {self.total} tensors of the backbone"
        text += f", format {self.format}" if self.format else ""
        text += f", {len(self.adapted)} adapted" if self.adapted else ""
        return text + (
            f"; the ConvLSTMs ({len(self.random)} tensors) are randomly initialised"
            if self.random
            else ""
        )

    def facts(self) -> dict[str, Any]:
        """Facts about the weights for a record."""
        same = {
            name: getattr(self, name)
            for name in ("source", "sha256", "coverage", "loaded", "format", "recipe")
        }
        return same | {
            "adapted": list(self.adapted),
            "unused": list(self.unused),
            "fresh": list(self.random),
        }


class MatchedState(NamedTuple):
    """Tensors matched to a network's names, and problems that prevent loading; other fields as in `WeightsReport`."""

    tensors: dict[str, Tensor]
    adapted: tuple[str, ...]
    random: tuple[str, ...]
    unused: tuple[str, ...]
    problems: tuple[str, ...]
    total: int

    def require_complete(self, where: object, remedy: str) -> None:
        """Raise `UserError` with the first mismatches if the checkpoint does not fill the network."""
        if self.problems:
            more = f" (and {len(self.problems) - 3} more)" if len(self.problems) > 3 else ""
            raise UserError(where, ", ".join(self.problems[:3]) + more, remedy)


def match_state(converted: Converted, network: Backbone, recipe: Mapping[str, Any]) -> MatchedState:
    """Match a checkpoint with a network, which may be on the meta device; nothing is loaded.

    ConvLSTMs stay randomly initialised if the file cannot hold any: its format has none, or its
    recipe says that it was trained feed-forward. A feed-forward network ignores the ConvLSTMs of a
    file. All other tensors must match: leaving some out, such as the blocks of a deeper network,
    would change the function that the weights compute.
    """
    given, wanted = converted.tensors, network.state_dict()
    resized = network.resize(
        given, padded_size(*(recipe.get("sensor") or converted.format.sensor or IMAGENET))
    )
    may_hold = converted.format.has_lstms
    if may_hold is None:
        may_hold = recipe.get("recurrent") is not False
    no_lstms = not may_hold and not any(name.startswith(LSTMS) for name in given)
    random = tuple(name for name in wanted if no_lstms and name.startswith(LSTMS))
    found = {
        name: problem_of(resized.get(name), target)
        for name, target in wanted.items()
        if name not in random
    }
    chosen = {name: resized[name] for name, problem in found.items() if not problem}
    problems = [f"{name} {problem}" for name, problem in found.items() if problem]
    left = sorted(name for name in given if name not in wanted)
    may_stay = () if any(name.startswith(LSTMS) for name in wanted) else (LSTMS,)
    problems += [
        f"{name} has no counterpart in this model" for name in left if not name.startswith(may_stay)
    ]
    adapted = (*converted.repeated, *(name for name in chosen if chosen[name] is not given[name]))
    return MatchedState(
        chosen, adapted, random, (*left, *converted.unused), tuple(problems), len(wanted)
    )


def load_backbone(backbone: Backbone, path: Path) -> WeightsReport:
    """Load all tensors of `backbone` in place from a file of any known format; see `match_state`.

    Raises:
        UserError: the file is unreadable, of an unknown format, or does not match; the backbone is
            then unchanged.
    """
    tensors, recipe = read_tensors(path)
    converted = convert(tensors, backbone.in_channels, where=path, recipe=recipe)
    matched = match_state(converted, backbone, recipe)
    trained = (
        f"written for backbone {recipe['backbone']!r}"
        if "backbone" in recipe
        else converted.format.title
    )
    remedy = f"the file is {trained}; give weights of backbone {backbone.name!r}, recurrent={backbone.recurrent}"
    matched.require_complete(path, remedy)
    backbone.load_state_dict(backbone.state_dict() | matched.tensors)
    loaded = len(matched.tensors), matched.total, matched.adapted, matched.unused
    return WeightsReport(
        path.name, sha256_of(path), *loaded, recipe, converted.format.name, matched.random
    )


def read_backbone(path: Path) -> Backbone:
    """Build and load the backbone of a file with a recipe, in evaluation mode; raise `UserError` if that fails."""
    recipe = read_recipe(path)
    if "backbone" not in recipe:
        raise UserError(path, "holds no recipe", "convert it with `tespec weights convert`")
    if missing := [name for name in ("sensor", "recurrent", "bins") if name not in recipe]:
        raise UserError(path, f"its recipe lacks {missing[0]}", "write the file again")
    size = padded_size(*recipe["sensor"])
    backbone = build_backbone(
        recipe["backbone"], recipe["recurrent"], recipe["bins"], size, recipe.get("in_channels")
    )
    load_backbone(backbone, path)
    return backbone.eval()


def histograms_of(recipe: Mapping[str, Any], where: object) -> HistogramSpec:
    """Read from a recipe how events become the network's histograms; raise `UserError` if it does not say so."""
    if recipe.get(HISTOGRAMS) is None:
        remedy = "use weights that this version trained on events"
        raise UserError(where, "does not say how events become histograms", remedy)
    return build(HistogramSpec, recipe[HISTOGRAMS], f"{where}: {HISTOGRAMS}")


class Origin(NamedTuple):
    """Pre-training data: name of the data set, "" if none or unknown, and whether it is of the sample world."""

    data: str = ""
    sample: bool = False


def origin_of(path: Path) -> Origin:
    """Find the data that weights were pre-trained on, from the file's recipe or its original format."""
    recipe = read_recipe(path)
    if recipe.get("data"):
        sample = recipe["data"] == "sample"
        return Origin(str(recipe.get("dataset", "") if sample else recipe["data"]), sample)
    source = recipe.get("source")
    name = source.get("format") if isinstance(source, dict) else None
    found = None if recipe else recognise(read_tensors(path)[0])[1]
    return Origin(next((each.data for each in FORMATS if each is found or each.name == name), ""))


def require_other_labels(weights: WeightsReport, trained_on: str, where: object) -> None:
    """Raise `UserError` if the weights were trained on labels of the recordings with this hash."""
    if weights.recipe.get(TRAINED_ON) == trained_on:
        what = "was already trained on the labels of these recordings"
        raise UserError(
            where, what, "train it on other recordings, such as a sample world with another seed"
        )


class Contents(NamedTuple):
    """Contents of a weights file, as read and converted, and how they match the networks of their architecture."""

    path: Path
    sha256: str
    tensors: dict[str, Tensor]
    recipe: dict[str, Any]
    converted: Converted
    backbone: str | None  # recognised by its widths, None if unknown
    settings: dict[str, Any]  # settings of the network that `rewrite` writes, for a recipe
    # with the network of this architecture, "recurrent" and "feed-forward"
    matches: dict[str, MatchedState]


def inspect(path: Path, bins: int | None = None, sensor: tuple[int, int] | None = None) -> Contents:
    """Read a weights file and match it with the recurrent and the feed-forward network of its architecture.

    `bins` and `sensor`, (rows, columns) in px, are those of the networks; default: the recipe's,
    else the format's.
    """
    tensors, recipe = read_tensors(path)
    channels = (
        2 * bins if bins else recipe.get("in_channels") or 2 * recipe.get("bins", DEFAULT_BINS)
    )
    converted = convert(tensors, channels, where=path, recipe=recipe)
    backbone = recipe.get("backbone") or _name_of(converted.tensors)
    sensor = sensor or recipe.get("sensor") or converted.format.sensor or IMAGENET
    recurrent = converted.format.has_lstms
    if recurrent is None:
        recurrent = recipe.get(
            "recurrent", any(name.startswith(LSTMS) for name in converted.tensors)
        )
    matches = {
        name: match_state(
            converted,
            _empty(backbone or FALLBACK, has_lstms, channels, padded_size(*sensor)),
            recipe,
        )
        for name, has_lstms in (("recurrent", True), ("feed-forward", False))
    }
    settings = {"backbone": backbone, "sensor": list(sensor), "recurrent": recurrent}
    settings |= {"bins": bins or recipe.get("bins", DEFAULT_BINS), "in_channels": channels}
    return Contents(path, sha256_of(path), tensors, recipe, converted, backbone, settings, matches)


def _name_of(tensors: Mapping[str, Tensor]) -> str | None:
    """Architecture whose first convolution has the same number of outputs; None if there is none."""
    for kind in BACKBONES.module_dict.values():
        for name in kind.variants if kind.stem in tensors else ():
            if _empty(name, False).state_dict()[kind.stem].shape[0] == tensors[kind.stem].shape[0]:
                return str(name)
    return None


def _empty(
    name: str, recurrent: bool, channels: int = 2 * DEFAULT_BINS, size: tuple[int, int] = IMAGENET
) -> Backbone:
    with torch.device("meta"):  # initialisation draws no numbers
        return build_backbone(name, recurrent, DEFAULT_BINS, size, channels)


def rewrite(contents: Contents) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return all tensors under this harness's names, and a recipe from which `tespec.load` builds the network."""
    path, recipe, found = contents.path, contents.recipe, contents.converted.format
    if contents.backbone is None:
        raise UserError(
            path,
            "the width of its first layer matches no architecture here",
            "use Swin-T or ResNet-50",
        )
    matched = contents.matches["recurrent" if contents.settings["recurrent"] else "feed-forward"]
    matched.require_complete(
        path, f"the file is {found.title}; {contents.backbone} needs all its tensors"
    )
    source = {"file": path.name, "format": found.name, "sha256": contents.sha256}
    given = {"bins": contents.settings["bins"], "size": contents.settings["sensor"]}
    histograms = {HISTOGRAMS: recipe[HISTOGRAMS] | given} if recipe.get(HISTOGRAMS) else {}
    return matched.tensors, (recipe or {"source": source}) | contents.settings | histograms


def timm_state(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """State dict of the Swin Transformer or ResNet alone, in the naming of timm since 0.8.

    In some versions, timm's own filter treats any Swin without a classifier as one of the old
    naming.
    """
    named = ((*name.partition("."), tensor) for name, tensor in tensors.items())
    state = {name: tensor for network, _, name, tensor in named if network in ("swin", "resnet")}
    if not state:
        raise UserError("--to timm", "timm has no such network", "leave it out")
    return state


def fetch(given: Path | None) -> Path | None:
    """Return the path of a weights file: `given` itself, or for "timm:NAME" a cached file, downloaded on first use."""
    if given is None or not str(given).startswith(PREFIX):
        return given
    name = str(given).removeprefix(PREFIX)
    path = cache_root() / "weights" / f"{name.replace('/', '_')}.safetensors"
    if path.is_file():
        return path
    import timm

    if not timm.is_model_pretrained(name):
        raise UserError(
            f"--checkpoint {given}",
            "timm has no such weights",
            "choose NAME from timm.list_pretrained()",
        )
    try:
        network = timm.create_model(name, pretrained=True, num_classes=0)
    except Exception as error:  # exception types differ between versions of the hub's client
        what = f"cannot be fetched ({type(error).__name__})"
        raise UserError(
            f"--checkpoint {given}", what, "download the file elsewhere and give its path"
        ) from error
    write_weights(path, network.state_dict(), {})
    return path

"""Load backbones from checkpoints completely or not at all; inspect, convert and fetch them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tespec.comparison.cell import OWN_WEIGHTS
from tespec.core.errors import UserError
from tespec.core.files import sha256_of
from tespec.core.paths import cache_root
from tespec.core.settings import Finetuning, HistogramSpec, Size, build
from tespec.events.representations import REPRESENTATIONS, empty_pixel
from tespec.models import Backbone, build_backbone
from tespec.models.backbone import backbones
from tespec.models.layers import padded_size
from tespec.weights.files import problem_of, read_recipe, read_tensors, write_weights
from tespec.weights.formats import (
    HISTOGRAMS,
    REPEATED,
    Converted,
    convert,
    original_format,
    recognise,
    stem_of,
)
from tespec.weights.released import IMAGENET_SIZE, LSTMS, PARTS, SWIN, TESPEC

DEFAULT_BINS = 10
PREFIX = "timm:"
# Fields that the recipe of a fine-tuned network has in addition to its settings: its
# `HistogramSpec`; cell, seed, pre-training and data of its run; and the hash of the recordings
# whose labels it was trained on.
RUN = "run"
TRAINED_ON = "trained_on"
EXTRA_FIELDS = (HISTOGRAMS, RUN, TRAINED_ON)


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
    # tensors that are randomly initialised, because the format has none
    random: tuple[str, ...] = ()
    # the first convolution: "repeated" over more channels, "new": random; "": that of the file
    stem: str = ""

    @property
    def coverage(self) -> float:
        """Fraction of the backbone's tensors that came from the file."""
        return self.loaded / self.total

    def summary(self) -> str:
        """Describe the initial weights in one line."""
        text = f"{self.source}: {self.loaded} of {self.total} tensors of the backbone"
        text += f", format {self.format}" if self.format else ""
        text += f", {len(self.adapted)} adapted" if self.adapted else ""
        text += f", stem {self.stem}" if self.stem else ""
        return text + (f"; {random_parts(self.random)}" if self.random else "")

    def facts(self) -> dict[str, Any]:
        """Facts about the weights for a record."""
        names = ("source", "sha256", "coverage", "loaded", "format", "stem")
        published = original_format(self.recipe, self.format)
        seen = dict(published.seen)
        cell = self.recipe.get("cell", {})
        # A teacher from a file has learned from images that no recipe names.
        is_own = cell.get("kind") == "pretraining" and cell.get("start") == OWN_WEIGHTS
        if is_own and (teacher := self.recipe["objective"].get("teacher")):
            seen["images"] = f"by its teacher, {teacher}"
        return {name: getattr(self, name) for name in names} | {
            "seen": seen,
            "doubt": published.doubt,
            "data_fingerprint": self.recipe.get("data_fingerprint", ""),
            "adapted": list(self.adapted),
            "unused": list(self.unused),
            "fresh": list(self.random),
        }


def random_parts(names: Sequence[str]) -> str:
    """Name the parts of a backbone whose tensors are randomly initialised."""
    parts = [
        title for prefix, title in PARTS.items() if any(name.startswith(prefix) for name in names)
    ]
    if not all(name.startswith(tuple(PARTS)) for name in names):
        parts.append("the first convolution")
    return f"{' and '.join(parts)} ({len(names)} tensors) are randomly initialised"


class MatchedState(NamedTuple):
    """Tensors matched to a network's names, and problems that prevent loading.

    The other fields are those of `WeightsReport`.
    """

    tensors: dict[str, Tensor]
    adapted: tuple[str, ...]
    random: tuple[str, ...]
    unused: tuple[str, ...]
    problems: tuple[str, ...]
    total: int

    def require_complete(self, where: object, remedy: str) -> None:
        """Raise `UserError` with the first mismatches if the checkpoint does not fill the network.

        Args:
            where: file that the error names.
            remedy: advice that the error gives.
        """
        if self.problems:
            more = f" (and {len(self.problems) - 3} more)" if len(self.problems) > 3 else ""
            raise UserError(where, ", ".join(self.problems[:3]) + more, remedy)


def match_state(converted: Converted, network: Backbone, recipe: Mapping[str, Any]) -> MatchedState:
    """Match a checkpoint with a network; nothing is loaded.

    ConvLSTMs and necks stay randomly initialised if the file cannot hold any: its format has none,
    or its recipe says that it was trained feed-forward. A network without them ignores those of a
    file. All other tensors must match: leaving some out, such as the blocks of a deeper network,
    would change the function that the weights compute.

    Args:
        converted: the checkpoint.
        network: target, which may be on the meta device.
        recipe: recipe of the file.
    """
    source = converted.tensors
    target = network.state_dict()
    size = padded_size(*(recipe.get("sensor") or converted.format.sensor or IMAGENET_SIZE))
    resized = network.resize(source, size)
    lacks = {*converted.format.lacks, *([LSTMS] if recipe.get("recurrent") is False else [])}
    lacks -= {part for part in PARTS if any(name.startswith(part) for name in source)}
    if network.new_stem:
        if network.stem not in target:
            raise UserError(
                f"--new-stem, backbone {network.name}",
                "does not name its first convolution",
                "set `stem` in its class",
            )
        lacks.add(network.stem.removesuffix("weight"))
    random = [name for name in target if name.startswith(tuple(lacks))]
    checked = {
        name: problem_of(resized.get(name), tensor)
        for name, tensor in target.items()
        if name not in random
    }
    stem = stem_of(source)
    if stem in checked and source[stem].shape[1] != network.in_channels:
        bins, odd = divmod(network.in_channels, 2)
        needed = "images" if odd else f"negative and positive counts of {bins} bins"
        if network.representation not in ("", "histogram"):
            needed = network.representation
        given = converted.format.input or "those of its training"
        checked[stem] = (
            f"takes {source[stem].shape[1]} channels ({given}), "
            f"but this model {network.in_channels} ({needed})"
        )
    matched = {name: resized[name] for name, problem in checked.items() if not problem}
    unused = sorted(source.keys() - target.keys())
    problems = [f"{name} {problem}" for name, problem in checked.items() if problem]
    ignored = tuple(part for part in PARTS if not any(name.startswith(part) for name in target))
    problems += [
        f"{name} has no counterpart in this model"
        for name in unused
        if not name.startswith(ignored)
    ]
    adapted = [name for name, tensor in matched.items() if tensor is not source[name]]
    repeated = [name for name in converted.repeated if name in matched]
    return MatchedState(
        matched,
        adapted=(*repeated, *adapted),
        random=tuple(random),
        unused=(*unused, *converted.unused),
        problems=tuple(problems),
        total=len(target),
    )


def load_backbone(backbone: Backbone, path: Path) -> WeightsReport:
    """Load all tensors of a backbone in place from a file of any known format.

    Args:
        backbone: changed in place; see `match_state` for the tensors that stay random.
        path: file of weights.

    Raises:
        UserError: the file is unreadable, of an unknown format, or does not match; the backbone is
            then unchanged.
    """
    tensors, recipe = read_tensors(path)
    return _load(backbone, path, tensors, recipe)


def load_finetuned_backbone(backbone: Backbone, path: Path) -> WeightsReport:
    """Load the backbone of a fine-tuned network in place, for a positive control.

    Args:
        backbone: changed in place.
        path: model.safetensors of a run.

    Raises:
        UserError: the file holds no fine-tuned network, or another backbone.
    """
    tensors, recipe = read_tensors(path)
    if RUN not in recipe:
        what = "holds no network that this version fine-tuned"
        raise UserError(path, what, "give the model.safetensors of a run")
    prefix = "backbone."
    of_backbone = {
        name.removeprefix(prefix): tensor
        for name, tensor in tensors.items()
        if name.startswith(prefix)
    }
    facts = {name: value for name, value in recipe.items() if name != "kind"}
    facts |= {name: recipe[RUN].get(name) for name in ("cell", "seed")}
    return _load(backbone, path, of_backbone, facts | {"sensor": histograms_of(recipe, path).size})


def _load(
    backbone: Backbone, path: Path, tensors: Mapping[str, Tensor], recipe: dict[str, Any]
) -> WeightsReport:
    converted = convert(tensors, backbone.in_channels, where=path, recipe=recipe)
    stem = "new" if backbone.new_stem else "repeated" if converted.repeated else ""
    if not stem:
        _require_input(backbone, converted, path)
    matched = match_state(converted, backbone, recipe)
    written = f"written for backbone {recipe.get('backbone')!r}"
    matched.require_complete(
        path,
        f"the file is {written if 'backbone' in recipe else converted.format.title}; "
        f"give weights of backbone {backbone.name!r}, recurrent={backbone.recurrent}, or "
        "--new-stem if only the input channels differ",
    )
    backbone.load_state_dict(backbone.state_dict() | matched.tensors)
    return WeightsReport(
        path.name,
        sha256_of(path),
        loaded=len(matched.tensors),
        total=matched.total,
        adapted=matched.adapted,
        unused=matched.unused,
        recipe=recipe,
        format=converted.format.name,
        random=matched.random,
        stem=stem,
    )


def _require_input(backbone: Backbone, converted: Converted, path: Path) -> None:
    """Refuse weights that were trained on another representation of events than the network's."""
    trained = converted.representation
    if trained is None or backbone.representation in ("", trained):
        return
    what = f"was trained on representation {trained}, but this run has {backbone.representation}"
    remedy = f"set representation={trained}, or give --new-stem"
    networks = converted.format.networks
    if trained and networks and backbone.name not in networks:
        remedy = f"give --backbone {' or '.join(networks)}"
    if not trained:
        what = f"was trained on an input that no public code makes ({converted.format.input})"
        remedy = "give --new-stem to train a new first convolution with another input"
    raise UserError(path, what, remedy)


def read_backbone(path: Path, size: Size | None = None) -> Backbone:
    """Build and load the backbone of a file, in evaluation mode.

    Args:
        path: file with a recipe, or a published one, which gets the input channels of `tespec
            weights convert`.
        size: (height, width) in px of its input; default: that of its training.

    Raises:
        UserError: the file is unreadable, of an unknown format, or incomplete.
    """
    recipe = read_recipe(path)
    if recipe:
        tensors = None
    else:
        contents = inspect(path, sensor=size)
        if contents.converted.format is TESPEC:
            raise UserError(path, "holds no recipe", "convert it with `tespec weights convert`")
        tensors, recipe = rewrite(contents)
    needed = ("backbone", "sensor", "recurrent", "bins")
    if missing := [name for name in needed if name not in recipe]:
        what = f"its recipe lacks {missing[0]}"
        raise UserError(path, what, "convert it with `tespec weights convert`")
    backbone = build_backbone(
        recipe["backbone"],
        recipe["recurrent"],
        recipe["bins"],
        padded_size(*(size or recipe["sensor"])),
        recipe.get("in_channels"),
    )
    trained = recipe.get(HISTOGRAMS) or {}
    representation = trained.get("representation", original_format(recipe).representation)
    if representation in REPRESENTATIONS:
        # A recipe has no bins of voxels: each is a channel.
        pixel = empty_pixel(representation, backbone.in_channels)
        backbone.empty_pixel = torch.tensor(pixel[: backbone.in_channels])
    if tensors is None:
        load_backbone(backbone, path)
    else:
        backbone.load_state_dict(backbone.state_dict() | tensors)
    return backbone.eval()


def histograms_of(recipe: Mapping[str, Any], where: object) -> HistogramSpec:
    """Read from a recipe how events become the network's histograms.

    Args:
        recipe: recipe of a weights file.
        where: file that errors name.

    Raises:
        UserError: the recipe lacks these settings, or they are invalid.
    """
    if recipe.get(HISTOGRAMS) is None:
        raise UserError(
            where,
            "does not say how events become histograms",
            "use weights that this version trained on events",
        )
    return build(HistogramSpec, recipe[HISTOGRAMS], f"{where}: {HISTOGRAMS}")


class PretrainingData(NamedTuple):
    """Pre-training data of weights."""

    data: str = ""  # name of the data set; "" if none or unknown
    sample: bool = False  # whether it is of the sample world


def pretraining_data_of(path: Path) -> PretrainingData:
    """Find the data that weights were pre-trained on, from the file's recipe or original format."""
    recipe = read_recipe(path)
    if recipe.get("data"):
        is_sample = recipe["data"] == "sample"
        return PretrainingData(
            str(recipe.get("dataset", "") if is_sample else recipe["data"]), is_sample
        )
    if recipe:
        return PretrainingData(original_format(recipe).data)
    checkpoint_format = recognise(read_tensors(path)[0])[1]
    return PretrainingData(checkpoint_format.data if checkpoint_format else "")


def require_same_labels(
    weights: WeightsReport, settings: Finetuning, trained_on: str, where: object
) -> None:
    """Refuse a positive control whose backbone was not trained on the labels of the run.

    Args:
        weights: of a fine-tuned network.
        settings: of the run.
        trained_on: hash of the run's training recordings and their labels.
        where: file that the error names.
    """
    recipe = weights.recipe
    seen = (recipe.get(TRAINED_ON), recipe.get("label_fraction"), recipe.get("frozen"))
    if seen != (trained_on, settings.label_fraction, False):
        raise UserError(
            where,
            "its backbone was not trained on the labels of this run (it was frozen, or of other "
            "recordings or another label_fraction), so it is no positive control",
            "give the model.safetensors of a run on the same data without --freeze",
        )


class InspectedFile(NamedTuple):
    """Contents of a weights file, and how they match the networks of their architecture."""

    path: Path
    sha256: str
    tensors: dict[str, Tensor]
    recipe: dict[str, Any]
    converted: Converted
    backbone: str | None  # recognised by its first convolution, None if unknown
    compared: str  # the same, or another of its format
    settings: dict[str, Any]  # settings of the network that `rewrite` writes, for a recipe
    # with the network of this architecture, "recurrent" and "feed-forward"
    matches: dict[str, MatchedState]


def inspect(
    path: Path, bins: int | None = None, sensor: tuple[int, int] | None = None
) -> InspectedFile:
    """Read a weights file and match it with the networks of its architecture.

    Args:
        path: file of weights.
        bins: time bins of the networks; default: the recipe's, else 10.
        sensor: (rows, columns) in px of their input; default: the recipe's, else the format's.

    Raises:
        UserError: the file is unreadable or of an unknown format.
    """
    tensors, recipe = read_tensors(path)
    file_bins = recipe.get("bins", DEFAULT_BINS)
    channels = 2 * bins if bins else recipe.get("in_channels") or 2 * file_bins
    converted = convert(tensors, channels, where=path, recipe=recipe)
    stem = stem_of(converted.tensors)
    if stem and not bins and not recipe:
        channels = converted.tensors[stem].shape[1]
        file_bins = max(1, channels // 2)
    backbone = recipe.get("backbone") or _name_of(converted, stem)
    compared = backbone or (converted.format.networks or SWIN)[0]
    sensor = sensor or recipe.get("sensor") or converted.format.sensor or IMAGENET_SIZE
    has_lstms = any(name.startswith(LSTMS) for name in converted.tensors)
    matches = {}
    for name, recurrent in (("recurrent", True), ("feed-forward", False)):
        network = _empty(compared, recurrent, channels, padded_size(*sensor))
        matches[name] = match_state(converted, network, recipe)
    settings = {
        "backbone": backbone,
        "sensor": list(sensor),
        "recurrent": recipe.get("recurrent", has_lstms),
        "bins": bins or file_bins,
        "in_channels": channels,
    }
    return InspectedFile(
        path, sha256_of(path), tensors, recipe, converted, backbone, compared, settings, matches
    )


def _name_of(converted: Converted, stem: str | None) -> str | None:
    """Backbone of the format whose first convolution has this shape, but for channels, or None."""
    for name in converted.format.networks or backbones():
        if stem == backbones()[name].stem:
            kernel = _empty(name, False).state_dict()[stem][:, 0]
            if kernel.shape == converted.tensors[stem][:, 0].shape:
                return name
    return None


def _empty(
    name: str,
    recurrent: bool,
    channels: int = 2 * DEFAULT_BINS,
    size: tuple[int, int] = IMAGENET_SIZE,
) -> Backbone:
    with torch.device("meta"):  # initialisation draws no numbers
        return build_backbone(name, recurrent, DEFAULT_BINS, size, channels)


def rewrite(contents: InspectedFile) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Rename all tensors to this harness's names.

    Returns:
        the tensors, and a recipe from which `tespec.load` builds the network.

    Raises:
        UserError: no architecture matches, or tensors are missing.
    """
    if contents.backbone is None:
        raise UserError(
            contents.path,
            "its first layer has the shape of no backbone here",
            "use a checkpoint in a format listed in docs/weights.md",
        )
    matched = contents.matches["recurrent" if contents.settings["recurrent"] else "feed-forward"]
    file_format = contents.converted.format
    remedy = f"the file is {file_format.title}; {contents.backbone} needs all its tensors"
    matched.require_complete(contents.path, remedy)
    source = {"file": contents.path.name, "format": file_format.name, "sha256": contents.sha256}
    recipe = (contents.recipe or {"source": source}) | contents.settings
    if contents.converted.repeated:
        recipe[REPEATED] = True
    if recipe.get(HISTOGRAMS):
        changed = {"bins": recipe["bins"], "size": recipe["sensor"]}
        recipe[HISTOGRAMS] = recipe[HISTOGRAMS] | changed
    return matched.tensors, recipe


def timm_state(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """State dict of the network of timm alone, in the naming of timm since 0.8.

    In some versions, timm's own filter treats any Swin without a classifier as one of the old
    naming.
    """
    state = {
        name.partition(".")[2]: tensor
        for name, tensor in tensors.items()
        if name.startswith(("swin.", "resnet.", "vit."))
    }
    if not state:
        raise UserError("--to timm", "timm has no such network", "leave it out")
    return state


def fetch(checkpoint: Path | None) -> Path | None:
    """Download pre-trained weights of timm into the cache on first use.

    Args:
        checkpoint: path of a weights file, or "timm:NAME".

    Returns:
        the path itself, or the cached file's.

    Raises:
        UserError: timm has no such weights, or they cannot be downloaded.
    """
    if checkpoint is None or not str(checkpoint).startswith(PREFIX):
        return checkpoint
    name = str(checkpoint).removeprefix(PREFIX)
    path = cache_root() / "weights" / f"{name.replace('/', '_')}.safetensors"
    if path.is_file():
        return path
    import timm

    where = f"--checkpoint {checkpoint}"
    if not timm.is_model_pretrained(name):
        raise UserError(
            where, "timm has no such weights", "choose NAME from timm.list_pretrained()"
        )
    try:
        network = timm.create_model(name, pretrained=True, num_classes=0)
    except Exception as error:  # exception types differ between versions of the hub's client
        what = f"cannot be fetched ({type(error).__name__})"
        raise UserError(where, what, "download the file elsewhere and give its path") from error
    write_weights(path, network.state_dict(), {})
    return path

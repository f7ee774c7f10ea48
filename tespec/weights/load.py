"""Load backbones from checkpoints completely or not at all; inspect, convert and fetch them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tespec.comparison.cell import OWN_WEIGHTS
from tespec.core.errors import UserError, require
from tespec.core.files import sha256_of
from tespec.core.paths import cache_root
from tespec.core.settings import Finetuning, HistogramSpec, Size, build
from tespec.models.backbone import Backbone, backbones, build_backbone
from tespec.models.layers import padded_size
from tespec.weights.files import problem_of, read_recipe, read_tensors, write_weights
from tespec.weights.formats import (
    HISTOGRAMS,
    REPEATED,
    Checkpoint,
    convert,
    original_format,
    read_checkpoint,
    recognise,
)
from tespec.weights.released import LSTMS, PARTS, SWIN, TESPEC

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
        """Say in one line which tensors the file fills, and how."""
        text = f"{self.loaded} of {self.total} tensors of the backbone"
        text += f", {len(self.adapted)} adapted" if self.adapted else ""
        text += f", stem {self.stem}" if self.stem else ""
        return text + (f"; {random_parts(self.random)}" if self.random else "")

    def facts(self) -> dict[str, Any]:
        """Facts about the weights for a record."""
        published = original_format(self.recipe, self.format)
        seen = dict(published.seen)
        cell = self.recipe.get("cell", {})
        # A teacher from a file has learned from images that no recipe names.
        is_own = cell.get("kind") == "pretraining" and cell.get("start") == OWN_WEIGHTS
        if is_own and (teacher := (self.recipe.get("objective") or {}).get("teacher")):
            seen["images"] = f"by its teacher, {teacher}"
        return {
            "source": self.source,
            "sha256": self.sha256,
            "coverage": self.coverage,
            "loaded": self.loaded,
            "format": self.format,
            "stem": self.stem,
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
    """Tensors matched to a network's names, and problems that prevent loading."""

    tensors: dict[str, Tensor]
    problems: tuple[str, ...]
    remedy: str
    report: WeightsReport  # without name and hash of the file

    def require_complete(self, where: object) -> None:
        """Raise `UserError` with the first mismatches if the checkpoint does not fill the network.

        Args:
            where: file that the error names.
        """
        more = f" (and {len(self.problems) - 3} more)" if len(self.problems) > 3 else ""
        require(not self.problems, where, ", ".join(self.problems[:3]) + more, self.remedy)


def match_state(checkpoint: Checkpoint, network: Backbone) -> MatchedState:
    """Match a checkpoint with a network; nothing is loaded.

    The first convolution is repeated over more input channels if the format allows it, or if it was
    trained on images here; otherwise channels and representation of the input must match. ConvLSTMs
    and necks stay randomly initialised if the file cannot hold any: its format has none, or its
    recipe says that it was trained feed-forward. A network without them ignores those of a file.
    All other tensors must match: leaving some out, such as the blocks of a deeper network, would
    change the function that the weights compute.

    Args:
        checkpoint: of any known format.
        network: target, which may be on the meta device.
    """
    recipe = checkpoint.recipe
    file_format = checkpoint.format
    source = dict(checkpoint.tensors)
    target = network.state_dict()
    lacks = {*file_format.lacks, *([LSTMS] if recipe.get("recurrent") is False else [])}
    lacks -= {part for part in PARTS if any(name.startswith(part) for name in source)}
    stem = network.stem
    stem_origin = "repeated" if recipe.get(REPEATED) else ""
    channels = input_channels(source.get(stem))
    if network.new_stem:
        require(
            stem in target,
            f"--new-stem, backbone {network.name}",
            "does not name its first convolution",
            "set `stem` in its class",
        )
        stem_origin = "new"
        lacks.add(stem.removesuffix("weight"))
    elif checkpoint.repeats and 0 < channels < network.in_channels:
        stem_origin = "repeated"
        # Not scaled down: the paper does not mention a scale (appendix C, "Recurrent Backbone").
        copies = -(-network.in_channels // channels)
        source[stem] = source[stem].repeat(1, copies, 1, 1)[:, : network.in_channels].contiguous()
    resized = network.resize(source, padded_size(*checkpoint.size))
    random = [name for name in target if name.startswith(tuple(lacks))]
    checked = {
        name: problem_of(resized.get(name), tensor)
        for name, tensor in target.items()
        if name not in random
    }
    if channels and not stem_origin:
        checked[stem] = _problem_of_input(checkpoint, channels, network) or checked[stem]
    matched = {name: resized[name] for name, problem in checked.items() if not problem}
    unused = sorted(source.keys() - target.keys())
    ignored = tuple(part for part in PARTS if not any(name.startswith(part) for name in target))
    problems = [
        *(f"{name} {problem}" for name, problem in checked.items() if problem),
        *(
            f"{name} has no counterpart in this model"
            for name in unused
            if not name.startswith(ignored)
        ),
    ]
    networks = [recipe["backbone"]] if "backbone" in recipe else file_format.networks
    remedy = (
        f"the file is {file_format.title}, for --backbone {' or '.join(networks) or 'any'}; give "
        f"weights of backbone {network.name!r}, recurrent={network.recurrent}, or --new-stem if "
        "only the input differs"
    )
    report = WeightsReport(
        source="",
        sha256="",
        loaded=len(matched),
        total=len(target),
        adapted=tuple(
            name
            for name, tensor in matched.items()
            if tensor is not checkpoint.tensors[name] or (name == stem and stem_origin)
        ),
        unused=(*unused, *checkpoint.unused),
        recipe=recipe,
        format=file_format.name,
        random=tuple(random),
        stem=stem_origin,
    )
    return MatchedState(matched, tuple(problems), remedy, report)


def _problem_of_input(checkpoint: Checkpoint, channels: int, network: Backbone) -> str:
    """Describe how channels or representation differ from the network's input; "" if they match."""
    trained = checkpoint.representation
    takes = network.representation or trained
    if checkpoint.repeats and trained == "histogram":  # images have no representation of events
        takes = trained
    if (channels, trained) == (network.in_channels, takes):
        return ""
    given = f"representation {trained}" if trained else "an input that no public code makes"
    needed = f"{network.in_channels} of representation {network.representation or 'any'}"
    described = checkpoint.format.input or "see its recipe"
    return f"takes {channels} channels of {given} ({described}), but this model {needed}"


def input_channels(kernel: Tensor | None) -> int:
    """Number of input channels of a convolution (out, in, h, w); 0 for anything else."""
    return kernel.shape[1] if kernel is not None and kernel.ndim == 4 else 0


def load_backbone(backbone: Backbone, path: Path) -> WeightsReport:
    """Load all tensors of a backbone in place from a file of any known format.

    Args:
        backbone: changed in place; see `match_state` for the tensors that stay random.
        path: file of weights.

    Raises:
        UserError: the file is unreadable, of an unknown format, or does not match; the backbone is
            then unchanged.
    """
    return _load(backbone, read_checkpoint(path), path)


def load_finetuned_backbone(backbone: Backbone, path: Path) -> WeightsReport:
    """Load the backbone of a fine-tuned network in place, for a positive control.

    Args:
        backbone: changed in place.
        path: model.safetensors of a run.

    Raises:
        UserError: the file holds no fine-tuned network, or another backbone.
    """
    tensors, recipe = read_tensors(path)
    require(
        RUN in recipe,
        path,
        "holds no network that this version fine-tuned",
        "give the model.safetensors of a run",
    )
    of_backbone = {
        name.removeprefix("backbone."): tensor
        for name, tensor in tensors.items()
        if name.startswith("backbone.")
    }
    facts = {name: value for name, value in recipe.items() if name != "kind"}
    facts |= {name: recipe[RUN].get(name) for name in ("cell", "seed")}
    facts["sensor"] = histograms_of(recipe, path).size
    return _load(backbone, convert(of_backbone, facts, path), path)


def _load(backbone: Backbone, checkpoint: Checkpoint, path: Path) -> WeightsReport:
    matched = match_state(checkpoint, backbone)
    matched.require_complete(path)
    backbone.load_state_dict(backbone.state_dict() | matched.tensors)
    return replace(matched.report, source=path.name, sha256=sha256_of(path))


def read_backbone(path: Path, size: Size | None = None) -> Backbone:
    """Build and load the backbone of a file, in evaluation mode.

    Args:
        path: file with a recipe, or a published one, which gets the input channels of `tespec
            weights convert`.
        size: (height, width) in px of its input; default: that of its training.

    Raises:
        UserError: the file is unreadable, of an unknown format, or incomplete.
    """
    contents = inspect(path, sensor=size)
    checkpoint = contents.checkpoint
    needed = ("backbone", "sensor", "recurrent", "bins") if checkpoint.format is TESPEC else ()
    missing = ", ".join(name for name in needed if name not in checkpoint.recipe)
    require(
        not missing,
        path,
        f"its recipe lacks {missing}",
        "convert it with `tespec weights convert`",
    )
    backbone = contents.network(contents.settings["recurrent"])
    backbone.expect(checkpoint.representation)
    _load(backbone, checkpoint, path)
    return backbone.eval()


def histograms_of(recipe: Mapping[str, Any], where: object) -> HistogramSpec:
    """Read from a recipe how events become the network's histograms.

    Args:
        recipe: recipe of a weights file.
        where: file that errors name.

    Raises:
        UserError: the recipe lacks these settings, or they are invalid.
    """
    require(
        recipe.get(HISTOGRAMS) is not None,
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
    if recipe.get("data") == "sample":
        return PretrainingData(str(recipe.get("dataset", "")), sample=True)
    if recipe:
        return PretrainingData(str(recipe.get("data") or original_format(recipe).data))
    _, file_format = recognise(read_tensors(path)[0])
    return PretrainingData(file_format.data if file_format else "")


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
    require(
        seen == (trained_on, settings.label_fraction, False),
        where,
        "its backbone was not trained on the labels of this run (it was frozen, or of other "
        "recordings or another label_fraction), so it is no positive control",
        "give the model.safetensors of a run on the same data without --freeze",
    )


class InspectedFile(NamedTuple):
    """A weights file, and the settings of the network that it holds."""

    path: Path
    checkpoint: Checkpoint
    settings: dict[str, Any]  # for a recipe: backbone, sensor, recurrent, bins, in_channels

    def network(self, recurrent: bool) -> Backbone:
        """Build the network, with or without ConvLSTMs, randomly initialised."""
        settings = self.settings
        return build_backbone(
            settings["backbone"],
            recurrent,
            settings["bins"],
            padded_size(*settings["sensor"]),
            settings["in_channels"],
        )

    def match(self, recurrent: bool) -> MatchedState:
        """Match the file with its network, with or without ConvLSTMs."""
        with torch.device("meta"):  # initialisation draws no numbers
            network = self.network(recurrent)
        return match_state(self.checkpoint, network)


def inspect(
    path: Path, bins: int | None = None, sensor: tuple[int, int] | None = None
) -> InspectedFile:
    """Read a weights file and find the network that it holds.

    Args:
        path: file of weights.
        bins: time bins of the network; default: the recipe's, else 10.
        sensor: (rows, columns) in px of its input; default: the recipe's, else the format's.

    Raises:
        UserError: the file is unreadable or of an unknown format.
    """
    checkpoint = read_checkpoint(path)
    recipe = checkpoint.recipe
    name = recipe.get("backbone") or _name_of(checkpoint)
    n_bins = bins or recipe.get("bins", DEFAULT_BINS)
    channels = 2 * n_bins if bins else recipe.get("in_channels") or 2 * n_bins
    if not bins and not recipe:
        of_file = input_channels(checkpoint.tensors.get(backbones()[name].stem))
        channels = max(channels, of_file) if checkpoint.repeats else of_file
        n_bins = max(1, channels // 2)
    settings = {
        "backbone": name,
        "sensor": list(sensor or checkpoint.size),
        "recurrent": recipe.get(
            "recurrent", any(name.startswith(LSTMS) for name in checkpoint.tensors)
        ),
        "bins": n_bins,
        "in_channels": channels,
    }
    return InspectedFile(path, checkpoint, settings)


def _name_of(checkpoint: Checkpoint) -> str:
    """Backbone of the format whose first convolution has this shape, but for channels."""
    for name in checkpoint.format.networks or backbones():
        stem = backbones()[name].stem
        if channels := input_channels(checkpoint.tensors.get(stem)):
            with torch.device("meta"):
                network = build_backbone(name, False, DEFAULT_BINS, (32, 32), channels)
            if network.state_dict()[stem].shape == checkpoint.tensors[stem].shape:
                return name
    return (checkpoint.format.networks or SWIN)[0]


def rewrite(contents: InspectedFile) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Rename all tensors to this harness's names.

    Returns:
        the tensors, and a recipe from which `tespec.load` builds the network.

    Raises:
        UserError: no architecture matches, or tensors are missing.
    """
    path, checkpoint, settings = contents
    matched = contents.match(settings["recurrent"])
    matched.require_complete(path)
    tensors = matched.tensors
    if settings["sensor"] == list(checkpoint.size):
        # Positions are resampled only when the file is loaded. Those of 14 px patches would be here
        # too, since inputs are padded to multiples of 32 px.
        positions = {*matched.report.adapted} - {backbones()[settings["backbone"]].stem}
        tensors |= {name: checkpoint.tensors[name] for name in positions}
    source = {"file": path.name, "format": checkpoint.format.name, "sha256": sha256_of(path)}
    recipe = (checkpoint.recipe or {"source": source}) | settings
    if matched.report.stem:
        recipe[REPEATED] = True
    if recipe.get(HISTOGRAMS):
        recipe[HISTOGRAMS] = recipe[HISTOGRAMS] | {"bins": recipe["bins"], "size": recipe["sensor"]}
    return tensors, recipe


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
    require(state, "--to timm", "timm has no such network", "leave it out")
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
    if not path.is_file():
        import timm

        where = f"--checkpoint {checkpoint}"
        require(
            timm.is_model_pretrained(name),
            where,
            "timm has no such weights",
            "choose NAME from timm.list_pretrained()",
        )
        try:
            network = timm.create_model(name, pretrained=True, num_classes=0)
        except Exception as error:  # exception types differ between versions of the hub's client
            raise UserError(
                where,
                f"cannot be fetched ({type(error).__name__})",
                "download the file elsewhere and give its path",
            ) from error
        write_weights(path, network.state_dict(), {})
    return path

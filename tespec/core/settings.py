"""Typed settings of fine-tuning and pre-training, and tools to merge and validate them."""

import difflib
import math
import re
import reprlib
import typing
from collections.abc import Iterable, Mapping
from dataclasses import asdict, field, is_dataclass, replace
from functools import reduce
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, StrictBool, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from tespec.core.errors import UserError, require
from tespec.core.renamed import present_names

T = TypeVar("T")
Facts = Mapping[str, Any]  # settings by name, nested
Layer = tuple[str, Facts]  # source and settings
Size = tuple[int, int]  # rows and columns in px

LARGEST = 1 << 14  # px; event coordinates have at most 14 bits
UNKNOWN = "unexpected_keyword_argument"  # pydantic's type of error


def is_size(size: Size) -> bool:
    """Whether `size` is a valid sensor size."""
    return all(1 <= side <= LARGEST for side in size)


def parse_size(text: str) -> Size:
    """Parse "WIDTHxHEIGHT", such as "640x480", into (height, width) in px."""
    sides = re.fullmatch(r"(\d{1,5})x(\d{1,5})", text)
    size = (int(sides[2]), int(sides[1])) if sides else (0, 0)
    remedy = f"give WIDTHxHEIGHT in px, at most {LARGEST}"
    require(is_size(size), f"--sensor {text}", "not a valid sensor size", remedy)
    return size


def merge(base: Facts, layer: Layer, *, strict: bool = True) -> dict[str, Any]:
    """Merge nested settings into a copy of others.

    Mappings with a `type` are replaced instead of merged, since another type may have other keys;
    so are splits, except by the user.

    Args:
        base: settings to start from.
        layer: source, for messages, and the settings that take precedence.
        strict: refuse keys that `base` lacks.

    Raises:
        UserError: `layer` has a key that `base` lacks; it suggests the key that was meant.

    >>> merge({"mask": {"unit": 32, "ratio": 0.5}}, ("mine.yaml", {"mask": {"ratio": 0.9}}))
    {'mask': {'unit': 32, 'ratio': 0.9}}
    """
    source, changes = layer
    merged = dict(base)
    for key, value in changes.items():
        if strict and key not in base:
            paths = [
                f"{name}.{key}"
                for name, group in base.items()
                if isinstance(group, Mapping) and key in group
            ]
            remedy = f"did you mean {paths[0]!r}?" if paths else suggest(key, base)
            if source.startswith(f"--set {key}=") and "backbone" in (key, *present_names(key)):
                remedy = "use --backbone NAME"
            raise UserError(source, f"unknown setting {key!r}", remedy)
        nested = isinstance(value, Mapping) and isinstance(base.get(key), Mapping)
        if nested and "type" not in value and (key != "splits" or source.startswith("--set")):
            value = merge(base[key], (source, value), strict=strict)
        merged[key] = value
    return merged


def suggest(name: str, known: Iterable[str]) -> str:
    """Write the remedy for an unknown name.

    Args:
        name: of a setting, config, method or the like.
        known: names that exist.

    Returns:
        The present name if `name` is an earlier one, else the closest known name, else all of them.
    """
    names = list(known)
    for present in present_names(name):
        if present in names:
            return f"it is called {present!r} now"
    close = difflib.get_close_matches(name, names, n=1)
    if close:
        return f"did you mean {close[0]!r}?"
    return f"choose from {', '.join(names[:20]) or 'none'}{', ...' * (len(names) > 20)}"


def build(kind: type[T], facts: Facts, source: str) -> T:
    """Build and validate a settings dataclass from nested mappings.

    Args:
        kind: dataclass of settings.
        facts: its values, nested as in YAML.
        source: origin of the values, for messages; or the name of their group, such as "head" of
            "head.channels".

    Raises:
        UserError: the first setting that is missing, unknown, of the wrong type or out of range.
    """
    try:
        return TypeAdapter(kind).validate_python(dict(facts), extra="forbid")
    except ValidationError as invalid:
        # An unknown name first: it may be why another one is missing.
        error = min(invalid.errors(include_url=False), key=lambda error: error["type"] != UNKNOWN)
        is_unknown = error["type"] == UNKNOWN
        *parents, last = error["loc"] or (0,)
        # Pydantic's path includes the members of unions, and a trailing list index, which helps
        # less than the value.
        steps = parents if is_unknown or isinstance(last, int) else [*parents, last]
        path = ".".join(str(step) for step in steps if isinstance(step, int) or step.isidentifier())
        where = source
        if path:
            where += f".{path}" if source.isidentifier() else f", {path}"
        if is_unknown:
            known = reduce(
                lambda names, step: names.get(step) or names, parents, known_settings(kind)
            )
            raise UserError(
                where, f"unknown setting {last!r}", suggest(str(last), known)
            ) from invalid
        if error["type"] == "missing" and isinstance(last, str):
            raise UserError(
                source, f"setting {path!r} is missing", "add it to the config"
            ) from invalid
        value = reprlib.repr(error["input"])
        raise UserError(where, f"{value} is not allowed", _remedy(error)) from invalid


def _remedy(error: Mapping[str, Any]) -> str:
    """Say what a value should be, from pydantic's description of the error."""
    if error["type"] in ("missing", "too_long"):
        return "it should be a list of two values"
    for present in present_names(str(error["input"])):
        if repr(present) in error["msg"]:
            return f"it is called {present!r} now"
    message = re.sub(r"^(Input|Tuple|List|Value) should", "it should", error["msg"])
    return re.sub(r" or an instance of \w+$", "", message)


def known_settings(kind: Any) -> Any:
    """Names of the settings of a dataclass or a list of them, nested as in YAML; else None."""
    entry, *_ = *typing.get_args(kind), kind
    if not is_dataclass(entry):
        return None
    return {name: known_settings(hint) for name, hint in typing.get_type_hints(entry).items()}


PositiveInt = Annotated[int, Field(strict=True, gt=0)]
NonNegativeFloat = Annotated[float, Field(ge=0, allow_inf_nan=False)]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(ge=0, le=1)]
PositiveFraction = Annotated[float, Field(gt=0, le=1)]
Factor = Annotated[float, Field(ge=1, allow_inf_nan=False)]
DropRate = Annotated[float, Field(ge=0, le=0.9)]  # the others are scaled by 1 / (1 - rate)
Momentum = Annotated[float, Field(ge=0, lt=1)]
Flag = StrictBool
# Generous upper limits: networks are built from the settings in weights files, which may be
# untrusted.
Width = Annotated[int, Field(strict=True, ge=1, le=4096)]
Depth = Annotated[int, Field(strict=True, ge=0, le=64)]
ARCHITECTURES = ("recurrent", "feedforward")
# Fraction of the lanes that sample random chunks, each with a reset state; the others stream
# recordings and carry state.
SAMPLING = {"stream": 0.0, "mixed": 0.5, "random": 1.0}
Sampling = Literal["stream", "mixed", "random"]
Rule = Literal["edges", "rvt"]
# of events as input of a network, see `tespec.events.representations`
Representation = Literal["histogram", "voxels", "ecdp", "mem", "gep", "ecddp"]
# Settings of the input that the backbones of published files were trained on; others take the
# task's histograms. Sources: `tespec.weights.released`.
INPUTS: Mapping[str, Facts] = {
    "vit_small_ecdp": {"representation": "ecdp", "last_events": 30_000},
    "vit_base_mem": {"representation": "mem", "last_events": 30_000},
    "vit_small_gep": {"representation": "gep", "window_ms": 50.0},
    "vit_base_gep": {"representation": "gep", "window_ms": 50.0},
    # main_finetune_semseg.py; on DDD17 its comments name 80,000
    "vit_small_eventpretrain": {"representation": "voxels", "bins": 5, "last_events": 200_000},
}


def input_settings(backbone: str) -> str:
    """Write the settings of a backbone's input as for --set, "" for the task's histograms."""
    return ", ".join(f"{key}={value}" for key, value in INPUTS.get(backbone, {}).items())


# px of a network's input; no sensor is larger
Side = Annotated[int, Field(strict=True, ge=1, le=2048)]


@dataclass(frozen=True)
class GradientClipping:
    """Gradient clipping to the limit `at`."""

    # of each value, of the norm of all parameters, or of the norm of each parameter
    by: Literal["value", "norm", "parameter", "none"]
    at: PositiveFloat | None

    def __post_init__(self) -> None:
        require(
            self.by == "none" or self.at is not None,
            "optimisation.clip.at",
            f"missing for clipping by {self.by}",
            "set it, or set by to none",
        )


@dataclass(frozen=True)
class Decay:
    """Weight decay with a cosine schedule from `start` to `end` over the training."""

    start: NonNegativeFloat
    end: NonNegativeFloat
    # Parameters without decay: one-dimensional ones and biases, all ("vectors") or all but those of
    # the patch embedding ("later_vectors"); the position tables listed by a backbone ("positions")
    exempt: tuple[Literal["vectors", "later_vectors", "positions"], ...]


@dataclass(frozen=True, kw_only=True)
class Optimisation:
    """Optimizer and schedule, from peak_lr / start_divisor to peak_lr to peak_lr / end_divisor."""

    peak_lr: PositiveFloat
    steps: PositiveInt
    optimizer: Literal["Adam", "AdamW"] = "AdamW"
    betas: tuple[Momentum, Momentum] = (0.9, 0.999)  # of Adam
    # of the learning rate; see `tespec.training.optimizer.learning_rate`
    schedule: Literal[
        "linear",
        "exponential",
        "cosine",
        "cosine_dino",
        "cosine_moco",
        "cosine_swin",
        "cosine_moby",
    ] = "cosine"
    start_divisor: PositiveFloat = 25.0  # c1 in the paper
    end_divisor: PositiveFloat = 1000.0  # c2 in the paper
    warmup_steps: Annotated[int, Field(strict=True, ge=0)] = 0
    clip: GradientClipping = GradientClipping("none", None)
    weight_decay: Decay = Decay(0.0, 0.0, ())
    patch_embed_lr: PositiveFloat = 1.0  # factor of the learning rate of the patch embedding
    # RVT: fp16; the paper does not specify it
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"


@dataclass(frozen=True, kw_only=True)
class TaskOptimisation(Optimisation):
    """`Optimisation` with the defaults of fine-tuning, without weight decay as in RVT."""

    # RVT: AdamW without weight decay, which is the same update
    optimizer: Literal["Adam", "AdamW"] = "Adam"
    clip: GradientClipping = GradientClipping(
        "value", 1.0
    )  # as in RVT; the paper does not specify it


@dataclass(frozen=True)
class Augmentation:
    """Probabilities and magnitudes of flip and zoom, sampled once per pass over a recording."""

    flip: Fraction = 0.0
    zoom: Fraction = 0.0
    zoom_in_fraction: Fraction = 0.8  # of the zooms; the others zoom out
    zoom_in: tuple[Factor, Factor] = (1.0, 1.5)
    zoom_out: tuple[Factor, Factor] = (1.0, 1.2)

    def __post_init__(self) -> None:
        for name, (low, high) in (("zoom_in", self.zoom_in), ("zoom_out", self.zoom_out)):
            require(low <= high, f"augmentation.{name}", f"{low:g} is above {high:g}", "swap them")


@dataclass(frozen=True)
class Binning:
    """How a window's events become the input of a network, (channels, H, W).

    A histogram has 2*bins channels, see `tespec.events.event_histogram`; for the others see
    `tespec.events.representations`.
    """

    bins: PositiveInt
    # "edges" divides the window; "rvt" the time from its first to its last event, as RVT's archives
    rule: Rule
    representation: Representation = "histogram"
    # number of events before the end of a window that are used, also from before its start; None:
    # the events of the window
    last_events: PositiveInt | None = None

    @property
    def channels(self) -> int:
        """Number of channels of the input."""
        others = {"voxels": self.bins, "ecdp": 2, "mem": 3, "gep": 3}
        return others.get(self.representation, 2 * self.bins)

    @property
    def dtype(self) -> str:
        """Type of the input on the CPU, for numpy."""
        return "uint8" if self.representation == "histogram" else "float32"

    def describe(self) -> str:
        """Describe the input for records."""
        if self.representation == "histogram":
            return f"{self.bins} bins, rule {self.rule}"
        events = f"the last {self.last_events:,} events" if self.last_events else "each window"
        return f"{self.channels} channels, representation {self.representation} of {events}"


@dataclass(frozen=True)
class Downsample:
    """Spatial downsampling of events."""

    factor: PositiveInt | Literal["auto"]  # auto: reduces the width to at most `to_width` px
    keep: Literal["nearest", "all"]  # see `tespec.events.histogram.Region`
    to_width: PositiveInt | None = None

    def __post_init__(self) -> None:
        require(
            (self.factor == "auto") == (self.to_width is not None),
            "downsample.to_width",
            f"is {self.to_width or 'missing'}, but downsample.factor is {self.factor}",
            "give a width with factor auto, and null with a number",
        )


@dataclass(frozen=True, kw_only=True)
class Profile:
    """Changes of a profile to task configs and recipes."""

    name: str
    base: str = ""  # profile that it extends
    backbones: dict[str, str] = field(default_factory=dict)  # architectures by kind of network
    threads: PositiveInt | None = None
    finetuning: dict[str, Any] = field(default_factory=dict)  # of all tasks
    # of single ones, and of tasks based on them
    tasks: dict[str, dict[str, Any]] = field(default_factory=dict)
    pretraining: dict[str, Any] = field(default_factory=dict)  # of all methods
    methods: dict[str, dict[str, Any]] = field(default_factory=dict)  # of single ones


@dataclass(frozen=True, kw_only=True)
class RecordingSettings:
    """Settings of every run that learns from recordings."""

    dataset: Annotated[str, Field(pattern=r"^[^/\x00-\x1f]+$")]  # part of file names
    batch_size: PositiveInt
    optimisation: Optimisation
    sampling: Sampling
    bins: PositiveInt = 10
    rule: Rule = "edges"  # bins divide the window (Eq. 3); rvt: bins as in RVT's archives
    downsample: Downsample = Downsample(1, "nearest")
    # of stochastic depth; RVT has none (maxvit_yolox/default.yaml), the paper is silent
    drop_path: DropRate = 0.0
    augmentation: Augmentation = Augmentation()
    profile: str = "paper"
    backbone: str = ""
    deviations: tuple[str, ...] = ()  # in words; in a recipe those that no setting expresses
    sensor_px: str | None = None  # such as "640x480", for recordings that do not store it

    def check(self) -> None:
        steps = self.optimisation.steps
        warmup = self.optimisation.warmup_steps
        require(
            warmup < steps,
            "optimisation.warmup_steps",
            f"{warmup} is not less than optimisation.steps, which is {steps}",
            f"set it below {steps} as well",
        )
        require(
            self.sampling != "mixed" or self.batch_size > 1,
            "sampling",
            "'mixed' needs at least two lanes, but batch_size is 1",
            "increase batch_size, or choose stream or random",
        )

    @property
    def binning(self) -> Binning:
        """How the events of a window become a histogram."""
        return Binning(self.bins, self.rule)

    @property
    def sensor(self) -> Size | None:
        """Sensor size (height, width) in px by `sensor_px`, or None."""
        return parse_size(self.sensor_px) if self.sensor_px else None


@dataclass(frozen=True, kw_only=True)
class Finetuning(RecordingSettings):
    """Settings of one cell of the tables: a task, an architecture and a profile."""

    task: str = ""
    version: PositiveInt
    kind: str
    title: str
    # None: the recordings listed by the data set's class
    splits: dict[str, tuple[str, ...] | None] = field(
        default_factory=lambda: dict.fromkeys(("train", "val", "test"))
    )
    classes: tuple[str, ...]
    protocol: dict[str, Any] = field(default_factory=dict)
    head: dict[str, Any] = field(default_factory=dict)
    optimisation: TaskOptimisation
    segments: PositiveInt
    window_ms: PositiveFloat | None
    # RVT's mixed sampling (data/genx_utils, modules/detection.py). The paper uses RVT's data
    # loading for pre-training and detection; it does not specify the sampling of the other tasks.
    sampling: Sampling = "mixed"
    # labelled segments per lane and step that reach the head; None: all
    labels_per_chunk: PositiveInt | None = None
    # recordings evaluated in parallel; affects speed and memory, not predictions
    evaluation_lanes: PositiveInt = 1
    # "flip": average the logits with those of the mirrored image; "ecddp": also at scales 1.5 and
    # 2, as for ECDDP's published numbers. The paper uses none.
    test_time_augmentation: str = "none"
    # peak_lr by data set of the pre-training
    peak_lr_after: dict[str, PositiveFloat] = field(default_factory=dict)
    arch: str = ""
    frozen: Flag = False  # whether only the head is trained
    # fraction of the training labels, spread evenly over recordings and time
    label_fraction: PositiveFraction = 1.0
    representation: Representation = "histogram"  # of events as input, see `Binning`
    last_events: PositiveInt | None = None
    # whether the first convolution stays randomly initialised, so that pre-trained weights with
    # another input can be fine-tuned
    new_stem: Flag = False

    def check(self) -> None:
        super().check()
        require(
            not self.last_events or self.representation != "histogram",
            "last_events",
            "is set, but histograms divide the time of a window",
            "choose another representation, or set it to null",
        )
        require(
            not (self.new_stem and self.frozen),
            "new_stem",
            "leaves the first convolution random, but only the head is trained",
            "leave out --freeze or --new-stem",
        )
        require(
            self.recurrent or self.sampling == "random",
            "sampling",
            f"{self.sampling!r} carries a state, but feed-forward networks have none",
            "set it to random",
        )
        require(
            self.recurrent or self.window_ms is not None,
            "window_ms",
            "is null, but windows of feed-forward networks need a length",
            "set it in ms",
        )

    @property
    def binning(self) -> Binning:
        """How the events of a window become the network's input."""
        return Binning(self.bins, self.rule, self.representation, self.last_events)

    def after_pretraining_on(self, data: str) -> "Finetuning":
        """Return the settings for a backbone pre-trained on the data set `data`, in any case."""
        peaks = {name.casefold(): peak for name, peak in self.peak_lr_after.items()}
        peak = peaks.get(data.casefold(), self.optimisation.peak_lr)
        return replace(self, optimisation=replace(self.optimisation, peak_lr=peak))

    @property
    def recurrent(self) -> bool:
        """Whether the backbone has ConvLSTMs."""
        return self.arch == "recurrent"

    @property
    def eval_lanes(self) -> int:
        """Number of lanes of an evaluation: recordings with their state, or segments of windows."""
        return self.batch_size if self.sampling == "random" else self.evaluation_lanes

    @property
    def max_labels(self) -> int:
        """Maximum number of labels of a chunk that reach the head, spaced by `period_ms`."""
        most = min(self.labels_per_chunk or self.segments, self.segments)
        period = self.protocol.get("period_ms")
        if period and self.window_ms:
            most = min(most, math.ceil(self.segments * self.window_ms / period))
        return most


@dataclass(frozen=True)
class Mask:
    """Tube masking."""

    unit: Literal[4, 8, 16, 32]  # side of a patch in px, a multiple of a Swin's token size
    ratio: Fraction  # fraction of the patches that are masked


@dataclass(frozen=True, kw_only=True)
class Pretraining(RecordingSettings):
    """Settings of one pre-training; a method's recipe holds its published settings."""

    # Settings of the loss: in a recipe an instance of the method's dataclass, elsewhere a mapping
    # whose "type" is the method whose loss is trained.
    objective: Any
    name: str = ""  # of the method that the recipe belongs to
    recurrent: Flag = False  # whether the backbone has ConvLSTMs
    window_ms: PositiveFloat = 50.0  # length of a time window
    segments: PositiveInt = 1  # number of windows per chunk
    sampling: Sampling = "random"

    @property
    def arch(self) -> str:
        """Architecture in records, "recurrent" or "feedforward"."""
        return "recurrent" if self.recurrent else "feedforward"


@dataclass(frozen=True, kw_only=True)
class HistogramSpec(Binning):
    """How events become the input of a network, and how far back its state remembers.

    It is built once from the settings of a training, stored in the recipe of the weights, and used
    wherever the network plays a recording.
    """

    # Length of a window. For windows from label to label, the median one of the training, for
    # recordings without labels
    window_ms: PositiveFloat
    downsample: Downsample
    size: tuple[Side, Side]  # (H, W) in px of the training's histograms
    segments: PositiveInt  # number of windows that the network takes at once
    # True: the state is reset for each predicted window, at the start of the `segments` windows
    # that end with it.
    # False: it is carried from the start of the recording, which training only on random chunks
    # does not teach.
    reset: Flag

    @classmethod
    def from_settings(
        cls, settings: Finetuning | Pretraining, size: Size, window_ms: float
    ) -> "HistogramSpec":
        """Build the specification of a training.

        Args:
            settings: of the training.
            size: (H, W) in px of its histograms.
            window_ms: length of its windows, nominal if the settings have none.
        """
        return cls(
            **asdict(settings.binning),
            window_ms=window_ms,
            downsample=settings.downsample,
            size=size,
            segments=settings.segments if settings.recurrent else 1,
            reset=settings.sampling == "random",
        )

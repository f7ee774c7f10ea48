"""What a run is made of: the typed settings of a fine-tuning cell and of a pre-training."""

from __future__ import annotations

import dataclasses
import difflib
import math
import re
import sys
import typing
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from tespec.core.errors import UserError

Size = tuple[int, int]  # rows and columns in px

LARGEST = 1 << 14  # px; coordinates of events have at most 14 bits


def is_size(size: Size) -> bool:
    """Whether a sensor can have this size."""
    return all(1 <= side <= LARGEST for side in size)


def parse_size(text: str) -> Size:
    """(height, width) in px of a text such as "640x480", which names columns and then rows.

    Raises:
        UserError: it is no size of a sensor.
    """
    sides = re.fullmatch(r"(\d{1,5})x(\d{1,5})", text)
    size = (int(sides[2]), int(sides[1])) if sides else (0, 0)
    if not is_size(size):
        raise UserError(f"--sensor {text}", "no size of a sensor", f"give WIDTHxHEIGHT in px, {LARGEST} at most")
    return size


T = TypeVar("T")


def merge(
    base: Mapping[str, Any], changes: Mapping[str, Any], source: str, replaced: Sequence[str] = ()
) -> dict[str, Any]:
    """Copy of `base` with nested `changes`; a key that `base` lacks is refused.

    A mapping that names a `type` is replaced whole, since another type need not have the same keys; so are those that
    `replaced` names.
    """
    if not isinstance(base, Mapping) or not isinstance(changes, Mapping):
        raise UserError(source, "holds no settings by name", "write nested keys")
    merged = dict(base)
    for key, value in changes.items():
        if key not in base:
            raise UserError(source, f"unknown setting {key!r}", _suggest(key, base))
        whole = key in replaced or (isinstance(value, Mapping) and "type" in value)
        if isinstance(value, Mapping) and isinstance(base[key], Mapping) and not whole:
            merged[key] = merge(base[key], value, source)
        else:
            merged[key] = value
    return merged


def _suggest(key: str, known: Mapping[str, Any]) -> str:
    close = difflib.get_close_matches(key, list(known), n=1)
    return f"did you mean {close[0]!r}?" if close else f"choose from {', '.join(known)}"


def build(kind: type[T], facts: Mapping[str, Any], source: str) -> T:
    """Dataclass `kind` from nested mappings; missing, unknown and ill-typed values are refused."""
    hints = typing.get_type_hints(kind)
    fields = {field.name: field for field in dataclasses.fields(kind)}  # type: ignore[arg-type]  # T is a dataclass
    for key in facts:
        if key not in fields:
            raise UserError(source, f"unknown setting {key!r}", _suggest(key, fields))
    values: dict[str, Any] = {}
    for name, field in fields.items():
        if name in facts:
            values[name] = _convert(hints[name], facts[name], f"{source}, {name}")
        elif field.default is dataclasses.MISSING:
            raise UserError(source, f"setting {name!r} is missing", "add it to the config")
    return kind(**values)


def _convert(hint: Any, value: Any, source: str) -> Any:
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if dataclasses.is_dataclass(hint):
        if not isinstance(value, Mapping):
            raise UserError(source, f"{value!r} is not a group of settings", "write nested keys")
        return build(typing.cast("type[Any]", hint), value, source)
    if origin is tuple:
        if not isinstance(value, (list, tuple)) or (Ellipsis not in inner and len(value) != len(inner)):
            raise UserError(source, f"{value!r} is not a list of the right length", "write [a, b]")
        return tuple(_convert(inner[0], item, source) for item in value)
    if origin is dict:
        if not isinstance(value, Mapping):
            raise UserError(source, f"{value!r} is not a mapping", "write nested keys")
        return {str(key): _convert(inner[1], item, source) for key, item in value.items()}
    if hint is Any:
        return value
    accepted = inner or (hint,)
    if float in accepted and type(value) is int:
        value = _as_float(value, source)
    if float in accepted and isinstance(value, str) and str not in accepted:
        with suppress(ValueError):  # YAML 1.1 takes 1e-3 for a text
            value = float(value)
    if isinstance(value, bool) and bool in accepted:
        return value
    if isinstance(value, bool):
        raise UserError(source, f"{value!r} has the wrong type", f"expected {getattr(hint, '__name__', hint)}")
    if not isinstance(value, accepted):
        raise UserError(source, f"{value!r} has the wrong type", f"expected {getattr(hint, '__name__', hint)}")
    if isinstance(value, int) and value < 1 and not source.endswith("warmup_steps"):
        raise UserError(source, f"{value} is too small", "give 1 or more")
    return value


def _as_float(value: int, source: str) -> float:
    try:
        return float(value)
    except OverflowError as error:
        raise UserError(source, f"{str(value)[:20]}... is larger than any float", "give a smaller number") from error


ARCHITECTURES = ("recurrent", "feedforward")
# Share of the lanes that play random clips, each with a fresh state; the others play streams, whose state is carried.
SAMPLING = {"streams": 0.0, "mixed": 0.5, "clips": 1.0}


@dataclass(frozen=True)
class Clip:
    """How large gradients may be: each of their numbers ("value"), all of them as one vector ("norm"), or any ("none").

    Raises:
        UserError: a limit is missing.
    """

    by: str
    at: float | None

    def __post_init__(self) -> None:
        if self.by != "none" and self.at is None:
            raise UserError("optimisation.clip.at", f"no limit to clip by {self.by} at", "give one, or set by to none")


@dataclass(frozen=True)
class Decay:
    """Weight decay, which goes from `start` to `end` by half a cosine over the training.

    `exempt` names the parameters that have none: "vectors", those of one dimension and biases, and "positions", the
    tables of positions that a backbone names.
    """

    start: float
    end: float
    exempt: tuple[str, ...]


@dataclass(frozen=True)
class Optimisation:
    """How weights are updated; learning rates start at peak/start_divisor and end at peak/end_divisor.

    `patch_embed_lr` is the share of the learning rate that the patch embedding gets.
    `non_finite` says what is done about a step whose loss or gradients are not finite: "stop" or "skip".
    """

    optimizer: str
    peak_lr: float
    schedule: str
    start_divisor: float
    end_divisor: float
    steps: int
    warmup_steps: int
    clip: Clip
    weight_decay: Decay
    patch_embed_lr: float
    precision: str
    non_finite: str


@dataclass(frozen=True)
class Augmentation:
    """Probabilities and magnitudes of flip and zoom; drawn once per recording pass."""

    flip: float
    zoom: float
    zoom_in_share: float
    zoom_in: tuple[float, float]
    zoom_out: tuple[float, float]


@dataclass(frozen=True)
class Downsample:
    """Spatial reduction of event coordinates; `factor` "auto" reduces to at most `to_width` px."""

    factor: int | str
    keep: str
    to_width: int | None = None


@dataclass(frozen=True)
class Finetuning:
    """One cell of the tables: a task's settings for one architecture under one profile; windows in ms.

    `sampling` is one of `SAMPLING`; networks that are trained on clips alone are evaluated on clips. `drop_path` is the
    rate of stochastic depth in the last block.
    `peak_lr_after` holds the peak learning rates of backbones that were pre-trained on the data it names, `sensor_px`
    the size of the sensor, as "640x480", for recordings that do not name it.
    """

    task: str
    version: int
    kind: str
    title: str
    dataset: str
    splits: dict[str, tuple[str, ...]]
    classes: tuple[str, ...]
    protocol: dict[str, Any]
    downsample: Downsample
    bins: int
    rule: str
    head: dict[str, Any]
    optimisation: Optimisation
    augmentation: Augmentation
    batch_size: int
    segments: int
    window_ms: float | None
    sampling: str
    drop_path: float
    labels_per_chunk: int | None
    evaluation_lanes: int
    test_time_augmentation: str
    peak_lr_after: dict[str, float]
    arch: str
    profile: str
    width: str
    deviations: tuple[str, ...]
    sensor_px: str | None = None

    @property
    def sensor(self) -> Size | None:
        """See `Pretraining`."""
        return parse_size(self.sensor_px) if self.sensor_px else None

    def after_pretraining_on(self, data: str) -> Finetuning:
        """The settings of a backbone that was pre-trained on the data set `data`, in whatever case it is written."""
        peaks = {name.casefold(): peak for name, peak in self.peak_lr_after.items()}
        peak = peaks.get(data.casefold(), self.optimisation.peak_lr)
        return replace(self, optimisation=replace(self.optimisation, peak_lr=peak))

    @property
    def recurrent(self) -> bool:
        """Whether the backbone has ConvLSTMs."""
        return self.arch == "recurrent"

    @property
    def carries_state(self) -> bool:
        """Whether recordings are evaluated with the state carried through them, which clips alone do not teach."""
        return self.recurrent and self.sampling != "clips"

    @property
    def random_share(self) -> float:
        """Share of the lanes that play random clips."""
        return SAMPLING[self.sampling]


@dataclass(frozen=True)
class Mask:
    """Tube masking: side of a patch in px and share of patches hidden."""

    unit: int
    ratio: float


@dataclass(frozen=True)
class Target:
    """What is rebuilt: "intensity" (Eq. 7), "high_pass" (Eq. 6), "uniform_decay" or "histograms".

    alpha in 1/s, N in events, C in log intensity.
    """

    kind: str
    alpha: float
    norm_events: float
    contrast: float


@dataclass(frozen=True)
class Pretraining:
    """One pre-training recipe under one profile; windows in ms; `drop_path` as in `Finetuning`.

    `objective` holds the name of what is learned and its own settings, which each objective knows; `sensor_px` the size
    of the sensor, as "640x480", for recordings that do not name it.
    """

    name: str
    version: int
    objective: dict[str, Any]
    dataset: str
    recurrent: bool
    bins: int
    rule: str
    window_ms: float
    segments: int
    batch_size: int
    downsample: Downsample
    sampling: str
    drop_path: float
    optimisation: Optimisation
    augmentation: Augmentation
    profile: str
    width: str
    deviations: tuple[str, ...]
    sensor_px: str | None = None

    @property
    def sensor(self) -> Size | None:
        """(height, width) in px of the sensor of recordings that do not name it, where the user gives it.

        Raises:
            UserError: `sensor_px` is no size.
        """
        return parse_size(self.sensor_px) if self.sensor_px else None

    @property
    def arch(self) -> str:
        """What the backbone is called in records."""
        return "recurrent" if self.recurrent else "feedforward"

    @property
    def random_share(self) -> float:
        """Share of the lanes that play random clips."""
        return SAMPLING[self.sampling]


ABOVE_ZERO, FROM_ZERO, SHARE, FACTOR = (
    (0.0, False, math.inf),
    (0.0, True, math.inf),
    (0.0, True, 1.0),
    (1.0, True, math.inf),
)

# A block that is always dropped has no scale.
RATE = (0.0, True, 0.9)

# Far beyond any head there is: a network is built from what a file from somebody else says.
WIDTH, DEPTH = (1.0, True, 4096.0), (0.0, True, 64.0)

# Setting: lowest value, whether it is allowed itself, and highest value.
RANGES = {
    "augmentation.flip": SHARE,
    "augmentation.zoom": SHARE,
    "augmentation.zoom_in": FACTOR,
    "augmentation.zoom_in_share": SHARE,
    "augmentation.zoom_out": FACTOR,
    "drop_path": RATE,
    "head.alpha": ABOVE_ZERO,
    "head.channels": WIDTH,
    "head.dropout": SHARE,
    "head.gradient_weight": FROM_ZERO,
    "head.max_depth": ABOVE_ZERO,
    "head.min_depth": ABOVE_ZERO,
    "head.min_diagonal": FROM_ZERO,
    "head.min_side": FROM_ZERO,
    "head.neck_blocks": DEPTH,
    "head.score_threshold": SHARE,
    "head.si_lambda": SHARE,
    "head.si_weight": FROM_ZERO,
    "head.skip_ms": FROM_ZERO,
    "objective.mask.ratio": SHARE,
    "objective.patch_eps": FROM_ZERO,
    "objective.target.alpha": FROM_ZERO,
    "objective.target.contrast": ABOVE_ZERO,
    "objective.target.norm_events": ABOVE_ZERO,
    "objective.visible_weight": FROM_ZERO,
    "optimisation.clip.at": ABOVE_ZERO,
    "optimisation.end_divisor": ABOVE_ZERO,
    "optimisation.patch_embed_lr": ABOVE_ZERO,
    "optimisation.peak_lr": ABOVE_ZERO,
    "optimisation.start_divisor": ABOVE_ZERO,
    "optimisation.warmup_steps": FROM_ZERO,
    "optimisation.weight_decay.end": FROM_ZERO,
    "optimisation.weight_decay.start": FROM_ZERO,
    "protocol.max_width_share": SHARE,
    "protocol.min_diagonal": FROM_ZERO,
    "protocol.min_side": FROM_ZERO,
    "protocol.period_ms": ABOVE_ZERO,
    "window_ms": ABOVE_ZERO,
}
CHOICES = {
    "downsample.keep": ("nearest", "all"),
    "optimisation.clip.by": ("value", "norm", "none"),
    "optimisation.non_finite": ("stop", "skip"),
    "optimisation.optimizer": ("Adam", "AdamW"),
    "optimisation.precision": ("auto", "fp32", "bf16", "fp16"),
    "optimisation.schedule": ("linear", "cosine"),
    "optimisation.weight_decay.exempt": ("vectors", "positions"),
    "rule": ("edges", "rvt"),
    "sampling": tuple(SAMPLING),
}


def check_limits(facts: Mapping[str, Any], prefix: str = "") -> None:
    """Refuse nested settings that are out of range or not among the choices.

    Raises:
        UserError: names the setting, its value and what it may be.
    """
    for key, value in facts.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            check_limits(value, f"{name}.")
        elif name in CHOICES:
            for each in value if isinstance(value, list) else [value]:
                if each not in CHOICES[name]:
                    raise UserError(name, f"unknown value {each!r}", f"choose from {', '.join(CHOICES[name])}")
        elif name in RANGES and value is not None:
            for number in value if isinstance(value, list) else [value]:
                _check_range(name, number)


def require_warmup(settings: Optimisation) -> None:
    """Refuse a warm-up that leaves no step after it.

    Raises:
        UserError: it does.
    """
    steps, warmup = settings.steps, settings.warmup_steps
    if warmup and warmup >= steps:
        what = f"{warmup} steps of warm-up leave none of the {steps} of optimisation.steps"
        raise UserError("optimisation.warmup_steps", what, f"set it below {steps} as well")


def _check_range(name: str, number: Any) -> None:
    if isinstance(number, bool) or not isinstance(number, int | float):
        raise UserError(name, f"{number!r} is no number", "give a number")
    lowest, included, highest = RANGES[name]
    inside = lowest <= number <= highest and (included or number != lowest)
    # A whole number may be larger than any float.
    if not inside or not -sys.float_info.max <= number <= sys.float_info.max:
        start = f"from {lowest:g}" if included else f"above {lowest:g}"
        end = "" if math.isinf(highest) else f" to {highest:g}"
        shown = f"{number:g}" if isinstance(number, float) else str(number)[:20]
        raise UserError(name, f"{shown} is out of range", f"give a number {start}{end}")

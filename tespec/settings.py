"""What a run is made of: the typed settings of a fine-tuning cell and of a pre-training."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from tespec.errors import UserError
from tespec.sensor import Size, parse_size

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

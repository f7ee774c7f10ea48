"""What a training would take of a GPU, before it runs: counted on the `meta` device at its full size, on any machine.

Time is what has to be computed, at a share of a GPU's peak that one has to assume; memory is counted. Neither reading
the data nor the evaluation is part of the hours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import tespec.core.compat  # noqa: F401  # before timm

from tespec.comparison.identity import canonical
from tespec.core.config import as_facts, evaluated_of, sensor_of
from tespec.core.errors import UserError, one_line
from tespec.core.files import UNREADABLE, read_yaml
from tespec.core.paths import CONFIGS
from tespec.core.settings import Finetuning, Pretraining, Size, suggest
from tespec.datasets.recording import reduced
from tespec.models.backbone import Backbone
from tespec.models.execution import Execution, execute, has_batch_norm
from tespec.pretraining.objective import ImageObjective, PretrainingTask, build_objective
from tespec.runs.meta import META, StepCount, count_step, counting_evaluation
from tespec.tasks import find_task
from tespec.tasks.base import fresh_backbone
from tespec.tasks.network import pick
from tespec.training.loading import Batch
from tespec.training.phases import begin, phases_of

# Settings that change neither the network nor the size of a batch.
DECIDE_NO_COST = frozenset(
    {
        *("task", "name", "version", "title", "profile", "deviations"),
        *("splits", "rule", "augmentation", "optimisation", "peak_lr_after"),
    }
)
SHARE = 0.35  # of a GPU's peak that trainings reach, where nothing was measured
GPUS = CONFIGS / "gpus.yaml"
USUAL = "h100"  # where one GPU has to stand for all
BYTES = 4  # of a float32


@dataclass(frozen=True)
class Gpu:
    """A GPU as `configs/gpus.yaml` describes it.

    Attributes:
        name: what `--gpu` calls it.
        title: what people call it.
        memory: bytes.
        tflops: peak of dense matrix products, by "bf16", "tf32" and "fp32".
        source: of the figures.
    """

    name: str
    title: str
    memory: float
    tflops: Mapping[str, float]
    source: str

    def peak(self, half: bool) -> float:
        """Operations a second of dense products in bf16, else of those of fp32 in TF32."""
        return self.tflops["bf16" if half else "tf32"] * 1e12


def gpus() -> dict[str, Gpu]:
    """All known GPUs by name.

    Raises:
        UserError: their file does not hold what it should.
    """
    try:
        return {
            str(name): Gpu(
                str(name),
                str(facts["title"]),
                1e9 * float(facts["memory_gb"]),
                {kind: float(facts["tflops"][kind]) for kind in ("bf16", "tf32", "fp32")},
                str(facts["source"]),
            )
            for name, facts in read_yaml(GPUS).items()
        }
    except (*UNREADABLE, KeyError, TypeError, AttributeError) as error:
        raise UserError(GPUS, f"does not describe GPUs ({error!r})", "restore it") from error


def find_gpu(name: str) -> Gpu:
    """The GPU of that name.

    Raises:
        UserError: none is called so.
    """
    known = gpus()
    if name not in known:
        raise UserError(f"--gpu {name}", "unknown GPU", suggest(name, known))
    return known[name]


@dataclass(frozen=True)
class Way:
    """How a training is spread over GPUs, and what it does to need less memory.

    Attributes:
        gpus: number of them, one process on each.
        accumulate: gradient accumulation steps.
        recompute: activation checkpointing.
        half: bf16 autocast, else fp32.
        fused: fused attention, where the backbone has attention; on a GPU it is the default.
    """

    gpus: int = 1
    accumulate: int = 1
    recompute: bool = False
    half: bool = True
    fused: bool = True

    @property
    def switches(self) -> str:
        """The options that stand for it, "" for none."""
        recompute = ["--recompute"] if self.recompute else []
        return " ".join([*recompute, *([f"--accumulate {self.accumulate}"] if self.accumulate > 1 else [])])


@dataclass(frozen=True)
class Cost:
    """What a training takes of each GPU.

    Attributes:
        flops: floating-point operations of an optimizer step; a multiplication and its addition are two. Where phases
            differ, those of the mean step.
        kept: bytes that a forward pass keeps for its backward pass, without weights.
        fixed: bytes of weights, gradients and optimizer.
        training: most bytes in use at once in a step.
        evaluation: most bytes in use at once in the evaluation, or on data held out.
        checkpoint: bytes of one checkpoint, all GPUs together.
        steps: number of optimizer steps.
        way: what the figures are for.
    """

    flops: int
    kept: int
    fixed: int
    training: int
    evaluation: int
    checkpoint: int
    steps: int
    way: Way

    @property
    def memory(self) -> int:
        """Most bytes in use at once."""
        return max(self.training, self.evaluation)

    def hours(self, gpu: Gpu, share: float = SHARE) -> float:
        """Length of the training on such GPUs, at a share of their peak; products in fp32 are TF32's."""
        return self.steps * self.flops / (gpu.peak(self.way.half) * share) / 3600

    def fits(self, gpu: Gpu) -> bool:
        """Whether the GPU's memory holds it."""
        return self.memory <= gpu.memory


class Played(NamedTuple):
    """What an evaluation computes: the most bytes in use at once, and operations for each window and each label."""

    peak: int
    per_window: float = 0.0
    per_label: float = 0.0


class Evaluated(NamedTuple):
    """What an evaluation plays: windows and, among them, labels; and where these numbers are from, in words."""

    windows: int
    labels: int
    source: str


@dataclass
class Blueprint:
    """A training on the `meta` device.

    Attributes:
        settings: of the cell or the pre-training.
        model: its network.
        size: (H, W) in px of what the backbone sees.
        batch: a batch of so many lanes, without content.
        play: counts its evaluation.
    """

    settings: Finetuning | Pretraining
    model: Any
    size: Size
    batch: Callable[[int], Batch]
    play: Callable[[], Played]
    _counts: dict[tuple[int, Way], StepCount] = field(default_factory=dict)
    _played: dict[bool, Played] = field(default_factory=dict)

    @property
    def parameters(self) -> dict[str, int]:
        """Number of parameters by part of the network; parts without any are left out."""
        counts = {name: sum(p.numel() for p in part.parameters()) for name, part in self.model.named_children()}
        return {name: count for name, count in counts.items() if count}

    @property
    def frames(self) -> int:
        """Segments, images or pairs of a step."""
        return self.settings.batch_size * self.settings.segments

    def cost(self, way: Way) -> Cost:
        """What it takes that way.

        Raises:
            UserError: the batch does not divide evenly, or the network does not go with recomputing.
        """
        settings, parts = self.settings, way.gpus * way.accumulate
        if settings.batch_size % parts:
            what = f"{settings.batch_size} lanes do not divide evenly among {way.gpus} GPUs"
            more = f" with {way.accumulate} gradient accumulation steps each" if way.accumulate > 1 else ""
            raise UserError("batch_size", what + more, f"choose a multiple of {parts}, or other numbers")
        lanes = settings.batch_size // parts
        count = self._count(lanes, way)
        tensors = [*self.model.parameters(), *self.model.buffers()]
        weights = sum(each.nbytes for each in tensors)
        gradients = sum(BYTES * each.numel() for each in self.model.parameters() if each.requires_grad)
        moments = 2 * gradients
        # Beside a micro-batch and its step: the other micro-batches and the next one, which is on its way already; the
        # gradients of those before, or the buffers in which they travel; states before the step and after it.
        batch = sum(each.nbytes for each in self.batch(lanes).values())
        waiting = way.accumulate * batch + (2 * way.accumulate - 1) * count.state
        waiting += gradients * ((way.accumulate > 1) + (way.gpus > 1))
        return Cost(
            flops=way.accumulate * count.flops,
            kept=count.kept,
            fixed=weights + gradients + moments,
            training=count.peak + moments + waiting,
            evaluation=self._evaluation(way.fused).peak + gradients + moments,
            checkpoint=weights + moments + parts * count.state,
            steps=settings.optimisation.steps,
            way=way,
        )

    def evaluation_hours(self, played: Evaluated, way: Way, gpu: Gpu, share: float = SHARE) -> float:
        """Length of the evaluation on such GPUs, as of `Cost.hours`."""
        each = self._evaluation(way.fused)
        flops = played.windows * each.per_window + played.labels * each.per_label
        return flops / way.gpus / (gpu.peak(way.half) * share) / 3600

    def _count(self, lanes: int, way: Way) -> StepCount:
        key = (lanes, replace(way, gpus=1, accumulate=1))
        if key not in self._counts:
            self._execute(way.fused, way.recompute)
            with _without_data(self.model):
                self._counts[key] = self._count_phases(self.batch(lanes), way.half)
        return self._counts[key]

    def _evaluation(self, fused: bool) -> Played:
        if fused not in self._played:
            self._execute(fused)
            with _without_data(self.model):
                self._played[fused] = self.play()
        return self._played[fused]

    def _count_phases(self, batch: Batch, half: bool) -> StepCount:
        """The mean step's operations, and the most memory that a step of any phase takes."""
        phases = phases_of(self.model, self.settings.optimisation)
        trained = [each for each in self.model.parameters() if each.requires_grad]
        counts = []
        for number in range(len(phases)):
            begin(self.model, number)
            counts.append(count_step(self.model.train(), batch, half))
        for each in trained:
            each.requires_grad_(True)  # gradients and moments are those of all phases
        flops = sum(phase.steps * count.flops for phase, count in zip(phases, counts, strict=True))
        return StepCount(
            round(flops / sum(phase.steps for phase in phases)),
            *(max(getattr(count, name) for count in counts) for name in ("kept", "peak", "state")),
        )

    def _execute(self, fused: bool, recompute: bool = False) -> None:
        # Left open, attention is fused where there is any.
        execute(self.model, Execution(recompute=recompute, channels_last=False), fast=fused)

    def fitting(self, gpu: Gpu, plain: Way | None = None) -> Cost | None:
        """The first way that fits, of `plain` without switches, recomputing, and accumulating; None where none does."""
        return next((cost for cost in map(self.cost, self._ways(plain or Way())) if cost.fits(gpu)), None)

    def _ways(self, plain: Way) -> Iterator[Way]:
        plain = replace(plain, accumulate=1, recompute=False)
        backbones = [module for module in self.model.modules() if isinstance(module, Backbone)]
        recomputing = not any(map(has_batch_norm, backbones))
        lanes, fewest = self.settings.batch_size // plain.gpus, 2 if has_batch_norm(self.model) else 1
        accumulating = [each for each in range(2, lanes + 1) if lanes % each == 0 and lanes // each >= fewest]
        yield plain
        if recomputing:
            yield replace(plain, recompute=True)
        yield from (replace(plain, accumulate=each) for each in accumulating)
        if recomputing:
            yield from (replace(plain, accumulate=each, recompute=True) for each in accumulating)


@contextmanager
def _without_data(model: Any) -> Iterator[None]:
    """Says in one line that a network cannot do without the content of its tensors."""
    try:
        yield
    except (NotImplementedError, RuntimeError) as error:
        what = f"its step cannot be counted without data: {one_line(str(error))[:200]}"
        raise UserError(type(model).__name__, what, "let no shape depend on numbers that are on the device") from error


def blueprint_of_cell(settings: Finetuning, size: Size) -> Blueprint:
    """A fine-tuning on histograms of `size` (H, W) in px.

    Raises:
        UserError: settings that do not go together.
    """
    kind: Any = find_task(settings)
    with META:
        model = kind.network(settings, fresh_backbone(settings, size))

    def batch(lanes: int) -> Batch:
        blank: Batch = kind.blank_batch(settings, size, lanes, META)
        return blank

    played = batch(settings.evaluation_lanes if settings.carries_state else settings.batch_size)
    histograms, place = played["histograms"], played["label_place"]

    def play() -> Played:
        with counting_evaluation(model, played) as counter:
            _, state = model.backbone(histograms)
            before = counter.flops
            features, _ = model.backbone(histograms, state)
            after = counter.flops
            model.maps(pick(features, place), size)
        windows = histograms.shape[0] * histograms.shape[1]
        return Played(counter.peak, (after - before) / windows, (counter.flops - after) / len(place))

    return Blueprint(settings, model, size, batch, play)


def blueprint_of_pretraining(task: PretrainingTask) -> Blueprint:
    """The pre-training of an objective, with data or without."""
    with META:
        model = task.network()
    held_out = task.blank_batch(task.lanes_held_out, META)

    def measure() -> Played:
        with counting_evaluation(model, held_out) as counter:
            _, state = model.loss(held_out, None)
            _, seen = task.features(model, held_out, None)
            model.loss(held_out, state)
            task.features(model, held_out, seen)
        return Played(counter.peak)

    return Blueprint(task.settings, model, task.size, lambda lanes: task.blank_batch(lanes, META), measure)


class Input(NamedTuple):
    """Size (H, W) in px of what a run would see whose data is not at hand, and where that is from, in words."""

    size: Size
    source: str


def input_of(settings: Finetuning | Pretraining, dataset: str) -> Input:
    """What a run would see: by the data set's config or the setting `sensor_px`; an objective on images says it itself.

    Raises:
        UserError: nothing says how large the sensor is.
    """
    if isinstance(settings, Pretraining):
        task = build_objective(settings, None)
        if isinstance(task, ImageObjective):
            return Input(task.size, "the recipe's views")
    given = settings.sensor
    sensor = given or sensor_of(dataset)
    if sensor is None:
        what = "is not at hand, and no config says how large its sensor is"
        raise UserError(f"data set {dataset}", what, "give --sensor WIDTHxHEIGHT, or --data")
    region = reduced(*sensor, settings.downsample)
    rows = settings.protocol.get("rows") if isinstance(settings, Finetuning) else None
    source = "--sensor" if given else f"configs/datasets/{dataset}.yaml"
    return Input((min(region.height, rows or region.height), region.width), f"{source}; the data is not at hand")


def known_evaluation(settings: Finetuning, dataset: str) -> Evaluated | None:
    """What the evaluation of a cell plays of the test recordings, by the data set's config; None where none says it."""
    stated = evaluated_of(dataset)
    if stated is None:
        return None
    windows, labels, length_ms, source = stated
    if not settings.carries_state:
        windows = labels * settings.segments
    elif settings.window_ms != length_ms:
        return None
    return Evaluated(windows, labels, source)


_known: dict[str, Blueprint] = {}


def planned(settings: Finetuning | Pretraining, dataset: str) -> Blueprint:
    """What the settings name, without any data; equal networks and batches are counted once in a process.

    Args:
        settings: of a cell or a pre-training.
        dataset: name of the config of its data, of which the sensor's size is taken.

    Raises:
        UserError: nothing says how large the sensor is, or settings that do not go together.
    """
    facts = as_facts(settings)
    key = canonical({name: value for name, value in facts.items() if name not in DECIDE_NO_COST} | {"of": dataset})
    if key not in _known:
        _known[key] = _planned(settings, dataset)
    return replace(_known[key], settings=settings)


def _planned(settings: Finetuning | Pretraining, dataset: str) -> Blueprint:
    size = input_of(settings, dataset).size
    if isinstance(settings, Finetuning):
        return blueprint_of_cell(settings, size)
    return blueprint_of_pretraining(build_objective(settings, None, size))

"""References: label prior, positive control, and probes of a frozen backbone."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import interpolate
from torch.utils.data import ConcatDataset

from tespec.comparison.cell import Cell
from tespec.comparison.records import Record
from tespec.core.distributed import world_size
from tespec.core.errors import UserError, require
from tespec.core.settings import Finetuning
from tespec.datasets.base import TRAIN
from tespec.datasets.recording import LabelledRecording
from tespec.metrics.features import linear_probe, nearest_neighbours
from tespec.metrics.priors import box_prior, class_prior, depth_prior
from tespec.metrics.segmentation import IGNORE, confusion, scores
from tespec.models import Backbone
from tespec.pretraining.method import Method, TableRow, find_method
from tespec.runs.finetune import CellSpec, outcome_of, prepare_run
from tespec.runs.run import Outcome, Run, run_or_load
from tespec.tasks.base import features_player
from tespec.tasks.play import play
from tespec.weights.load import WeightsReport, load_finetuned_backbone

PRIOR = "prior"  # names in records
CONTROL = "control"
STRIDE = 8  # side of a patch in px
PATCHES = 20_000  # target number of patches per split, sampled evenly from the labels
PROBES = {"linear": linear_probe, "knn": nearest_neighbours}
DEFINITION = (
    "in percent, over patches; features: all four stages of the backbone before fine-tuning, at "
    f"stride {STRIDE}; class: majority of a patch's labelled pixels; up to ceil({PATCHES:,} / "
    "labels in the split) patches per label; linear: logistic regression on standardised features; "
    "knn: 20 nearest neighbours by cosine, weighted"
)


class Prior(Method):
    """Baseline that every trained network should beat."""

    row = TableRow(
        title="Label prior",
        group="References",
        backbone="-",
        summary=(
            "Most frequent class or median depth per pixel, or most common boxes, of the training "
            "set; no network."
        ),
    )
    architectures = ("feedforward",)


class Control(Method):
    """Upper reference of frozen backbones: one that was fine-tuned on the labels of the task."""

    row = TableRow(
        title="Fine-tuned backbone (saw these labels)",
        group="References",
        summary="Backbone of a network that was fine-tuned on the same labels, with a new head.",
    )

    @classmethod
    def initialise(cls, backbone: Backbone, checkpoint: Path | None) -> WeightsReport:
        """Load the backbone of a fine-tuned network, in place; see `Method.initialise`."""
        if checkpoint is None:
            raise UserError(f"reference {CONTROL}", "has no network", "give --checkpoint FILE")
        return load_finetuned_backbone(backbone, checkpoint)


REFERENCES: Mapping[str, type[Method]] = {PRIOR: Prior, CONTROL: Control}


def method_of(cell: Cell) -> type[Method]:
    """Class of the method, or of the positive control, that fine-tuned a cell."""
    return Control if cell.kind == "control" else find_method(cell.method)


def require_supported(settings: Finetuning, *, is_probe: bool) -> None:
    """Refuse settings that references do not support.

    Args:
        settings: of the cell; test-time augmentation is refused.
        is_probe: whether tasks other than segmentation are refused.
    """
    require(
        not is_probe or settings.kind == "segmentation",
        f"--probe --task {settings.task}",
        "probes support only segmentation",
        "choose ddd17 or dsec",
    )
    if is_probe and settings.new_stem:
        what = "leaves the first convolution random, but a probe trains nothing"
        raise UserError("new_stem", what, "leave out --probe or --new-stem")
    augmentation = settings.test_time_augmentation
    if augmentation != "none":
        what = f"{augmentation!r} is only for trained networks, not for probes and the label prior"
        raise UserError("test_time_augmentation", what, "set it to none")


def label_prior(spec: CellSpec) -> Record:
    """Score the label prior of a task's feed-forward cell, or load its record."""
    run, task, _ = prepare_run("reference", spec)

    def evaluate() -> Outcome:
        predicted = prior_of(task)
        scorer = task.scorer()
        for recording in task.scored:
            for label in range(len(recording.label_indices)):
                task.score(scorer, predicted, recording.labels[label], recording, label)
        return outcome_of(task, scorer, input="none: the most frequent labels of the training set")

    return run_or_load(run, evaluate)


def prior_of(task: Any) -> Any:
    """Compute the label prior of a task from its training labels, as a prediction of every label.

    Returns:
        Classes (H, W) uint8, depth (H, W) float32 in m, or `Boxes`.
    """
    settings: Finetuning = task.settings
    # read lazily
    labels: Any = ConcatDataset([recording.labels for recording in task.train_subset])
    if settings.kind == "segmentation":
        return class_prior(labels, len(settings.classes)).argmax(axis=0).astype(np.uint8)
    if settings.kind == "depth":
        return depth_prior(labels, settings.head["min_depth"], settings.head["max_depth"])
    if settings.kind == "detection":
        return box_prior(labels)
    raise UserError(
        f"reference prior, {settings.task}",
        f"is not defined for {settings.kind}",
        "choose another task",
    )


def probe(spec: CellSpec) -> Record:
    """Probe a method's backbone in a single process, or load the record if the run is complete."""
    require(
        world_size() == 1, "--probe", "does not support multiple processes", "start a single one"
    )
    run, task, model = prepare_run("probe", spec, probe=DEFINITION)
    return run_or_load(run, partial(_measured, run, task, model.backbone))


def _measured(run: Run, task: Any, backbone: Backbone) -> Outcome:
    features, labels = patches(run, task, backbone, TRAIN)
    queries, expected = patches(run, task, backbone, task.split)
    names: Sequence[str] = task.settings.classes
    metrics: dict[str, float] = {}
    classes: dict[str, float] = {}
    for kind, classify in PROBES.items():
        predicted = classify(features, labels, queries, len(names))
        overall = scores(confusion(predicted.numpy(), expected.numpy(), len(names)), names)
        metrics |= {f"{kind}_{metric}": value for metric, value in overall.metrics().items()}
        classes |= {f"{kind}_{name}": iou for name, iou in overall.classes.items()}
    return {
        "protocol": task.protocol() | {"scores": DEFINITION},
        "metrics": metrics,
        "classes": classes,
    }


def patches(run: Run, task: Any, backbone: Backbone, split: str) -> tuple[Tensor, Tensor]:
    """Sample patches of a split, at labels spread evenly over it.

    Args:
        run: its seed chooses the patches.
        task: gives recordings and classes.
        backbone: computes the features.
        split: "train", or the split that is scored.

    Returns:
        Features (N, C) float32 and classes (N,) int64, on the CPU.
    """
    settings: Finetuning = task.settings
    recordings: Sequence[LabelledRecording] = task.train_subset if split == TRAIN else task.scored
    label_count = sum(len(recording.label_indices) for recording in recordings)
    per_label = max(1, -(-PATCHES // max(label_count, 1)))
    rng = np.random.default_rng([run.seed, *split.encode()])
    features, labels = [], []
    player = features_player(backbone.to(run.device).eval(), task.histogram_spec, run.device)
    title = f"features of the {split} recordings"
    for played in play(player, recordings, lanes=settings.eval_lanes, label=title):
        classes = patch_classes(played.label, len(settings.classes))
        rows, columns = np.nonzero(classes != IGNORE)
        drawn = rng.permutation(len(rows))[:per_label]
        features.append(_at_stride(played.output)[:, rows[drawn], columns[drawn]].T.float().cpu())
        labels.append(torch.from_numpy(classes[rows[drawn], columns[drawn]].astype(np.int64)))
    return torch.cat(features), torch.cat(labels)


def _at_stride(features: Sequence[Tensor]) -> Tensor:
    """Resize the features (C, h, w) of all stages to `STRIDE` and concatenate them to (C, h, w)."""
    size = features[1].shape[-2:]
    maps = [
        interpolate(stage.float()[None], size=size, mode="bilinear", align_corners=False)
        for stage in features
    ]
    return torch.cat(maps, dim=1)[0]


def patch_classes(mask: NDArray[Any], classes: int) -> NDArray[np.uint8]:
    """Find the majority class of the labelled pixels in every complete patch.

    Args:
        mask: classes (H, W) of pixels, 255 for none.
        classes: number of classes.

    Returns:
        Classes (H // STRIDE, W // STRIDE), 255 for patches without a labelled pixel.
    """
    rows, columns = mask.shape[0] // STRIDE, mask.shape[1] // STRIDE
    cut = mask[: rows * STRIDE, : columns * STRIDE].reshape(rows, STRIDE, columns, STRIDE)
    counts = np.stack([(cut == number).sum(axis=(1, 3)) for number in range(classes)])
    return np.where(counts.any(axis=0), counts.argmax(axis=0), IGNORE).astype(np.uint8)

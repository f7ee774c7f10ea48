"""What a cell scores without fine-tuning: the label prior of its task, and probes of its frozen backbone.

The label prior is the most frequent label of each pixel by the training set, ignoring the input; a linear and a k-NN
probe tell which class a patch has, from its features.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import interpolate
from torch.utils.data import ConcatDataset

from tespec.comparison.records import Record
from tespec.core.boxes import Boxes
from tespec.core.distributed import world_size
from tespec.core.errors import UserError
from tespec.core.progress import progress
from tespec.core.settings import Finetuning
from tespec.datasets.base import TRAIN
from tespec.datasets.batches import EvaluationBatches
from tespec.datasets.recording import LabelledRecording
from tespec.metrics.features import linear_probe, nearest_neighbours
from tespec.metrics.priors import box_prior, class_prior, depth_prior
from tespec.metrics.segmentation import IGNORE, confusion, scores
from tespec.models.backbone import reset
from tespec.pretraining.method import Method
from tespec.runs.finetune import CellSpec, PreparedRun, prepare_run
from tespec.runs.run import Outcome, run_or_load
from tespec.tasks.base import select_labelled

PRIOR = "prior"  # name in records
STRIDE = 8  # px of a patch
PATCHES = 20_000  # of a split that take part, drawn by the seed
PROBES = {"linear": linear_probe, "knn": nearest_neighbours}
DEFINITION = (
    f"features of all four stages at stride {STRIDE}, of the frozen backbone as it is before fine-tuning; a patch has "
    f"the class that most of its labelled pixels have; up to {PATCHES:,} patches of each split; linear: logistic "
    "regression on standardised features; knn: 20 nearest neighbours by cosine, weighted; in percent, over patches"
)


class Prior(Method):
    """Baseline that every trained network has to beat."""

    title = "Label prior"
    group = "References"
    network_title = "-"
    architectures = ("feedforward",)
    summary = "The most frequent label of each pixel in the training set, the same for every test frame; no network."


class Constant:
    """Stands for a model that answers the same whatever it sees; `answers` are what one label's prediction is."""

    def __init__(self, answer: Tensor | Boxes) -> None:
        self._answer = answer

    def eval(self) -> Constant:
        """Itself."""
        return self

    def predict(self, histograms: Tensor, state: None, label_place: Tensor) -> tuple[Tensor | Sequence[Boxes], None]:
        """The answer for each label, as a model of its task would give it."""
        count = len(label_place)
        if isinstance(self._answer, Tensor):
            return self._answer.expand(count, *self._answer.shape), None
        return [self._answer] * count, None


def label_prior(spec: CellSpec) -> Record:
    """Score the label prior of a task's feed-forward cell, or load its record.

    Raises:
        UserError: there is no prior for this kind of task, or data that cannot be used.
    """
    prepared = prepare_run("reference", spec)

    def evaluate() -> Outcome:
        scorer = prepared.task.evaluate(Constant(prior_of(prepared.task)), prepared.run.device)
        return prepared.outcome(scorer, {"input": "none: the most frequent labels of the training set"})

    return run_or_load(prepared.run, evaluate)


def prior_of(task: Any) -> Tensor | Boxes:
    """What a task's model would predict that knows nothing but the training labels.

    Raises:
        UserError: nothing of the kind is known for this kind of task, or there are no labels.
    """
    settings: Finetuning = task.settings
    labels: Any = ConcatDataset([recording.labels for recording in task.learned])  # read when they are asked for
    if settings.kind == "segmentation":
        return torch.from_numpy(class_prior(labels, len(settings.classes)))
    if settings.kind == "depth":
        head = settings.head
        return torch.from_numpy(depth_prior(labels, head["min_depth"], head["max_depth"]))
    if settings.kind == "detection":
        return box_prior(labels)
    raise UserError(f"reference prior, {settings.task}", f"is not known for {settings.kind}", "leave it out")


def probe(spec: CellSpec) -> Record:
    """Probe a method's backbone, or take up the complete record of it.

    Raises:
        UserError: the task has no classes of pixels, or data or weights cannot be used.
    """
    require_masks(spec.settings)
    if world_size() > 1:
        raise UserError("--probe", "trains nothing that several processes could share", "start a single one")
    prepared = prepare_run("probe", spec, {"probe": DEFINITION})
    return run_or_load(prepared.run, lambda: _measured(prepared))


def require_masks(settings: Finetuning) -> None:
    """Refuse a task without classes of pixels.

    Raises:
        UserError: names the task.
    """
    if settings.kind != "segmentation":
        where = f"--probe --task {settings.task}"
        raise UserError(where, "probes are only for segmentation", "choose ddd17 or dsec")


def _measured(prepared: PreparedRun) -> Outcome:
    settings, task = prepared.task.settings, prepared.task
    features, labels = patches(prepared, task.learned, TRAIN)
    queries, wanted = patches(prepared, task.scored, task.split)
    classes = len(settings.classes)
    metrics: dict[str, float] = {}
    of_classes: dict[str, float] = {}
    for kind, classify in PROBES.items():
        found = scores(
            confusion(classify(features, labels, queries, classes).numpy(), wanted.numpy(), classes), settings.classes
        )
        metrics |= {f"{kind}_{metric}": value for metric, value in found.metrics().items()}
        of_classes |= {f"{kind}_{each}": iou for each, iou in found.classes.items()}
    return {"protocol": task.protocol() | {"scores": DEFINITION}, "metrics": metrics, "classes": of_classes}


@torch.no_grad()
def patches(prepared: PreparedRun, recordings: Sequence[LabelledRecording], split: str) -> tuple[Tensor, Tensor]:
    """Features (N, C) and classes (N,) of patches of a split, on the CPU; drawn by the seed where there are more."""
    settings, device = prepared.task.settings, prepared.run.device
    backbone = prepared.model.backbone.to(device).eval()
    total = sum(len(recording.labelled) for recording in recordings)
    share = max(1, -(-PATCHES // max(total, 1)))
    rng = np.random.default_rng([prepared.run.seed, *split.encode()])
    features, labels, state, done = [], [], None, 0
    with progress(f"features of the {split} recordings", "labels") as advance:
        for batch in EvaluationBatches(settings, recordings):
            maps, state = backbone(batch.histograms.to(device), reset(state, batch.fresh.to(device)))
            if not batch.frames:
                continue
            for mask, each in zip(batch.labels, _at_stride(select_labelled(maps, batch.place.to(device))), strict=True):
                classes = patch_classes(mask, len(settings.classes))
                rows, columns = np.nonzero(classes != IGNORE)
                drawn = rng.permutation(len(rows))[:share]
                features.append(each[:, rows[drawn], columns[drawn]].T.float().cpu())
                labels.append(torch.from_numpy(classes[rows[drawn], columns[drawn]].astype(np.int64)))
            done += len(batch.frames)
            advance(done, total, "")
    return torch.cat(features), torch.cat(labels)


def _at_stride(features: list[Tensor]) -> Tensor:
    """All stages side by side (L, C, h, w) at `STRIDE`."""
    size = features[1].shape[-2:]
    maps = [interpolate(each.float(), size=size, mode="bilinear", align_corners=False) for each in features]
    return torch.cat(maps, dim=1)


def patch_classes(mask: NDArray[Any], classes: int) -> NDArray[np.uint8]:
    """Class of each whole patch of a mask (H, W): that of most of its labelled pixels, 255 where none is labelled."""
    rows, columns = mask.shape[0] // STRIDE, mask.shape[1] // STRIDE
    cut = mask[: rows * STRIDE, : columns * STRIDE].reshape(rows, STRIDE, columns, STRIDE)
    counts = np.stack([(cut == number).sum(axis=(1, 3)) for number in range(classes)])
    return np.where(counts.any(axis=0), counts.argmax(axis=0), IGNORE).astype(np.uint8)

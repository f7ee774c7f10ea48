"""Computations of the golden tests; the only golden file that uses names of the harness.

A case is a function of the sample world and an empty folder that returns named numbers and texts.
The expected values are in `data/`; renaming code changes this file, never the values.
"""

from __future__ import annotations

import hashlib
import json
import math
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from functools import partial
from io import StringIO
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from short_runs import short_pretrainings
from torch.optim.optimizer import register_optimizer_step_pre_hook

import tespec
from tespec.cli.main import main
from tespec.core.boxes import make_boxes
from tespec.core.config import as_facts, finetuning_settings, flattened, pretraining_settings
from tespec.core.settings import ARCHITECTURES, Finetuning, Pretraining
from tespec.datasets.lanes import Lanes
from tespec.events import open_events
from tespec.events.histogram import event_histogram
from tespec.events.intensity import estimate_intensity
from tespec.metrics.depth import DepthScorer
from tespec.metrics.detection import BoxFilter, DetectionScorer
from tespec.metrics.segmentation import SegmentationScorer
from tespec.models import build_backbone
from tespec.plan.jobs import expand, missing_jobs, read_plan
from tespec.pretraining.method import open_pretraining
from tespec.registry import pretrained_methods, register_methods
from tespec.runs.data import Data, settings_of
from tespec.tasks import build_task
from tespec.training.optimizer import learning_rate, weight_decay

Values = dict[str, Any]
Case = Callable[[Path, Path], Values | pd.DataFrame]
ROOT = Path(__file__).parents[2]
TASKS = ("ddd17", "dsec", "gen1", "1mpx", "mvsec")
PROFILES = ("paper", "sample")
# Recordings of the sample world.
DDD17 = "ddd17/dir0"
ONE_MPX = "1mpx/train/moorea_2019-02-19_000_td_500000_8500000_td.dat"


def sha256(array: Any) -> str:
    """First 16 hex digits of the hash of an integer array, including its shape and dtype."""
    array = np.ascontiguousarray(array)
    assert array.dtype.kind in "uib", array.dtype
    head = f"{array.dtype.str} {array.shape} ".encode()
    return hashlib.sha256(head + array.tobytes()).hexdigest()[:16]


def statistics(values: Any, name: str) -> Values:
    """Mean, standard deviation and three elements of a float array."""
    array = np.asarray(values, np.float64)
    indices = (array.size * np.array([1, 2, 5]) // 7).tolist()
    elements = {f"{name}, number {index}": array.flat[index] for index in indices}
    return {f"{name}, mean": array.mean(), f"{name}, deviation": array.std(), **elements}


# Training: two steps and an evaluation by the command line; losses and scores come from the record.


@contextmanager
def watched_steps() -> Iterator[list[Values]]:
    """Record gradients, learning rate and weight decay of the optimizer steps inside the block."""
    steps: list[Values] = []

    def look(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        groups = optimizer.param_groups
        parameters = [parameter for group in groups for parameter in group["params"]]
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        squares = [gradient.double().square().sum().item() for gradient in gradients]
        steps.append(
            {
                "grad_norm": math.sqrt(sum(squares)),
                "numbers with a gradient": sum(gradient.numel() for gradient in gradients),
                "learning rate": max(group["lr"] for group in groups),
                "weight decay": max(group["weight_decay"] for group in groups),
            }
        )

    handle = register_optimizer_step_pre_hook(look)
    try:
        yield steps
    finally:
        handle.remove()


def run(folder: Path, verb: str, *arguments: str, changes: Sequence[str] = ()) -> dict[str, Any]:
    """Run the command line and return its record, with the optimizer's inputs under "steps"."""
    output = StringIO()
    folders = ("--results", str(folder / "results"), "--runs", str(folder / "runs"))
    options = ("--profile", "sample", "--device", "cpu", "--threads", "1", "--seed", "0")
    changed = [part for change in changes for part in ("--set", change)]
    with (
        redirect_stdout(output),
        redirect_stderr(output),
        short_pretrainings(),
        watched_steps() as steps,
    ):
        ended = main([verb, *arguments, *options, *changed, *folders])
    assert ended == 0, output.getvalue()
    paths = (folder / "results" / "runs").glob("*.json")
    records = [json.loads(path.read_text()) for path in paths]
    cells = [run["cell"] for run in records]
    (record,) = (
        run
        for run, cell in zip(records, cells, strict=True)
        if cell["method"] in arguments or cell["kind"] == "reference"
    )
    # Earlier steps are those of the upstream method.
    return record | {"steps": steps[-len(record["curve"]) :]}


# With warm-up, the first step would not affect the second; clipped gradients would all have the
# same norm.
TWO_STEPS = ("optimisation.steps=2", "optimisation.warmup_steps=0", "optimisation.clip.by=none")
# Adam's first step moves each weight by the learning rate, and where the gradient is tiny, rounding
# decides the sign.
# A small learning rate limits the effect on the second step.
SLOW = "optimisation.peak_lr=1e-4"


def trained(record: Mapping[str, Any]) -> Values:
    """Losses and gradients of both steps, and the scores."""
    values: Values = {}
    for number, (losses, given) in enumerate(
        zip(record["curve"], record["steps"], strict=True), start=1
    ):
        of_step = {name: value for name, value in losses.items() if name != "step"} | given
        values |= {f"{name}, step {number}": value for name, value in of_step.items()}
    return values | {f"score {name}": value for name, value in record["metrics"].items()}


def pretrained(method: str, data: str, changes: Sequence[str], world: Path, folder: Path) -> Values:
    """Losses, gradients and validation metrics of a pre-training."""
    method_options = ("--method", method, "--data", str(world / data))
    return trained(run(folder, "pretrain", *method_options, changes=(*TWO_STEPS, *changes)))


def taught(method: str, world: Path, folder: Path) -> Values:
    """The same for a method with a teacher, which is trained for two steps."""
    PRETRAININGS["imagenet"](world, folder / "teacher")
    (weights,) = (folder / "teacher").rglob("backbone.safetensors")
    return pretrained(
        method, DDD17, (IMAGES, f"objective.teacher_weights={weights}"), world, folder
    )


LANES, IMAGES = "batch_size=2", "batch_size=8"
PRETRAININGS: dict[str, Case] = {
    name: partial(pretrained, name.partition(",")[0], data, changes)
    for name, data, *changes in (
        ("tespec", "1mpx", LANES),
        # With a single recording, only its last quarter is held out, which takes less time.
        ("tespec, feedforward", ONE_MPX, LANES, "recurrent=false"),
        ("tespec, target histograms", ONE_MPX, LANES, "objective.target.kind=histograms"),
        ("tespec, target high_pass", ONE_MPX, LANES, "objective.target.kind=high_pass"),
        ("tespec, no patch normalisation", ONE_MPX, LANES, "objective.patch_norm=false"),
        ("tespec, objective cpc", ONE_MPX, LANES, "objective=cpc", SLOW),
        ("ecddp", ONE_MPX, LANES),
        ("mem-tokenizer", ONE_MPX, LANES),
        ("mem", ONE_MPX, LANES),
        ("cm3ae", DDD17, IMAGES),
        ("moby", "objects", IMAGES),
        ("imagenet", "objects", IMAGES),
    )
} | {method: partial(taught, method) for method in ("ecdp", "scaleevent")}


def answer(folder: Path) -> Values:
    """Summary of the predictions of a run's saved network on a fixed histogram."""
    (path,) = (folder / "runs").glob("*/model.safetensors")
    counts = torch.from_numpy(some_counts(5, (1, 20, 64, 80)))
    with torch.no_grad():
        output, _ = tespec.load(path, height=64, width=80).step(counts)
    if isinstance(output, torch.Tensor) and output.is_floating_point():
        return {"answer, mean depth": output.mean().item()}
    if isinstance(output, torch.Tensor):
        fractions = torch.bincount(output.flatten(), minlength=11) / output.numel()
        values = enumerate(fractions.tolist())
        return {f"answer, share of class {number}": fraction for number, fraction in values}
    (boxes,) = output
    return {"answer, boxes": float(len(boxes.label)), "answer, mean side": float(boxes.size.mean())}


def some_counts(seed: int, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """Random histogram that is zero at nine of ten elements."""
    rng = np.random.default_rng(seed)
    return (rng.integers(1, 11, shape) * (rng.random(shape) < 0.1)).astype(np.uint8)


# After two steps, all scores of a detector are below the usual threshold, so there would be no
# boxes to evaluate.
ALL_BOXES = {"gen1": ("head.score_threshold=0.0",), "1mpx": ("head.score_threshold=0.0",)}


def finetuned(task: str, arch: str, method: str, world: Path, folder: Path) -> Values:
    """Losses, gradients, scores and predictions of a fine-tuning without pre-training."""
    method_options = (
        "--method",
        method,
        "--task",
        task,
        "--arch",
        arch,
        "--data",
        str(world / task),
    )
    few = (LANES, SLOW, *(("segments=3",) if arch == "recurrent" else ()), *ALL_BOXES.get(task, ()))
    return trained(run(folder, "run", *method_options, changes=(*TWO_STEPS, *few))) | answer(folder)


FINETUNINGS: dict[str, Case] = {
    f"{task}, {arch}": partial(finetuned, task, arch, "scratch")
    for task, arch in product(TASKS, ARCHITECTURES)
} | {"gen1, rvt": partial(finetuned, "gen1", "recurrent", "rvt")}


def prior(task: str, world: Path, folder: Path) -> Values:
    """Scores of the label prior, which cover labels and evaluation without a network."""
    record = run(folder, "run", "--reference", "prior", "--task", task, "--data", str(world / task))
    return {
        **record["metrics"],
        **{f"class {name}": value for name, value in record["classes"].items()},
    }


# Features.


def fill(network: torch.nn.Module) -> None:
    """Fill every parameter with numbers that depend only on its name and shape."""
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            drawn = np.random.default_rng(zlib.crc32(name.encode())).random(parameter.numel()) - 0.5
            values = torch.from_numpy(drawn).reshape(parameter.shape).float()
            matrix = parameter.dim() > 1
            spread = math.sqrt(12 / parameter[0].numel()) if matrix else 0.2
            is_scale = not matrix and not name.endswith("bias")
            parameter.copy_(values * spread + float(is_scale))


def features(arch: str, recurrent: bool, world: Path, folder: Path) -> Values:
    """Features of three steps of one lane with carried state, or of one step if feed-forward."""
    network = build_backbone(arch, recurrent, bins=5, img_size=(64, 96)).eval()
    fill(network)
    values: Values = {"parameters": sum(weight.numel() for weight in network.parameters())}
    state = None
    for step in range(3 if recurrent else 1):
        maps, state = network.step(torch.from_numpy(some_counts(step, (1, 10, 64, 96))), state)
        for stage, stage_maps in enumerate(maps, start=1):
            values |= statistics(stage_maps, f"step {step + 1}, stage {stage}")
    return values


FEATURES: dict[str, Case] = {
    f"{arch}, {'recurrent' if recurrent else 'feedforward'}": partial(features, arch, recurrent)
    for arch, recurrent in (
        ("swin_micro", True),
        ("swin_micro", False),
        ("swin_tiny", True),
        ("swin_tiny", False),
        ("maxvit_base", True),
        ("maxvit_micro", False),
        ("resnet50", False),
        ("resnet_micro", True),
    )
}


# Scores of fixed predictions.


def scored(scorer: Any) -> Values:
    """All scores of a scorer: overall, per class, per recording and per group."""
    overall = scorer.overall()
    parts = {"": overall}
    for kind in ("recording", "group"):
        parts |= {f"{name}, ": scores for name, scores in scorer.by(kind).items()}
    values: Values = {}
    for part, scores in parts.items():
        values |= {f"{part}{name}": value for name, value in scores.metrics().items()}
    classes = overall.classes
    if isinstance(scorer, SegmentationScorer):
        classes = dict(enumerate(classes.values()))
    return values | {f"class {name}": value for name, value in classes.items()}


def detection_scores(world: Path, folder: Path) -> Values:
    """Average precision of boxes near the ground truth, some wrong, small, tied or duplicate."""
    rng = np.random.default_rng(11)
    scorer = DetectionScorer(("car", "pedestrian", "bus"), BoxFilter(30.0, 10.0))
    for frame in range(24):
        count = int(rng.integers(0, 7))
        corners = np.sort(rng.random((count, 2, 2)) * [[200, 140]], axis=1).reshape(count, 4)
        labels = rng.integers(0, 2, count)  # no bus in the ground truth
        moved = corners + (rng.random((count, 4)) - 0.5) * 16
        extra = np.sort(rng.random((3, 2, 2)) * [[200, 140]], axis=1).reshape(3, 4)
        guessed = np.where(rng.random(count) < 0.2, rng.integers(0, 3, count), labels)
        boxes = np.concatenate([moved, moved[: count // 2] + 2, extra])
        classes = np.concatenate([guessed, guessed[: count // 2], rng.integers(0, 3, 3)])
        scores = np.round(rng.random(len(boxes)), 1)
        scorer.update(
            make_boxes(boxes, classes, scores),
            make_boxes(corners, labels),
            f"recording {frame % 3}",
            100_000 * (1 + frame),
            ("moving",) if frame % 2 else ("standing",),
        )
    return scored(scorer)


def segmentation_scores(world: Path, folder: Path) -> Values:
    """Scores of masks of eleven classes, one of them without ground truth, with ignored pixels."""
    rng = np.random.default_rng(12)
    scorer = SegmentationScorer([f"class {number}" for number in range(11)])
    for frame in range(4):
        labels = rng.integers(0, 10, (20, 30))
        predicted = np.where(rng.random((20, 30)) < 0.6, labels, rng.integers(0, 11, (20, 30)))
        labels = np.where(rng.random((20, 30)) < 0.1, 255, labels)
        scorer.update(
            predicted, labels, f"recording {frame % 2}", ("moving",) if frame < 3 else ("standing",)
        )
    return scored(scorer)


def depth_scores(world: Path, folder: Path) -> Values:
    """Errors of depth maps with unknown, too near and too far pixels."""
    rng = np.random.default_rng(13)
    scorer = DepthScorer()
    for frame in range(5):
        truth = np.exp(rng.random((20, 30)) * 5).astype(np.float32)  # 1 to 148 m
        truth[rng.random((20, 30)) < 0.2] = np.nan
        truth[:] = np.nan if frame == 4 else truth
        predicted = (
            np.exp(rng.random((20, 30)) * 5) * 0.3 + np.nan_to_num(truth, nan=9) * 0.7
        ).astype(np.float32)
        scorer.update(
            predicted, truth, f"recording {frame % 3}", ("moving",) if frame % 2 else ("standing",)
        )
    return scored(scorer)


METRICS: dict[str, Case] = {
    "detection": detection_scores, "segmentation": segmentation_scores, "depth": depth_scores
}  # fmt: skip


# Events.


def some_events(seed: int, count: int = 20_000) -> tuple[NDArray[Any], ...]:
    """x, y, t, p of events on 48 x 64 px over 0.1 s, at a rising rate, many on a few pixels."""
    rng = np.random.default_rng(seed)
    t = np.sort((np.sqrt(rng.random(count)) * 100_000).astype(np.int64))
    x, y = (
        np.where(rng.random(count) < 0.3, rng.integers(0, 4, count), rng.integers(0, n, count))
        for n in (64, 48)
    )
    return x, y, t, rng.integers(0, 2, count)


def histograms(world: Path, folder: Path) -> Values:
    """Histograms by both rules of windows with events, without, and ending at an event."""
    x, y, t, p = some_events(21)
    last = int(t[9000])
    windows = ((0, 50_000), (13_001, 63_004), (200_000, 250_000), (0, last), (0, last + 1))
    values: Values = {}
    for rule, (start, end) in product(("edges", "rvt"), windows):
        counts = event_histogram(
            x, y, t, p, t_start=start, t_end=end, bins=10, height=48, width=64, rule=rule
        )
        values[f"{rule}, {start} to {end} us"] = sha256(counts)
        values[f"{rule}, {start}, sum"] = int(counts.sum())
    return values


def intensity(world: Path, folder: Path) -> Values:
    """Intensity video of six segments, estimated in two parts."""
    counts = [
        event_histogram(*some_events(seed), t_start=0, t_end=100_000, bins=10, height=48, width=64)
        for seed in range(6)
    ]
    sequence = torch.from_numpy(np.stack(counts)[None])
    first, state = estimate_intensity(sequence[:, :2], norm_events=3000.0)
    video, state = estimate_intensity(sequence[:, 2:], state, norm_events=3000.0)
    return statistics(torch.cat([first, video], 1), "video, N 3000.0") | statistics(
        state, "state, N 3000.0"
    )


RECORDINGS: dict[str, str | Path] = {
    "ddd17": DDD17,
    "1mpx": ONE_MPX,
    "gen1": "gen1/train/17-04-13_15-05-10_500000_8500000_td.dat",
    "dsec": "dsec/train/zurich_city_00_a/events/left/events.h5",
    "mvsec": "mvsec/outdoor_day2_data.hdf5",
    "evt3": ROOT / "tests" / "data" / "evt3_640x480_2.08s.raw",
    "aedat4": ROOT / "tests" / "data" / "davis.aedat4",
}


def packed(path: str | Path, world: Path, folder: Path) -> Values:
    """Hashes of the packed events of a recording, all of them and a slice of 50 ms."""
    stream = open_events(world / path)
    middle = (stream.t_first + stream.t_last) // 2
    names = ("height", "width", "count", "t_first", "t_last")
    values: Values = {name: getattr(stream, name) for name in names}
    slices = {"all": (stream.t_first, stream.t_last + 1), "50 ms": (middle, middle + 50_000)}
    for part, ends in slices.items():
        kinds = (np.int16, np.int16, np.int64, np.uint8)
        for name, kind, column in zip("xytp", kinds, stream.slice(*ends), strict=True):
            values[f"{part}, {name}"] = sha256(np.asarray(column, kind))
    return values


def batch_values(steps: Any) -> Values:
    """Hashes of integer tensors and statistics of float tensors in three batches."""
    values: Values = {}
    for number, step in enumerate((0, 1, 40)):
        for name, tensor in steps[step].items():
            label = f"step {number}, {name}"
            if not tensor.is_floating_point():
                values[label] = sha256(tensor)
            else:
                known = torch.nan_to_num(tensor.double())  # unknown depths are NaN
                values |= {f"{label}, shape": str(tuple(tensor.shape)), **statistics(known, label)}
    return values


def lanes(world: Path, folder: Path) -> Values:
    """Slots of eight lanes over nine recordings: streams, mixed, and segments at labels."""
    lengths = (40, 7, 33, 12, 90, 3, 25, 61, 18)
    labels = tuple(np.arange(2, length, 3) for length in lengths)
    values: Values = {}
    for name, fraction, ends in (
        ("stream", 0.0, None),
        ("mixed", 0.5, None),
        ("labels", 1.0, labels),
    ):
        played = Lanes(lengths, 5, 8, 3, fraction, ends)
        rows = [[played.slot(lane, step) for lane in range(8)] for step in range(60)]
        columns = np.moveaxis(np.array(rows, np.int64), 2, 0)
        for column, slots in zip(("recording", "first", "play", "is_first"), columns, strict=True):
            values[f"{name}, {column}"] = sha256(slots)
            values[f"{name}, {column}, step 30"] = str(slots[30].tolist())
    return values


def labelled_batches(task: str, arch: str, world: Path, folder: Path) -> Values:
    """Batches of a fine-tuning with random flips and zooms."""
    zoom = 0.0 if task == "mvsec" else 1.0
    changes = (
        LANES,
        f"augmentation.zoom={zoom}",
        *(("segments=3",) if arch == "recurrent" else ()),
    )
    settings = settings_of(Data(world / task, "sample"), task, arch, "sample", changes)
    return batch_values(build_task(settings, world / task).steps(3))


def unlabelled_batches(recipe: str, data: str, world: Path, folder: Path) -> Values:
    """Batches of a pre-training."""
    register_methods()
    settings = pretraining_settings(recipe, "sample", ("batch_size=3",))
    return batch_values(open_pretraining(settings, world / data).steps(3))


EVENTS: dict[str, Case] = {
    "histogram": histograms,
    "intensity": intensity,
    **{f"store, {name}": partial(packed, path) for name, path in RECORDINGS.items()},
    **{
        f"batches, {task}, {arch}": partial(labelled_batches, task, arch)
        for task, arch in product(TASKS, ARCHITECTURES)
    },
    "lanes": lanes,
    "batches, tespec": partial(unlabelled_batches, "tespec", "1mpx"),
    "batches, ecdp": partial(unlabelled_batches, "ecdp", "ddd17"),
    "batches, imagenet": partial(unlabelled_batches, "imagenet", "objects"),
}


# Settings of a run, before anything is computed.

PROSE = ("deviations", "title", "profile", "version", "name", "citation")


def settings_values(settings: Finetuning | Pretraining) -> Values:
    """All settings, with the learning rate and weight decay at some steps."""
    optimisation = settings.optimisation
    warm, last = optimisation.warmup_steps, optimisation.steps - 1
    steps = dict.fromkeys((0, 1, warm // 2, warm, (warm + last) // 2, last))
    rates = {f"learning rate, step {step}": learning_rate(optimisation, step) for step in steps}
    decays = {f"weight decay, step {step}": weight_decay(optimisation, step) for step in steps}
    facts = {
        key: value
        for key, value in flattened(as_facts(settings)).items()
        if not {*PROSE} & {*key.split(".")}
    }
    lists = {key: json.dumps(value) for key, value in facts.items() if isinstance(value, list)}
    return {key: value for key, value in facts.items() if value != {}} | lists | rates | decays


def task_settings(task: str, arch: str, profile: str, world: Path, folder: Path) -> Values:
    """Settings of a cell."""
    return settings_values(finetuning_settings(task, arch, profile))


def recipe_settings(method: str, profile: str, world: Path, folder: Path) -> Values:
    """Settings of a pre-training."""
    return settings_values(pretraining_settings(method, profile))


SETTINGS: dict[str, Case] = {
    f"{task}, {arch}, {profile}": partial(task_settings, task, arch, profile)
    for task, arch, profile in product(TASKS, ARCHITECTURES, PROFILES)
} | {
    f"{method}, {profile}": partial(recipe_settings, method, profile)
    for method, profile in product(pretrained_methods(), PROFILES)
}


# Tables, stored as CSV files.

PUBLISHED = (
    "table",
    "method",
    "mark",
    "label",
    "arch",
    "network",
    "task",
    "label_fraction",
    "frozen",
    "metric",
)


def plan(name: str, world: Path, folder: Path) -> pd.DataFrame:
    """Runs of a plan, including the pre-trainings that others start from."""
    rows = []
    for job in missing_jobs(expand(read_plan(name)), {}, folder):
        cell = job.cell
        is_pretraining = cell.kind == "pretraining"
        changes = (*job.set, *filter(None, [job.backbone]))
        of_start = job.upstream.set if job.upstream else ()
        row = {
            "kind": cell.kind,
            "method": cell.method,
            "task": cell.task,
            "arch": "" if is_pretraining else cell.arch,
            "seed": job.seed,
            "frozen": cell.frozen or "",
            "split": cell.split,
            "overrides": "" if is_pretraining else " ".join(changes),
            "pretraining_overrides": " ".join(job.set if is_pretraining else of_start),
            "pretraining_seed": job.upstream.seed if job.upstream else "",
            "ablations": " ".join(job.ablations),
        }
        rows.append(row)
    return pd.DataFrame(rows).sort_values(list(rows[0]))


def tables(world: Path, folder: Path) -> pd.DataFrame:
    """Published numbers of the comparison tables and ablations."""
    output = StringIO()
    (folder / "results").mkdir()
    with redirect_stdout(output), redirect_stderr(output):
        ended = main(
            ["tables", "--results", str(folder / "results"), "--out", str(folder / "tables")]
        )
    assert ended == 0, output.getvalue()
    every = [
        pd.read_csv(path, keep_default_na=False, na_values=[""])
        for path in (folder / "tables").glob("*_long.csv")
    ]
    paper = pd.concat(every)
    paper[[*PUBLISHED]] = paper[[*PUBLISHED]].astype(str).replace("nan", "")
    paper = paper[paper["value"].notna()]
    return paper[[*PUBLISHED, "value"]].sort_values([*PUBLISHED])


FAMILIES: dict[str, dict[str, Case]] = {
    "pretraining": PRETRAININGS,
    "finetuning": FINETUNINGS,
    "prior": {task: partial(prior, task) for task in TASKS},
    "features": FEATURES,
    "metrics": METRICS,
    "events": EVENTS,
    "settings": SETTINGS,
    "plans": {name: partial(plan, name) for name in ("demo", "sample")},
    "tables": {"published": tables},
}

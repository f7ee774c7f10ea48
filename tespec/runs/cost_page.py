"""The page of costs: every cell and every pre-training of the paper, on one GPU and on eight."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from tespec.core.config import finetuning_settings, names, pretraining_settings
from tespec.core.errors import UserError
from tespec.core.registry import METHODS
from tespec.core.settings import Finetuning
from tespec.pretraining.method import find_method
from tespec.runs.cost import Blueprint, Cost, Gpu, Way, gpus, known_evaluation, planned

PROFILE = "paper"
MANY = 8  # GPUs
UNKNOWN = "?"  # how long it takes, where no config says how much there is
PRETRAINING = "pre-training"  # how the names of their rows begin
HEADER = (
    "training",
    "batch",
    "input, px",
    "parameters, M",
    "TFLOP a step",
    "activations, GB: bf16",
    "fp32",
    "peak, GB: bf16",
    "fp32",
    "evaluation, GB",
    "h",
    "one GPU, h",
    f"{MANY} GPUs, GB",
    "h",
)


@dataclass(frozen=True)
class Training:
    """A row of the page.

    Attributes:
        name: of the row.
        labels: tasks and methods, by which it is asked for.
        plan: gives it, counted.
    """

    name: str
    labels: frozenset[str]
    plan: Callable[[], Blueprint]


def trainings() -> list[Training]:
    """All of the paper's: a cell for each task, architecture and network, and the methods' pre-trainings."""
    methods = {name: find_method(name) for name in sorted(METHODS.module_dict)}
    found = []
    for task in names("tasks"):
        networks: dict[tuple[str, str], list[str]] = {}
        for name, method in methods.items():
            for arch in method.architectures:
                networks.setdefault((arch, method.network), []).append(name)
        for (arch, network), of in sorted(networks.items(), reverse=True):
            title = methods[of[0]].backbone
            plan = partial(_cell, task, arch, network)
            found.append(Training(f"{task}, {arch}, {title}", frozenset({task, *of}), plan))
    for name, method in methods.items():
        if method.recipe is not None:
            plan = partial(_pretraining, method.recipe, method.network)
            found.append(Training(f"{PRETRAINING} {name}", frozenset({name}), plan))
    return found


def _cell(task: str, arch: str, network: str) -> Blueprint:
    return planned(finetuning_settings(task, arch, PROFILE, network=network), task)


def _pretraining(recipe: str, network: str) -> Blueprint:
    settings = pretraining_settings(recipe, PROFILE, network=network)
    return planned(settings, settings.dataset)


def rows_of_paper(
    gpu: Gpu, share: float, only: Sequence[str] = (), progress: Callable[[int, int], None] = lambda done, total: None
) -> list[tuple[str, ...]]:
    """Rows under `HEADER` of the trainings with one of the labels `only`, of all where there is none.

    Raises:
        UserError: a label that no training has.
    """
    known = trainings()
    labels = frozenset[str]().union(*(each.labels for each in known))
    for name in only:
        if name not in labels:
            raise UserError(
                f"--only {name}", "no task or method of the page", f"choose from {', '.join(sorted(labels))}"
            )
    chosen = [each for each in known if not only or each.labels & set(only)]
    rows = []
    for done, each in enumerate(chosen, start=1):
        rows.append(row_of(each, gpu, share))
        progress(done, len(chosen))
    return rows


def row_of(training: Training, gpu: Gpu, share: float) -> tuple[str, ...]:
    """The row of a training under `HEADER`."""
    blueprint = training.plan()
    settings = blueprint.settings
    half, single = blueprint.cost(Way()), blueprint.cost(Way(half=False))
    segments = f" x {settings.segments}" if settings.segments > 1 else ""
    return (
        training.name,
        f"{settings.batch_size:,}{segments}",
        "{} x {}".format(*blueprint.size),
        f"{sum(blueprint.parameters.values()) / 1e6:.2f}",
        f"{half.flops / 1e12:.3g}",
        _gb(half.kept),
        _gb(single.kept),
        _gb(half.training),
        _gb(single.training),
        _gb(half.evaluation),
        _evaluation_hours(blueprint, gpu, share),
        *_fitting(blueprint, half, gpu, share),
        *reversed(_fitting(blueprint, blueprint.cost(Way(MANY)), gpu, share, with_memory=True)),
    )


def _evaluation_hours(blueprint: Blueprint, gpu: Gpu, share: float) -> str:
    settings = blueprint.settings
    played = known_evaluation(settings, settings.task) if isinstance(settings, Finetuning) else None
    return UNKNOWN if played is None else _hours(blueprint.evaluation_hours(played, Way(), gpu, share))


def _fitting(blueprint: Blueprint, cost: Cost, gpu: Gpu, share: float, with_memory: bool = False) -> tuple[str, ...]:
    """Hours, with the switches that make it fit where it does not, and the memory where it is asked for."""
    fitting = cost if cost.fits(gpu) else blueprint.fitting(gpu, cost.way)
    if fitting is None:
        return ("does not fit", _gb(cost.memory)) if with_memory else ("does not fit",)
    hours = _hours(fitting.hours(gpu, share))
    said = f"{hours}, `{fitting.way.switches}`: {_gb(fitting.memory)} GB" if fitting.way.switches else hours
    return (said, _gb(fitting.memory)) if with_memory else (said,)


def _gb(size: float) -> str:
    return f"{size / 1e9:,.0f}" if size >= 99.95e9 else f"{size / 1e9:.3g}"


def _hours(hours: float) -> str:
    return f"{hours:,.0f}" if hours >= 99.5 else f"{hours:.2g}"


def table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Lines of a Markdown table."""
    lines = [HEADER, ("---", *("---:" for _ in HEADER[1:])), *rows]
    return ["| " + " | ".join(line) + " |" for line in lines]


TEXT = """\
# What the paper's trainings cost

Written by `python benchmarks/cost.py --write docs/cost.md`, which needs no GPU and no data: each training is built at
its full size on torch's `meta` device, where tensors have shapes but no content, and its step is counted. `--dry-run`
says the same of any training, profile and GPU:

    python benchmarks/run.py --method tespec --task gen1 --dry-run
    python benchmarks/pretrain.py --method tespec --dry-run --gpu h200 --gpus 8

Hours are those of the optimizer steps on {gpu}, in bf16, at {share:.0f} % of the peak of its matrix products. That
share is an assumption (`--share`); what a network reaches is for a GPU to say, and `make gpu` measures it. Reading the
data, evaluations and checkpoints come on top. The hours of an evaluation, likewise reckoned, stand beside its memory
where the data set's config says how many windows its test recordings hold; with the data at hand, `--dry-run` counts
them. Memory is counted:

- **kept**: what the forward pass keeps for the backward pass, without weights.
- **at most**: the most that is in use at once in a step: what is kept, temporary tensors, weights, gradients, the
  optimizer's moments, the batch and the next one, the carried state.
- **evaluation**: the most of the evaluation, or of what is measured on data held out, in fp32.

Attention is fused, as it is on a GPU by default, so that its matrices are not kept. What `--deterministic` and
`--no-fused-attention` take more, `--dry-run` says beside these switches.

Where {memory:.0f} GB do not hold a step in bf16, the column of hours names the switches with which they do:
`--recompute` (activation checkpointing) computes the backbone a second time for the same gradients to the bit,
`--accumulate N` takes a batch in N parts, whose batch statistics and contrasts are their own. On {many} GPUs each has
its share of the batch; what travels between them is not in the hours. As operations count those of matrix products and
convolutions, a multiplication and its addition being two.

## Cells

Cost depends on the task, the architecture and the network, and not on how the network starts; so all methods of one
network share a row.

{cells}

## Pre-trainings

{pretrainings}

## GPUs

Peaks of dense products in TFLOP/s, memory in GB (10^9 bytes), from configs/gpus.yaml:

| GPU | `--gpu` | GB | bf16 | TF32 | fp32 | source |
| --- | --- | ---: | ---: | ---: | ---: | --- |
{gpus}
"""


def page(rows: Sequence[tuple[str, ...]], gpu: Gpu, share: float) -> str:
    """The whole page, in Markdown."""
    pretrainings = [row for row in rows if row[0].startswith(PRETRAINING)]
    known = [
        f"| {each.title} | `{each.name}` | {each.memory / 1e9:.0f} | "
        + " | ".join(f"{peak:g}" for peak in each.tflops.values())
        + f" | {each.source} |"
        for each in gpus().values()
    ]
    return TEXT.format(
        gpu=gpu.title,
        share=100 * share,
        memory=gpu.memory / 1e9,
        many=MANY,
        cells="\n".join(table([row for row in rows if row not in pretrainings])),
        pretrainings="\n".join(table(pretrainings)),
        gpus="\n".join(known),
    )

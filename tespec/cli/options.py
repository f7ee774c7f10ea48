"""Options shared by several commands, and functions that check and complete them."""

import os
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Group, Parameter
from cyclopts.types import PositiveFloat

from tespec.cli.main import FOLDER, PICTURES, output, refuse
from tespec.comparison.records import Numbers
from tespec.core.config import (
    add_file,
    cell_facts,
    names,
    read_profiles,
    refuse_unknown_changes,
    split_changes,
)
from tespec.core.errors import UserError
from tespec.core.settings import parse_size, suggest
from tespec.registry import register_methods, shipped_methods
from tespec.runs.setup import Advanced, NonNegativeInt, PositiveInt, Setup

PROFILES = ", ".join(names("profiles"))
# Options that a record's command omits: they change no result, or the command ends in their values.
OMITTED = {
    *("--results", "--runs", "--workers", "--overwrite", "--check-data", "--track"),
    *("--data", "--seed", "--seeds", "--save-predictions"),
}
Given = Annotated[Sequence[str], Parameter(parse=False)]  # unparsed arguments of the command line
Words = Parameter(consume_multiple=True)  # several words behind one option
Plugins = Annotated[
    tuple[Path, ...],
    Advanced(name="--import", help="Python file that registers a method, ...; repeatable"),
]
Changes = Annotated[
    tuple[str, ...], Parameter(name="--set", help="KEY=VALUE: change a setting; repeatable")
]


def read_config(kind: str, name: str) -> str:
    """Add the file FILE.yaml to the configs, and return its name.

    Args:
        kind: "tasks" or "profiles".
        name: name of a config, which is returned as it is, or a path that ends in .yaml.
    """
    return add_file(kind, Path(name)) if name.endswith(".yaml") else name


# Options that name a config, or a file of one.
Task = partial(Parameter, converter=lambda _, tokens: read_config("tasks", tokens[0].value))
Profile = partial(Parameter, converter=lambda _, tokens: read_config("profiles", tokens[0].value))


def check_method(name: str | None, plugins: Sequence[Path]) -> None:
    """Import plug-ins, or refuse an unknown method before torch is imported.

    Args:
        name: of the method, which a plug-in may register.
        plugins: files given to --import.
    """
    shipped = shipped_methods()
    if plugins:
        register_methods(plugins)
    elif name and shipped and name not in shipped:
        raise UserError(
            f"--method {name[:100]}",
            "unknown method",
            f"{suggest(name, shipped)}; --import FILE.py adds your own",
        )


def _size(kind: type, tokens: Any) -> str:
    parse_size(tokens[0].value)
    return str(tokens[0].value)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class SettingOptions:
    """Settings changed by the user."""

    changes: Changes = ()
    sensor: Annotated[
        str | None,
        Advanced(converter=_size, help="WIDTHxHEIGHT in px of recordings that do not store it"),
    ] = None

    @property
    def all_changes(self) -> tuple[str, ...]:
        """The changed settings, including the sensor size."""
        return (*self.changes, f"sensor_px={self.sensor}") if self.sensor else self.changes


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class TrainingOptions(SettingOptions):
    """Options shared by `run` and `pretrain`."""

    profile: Annotated[
        str | None,
        Profile(help=f"{PROFILES}, or FILE.yaml (default: sample on sample data, else paper)"),
    ] = None
    backbone: Annotated[
        str | None,
        Parameter(
            help="swin_{tiny,micro}, resnet50, resnet_micro, maxvit_{base,micro}, "
            "vit_{small,base,micro} (default: method's)"
        ),
    ] = None
    dry_run: Annotated[
        bool, Parameter(help="print settings, FLOPs, memory and GPU hours; train nothing")
    ] = False
    gpus: Annotated[PositiveInt, Advanced(help="number of GPUs assumed by --dry-run")] = 1

    def __post_init__(self) -> None:
        refuse(
            self.gpus > 1 and not self.dry_run,
            "--gpus requires --dry-run; use --launcher for multiple processes",
        )


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class CellOptions:
    """Options that define a cell."""

    method: Annotated[
        str | None,
        Parameter(help=", ".join(shipped_methods()) or "see --list"),
    ] = None
    task: Annotated[str | None, Task(help=f"{', '.join(names('tasks'))}, or FILE.yaml")] = None
    arch: Annotated[
        Literal["recurrent", "feedforward"], Parameter(help="architecture of the backbone")
    ] = "recurrent"
    data: Annotated[
        Path | None, Parameter(help="DIR or sample (default: $TESPEC_DATA/<task>, ./data/<task>)")
    ] = None
    split: Annotated[
        Literal["test", "val"], Parameter(help="split to score; choose settings on val")
    ] = "test"
    seeds: Annotated[
        tuple[NonNegativeInt, ...],
        Words,
        Parameter(
            name=("--seed", "--seeds"),
            show_default=False,
            help="random seeds, run in turn (default: 0)",
        ),
    ] = (0,)
    checkpoint: Annotated[Path | None, Parameter(help="initial weights: a file, or timm:NAME")] = (
        None
    )
    training: TrainingOptions = TrainingOptions()
    freeze: Annotated[bool, Parameter(help="train only the head, on a frozen backbone")] = False
    label_fraction: Annotated[
        PositiveFloat | None, Parameter(help="fraction of training labels (default: 1)")
    ] = None
    new_stem: Annotated[
        bool, Parameter(help="leave the first convolution random, for weights with another input")
    ] = False
    probe: Annotated[bool, Parameter(help="linear and k-NN probe of the frozen backbone")] = False
    reference: Annotated[
        Literal["prior", "control"] | None,
        Advanced(
            help="instead of a method: the label prior, or a fine-tuned backbone (--checkpoint)"
        ),
    ] = None
    # set by a plan
    pretraining_seed: Annotated[NonNegativeInt | None, Parameter(show=False)] = None
    plugins: Plugins = ()

    def __post_init__(self) -> None:
        refuse(
            bool(self.reference and (self.method or self.probe or self.freeze)),
            "--reference cannot be combined with --method, --probe, --freeze",
        )
        trained = self.checkpoint or self.training.backbone or self.training.dry_run
        refuse(
            bool(self.reference == "prior" and trained),
            "--reference prior cannot be combined with --checkpoint, --backbone, --dry-run",
        )
        refuse(
            self.reference == "control" and not self.checkpoint,
            "--reference control requires --checkpoint: the model.safetensors of a run",
        )
        refuse(self.freeze and self.probe, "--freeze cannot be combined with --probe")
        refuse(
            self.training.dry_run and self.probe,
            "--dry-run estimates trainings, but --probe trains no network",
        )

    @property
    def frozen(self) -> bool:
        """Whether only the head is trained."""
        return self.freeze or self.reference == "control"

    @property
    def changes(self) -> tuple[str, ...]:
        """Changed settings `KEY=VALUE`, see `config.split_changes`."""
        fraction = () if self.label_fraction is None else (f"label_fraction={self.label_fraction}",)
        stem = ("new_stem=true",) if self.new_stem else ()
        return self.training.all_changes + fraction + stem


# Options of `PredictOptions` that are used together.
USES = (
    "--model FILE --predict RECORDING --out PATH",
    "--model FILE --history",
    "--model FILE --save-predictions --out DIR",
    "--save-predictions",
    "--score DIR",
)


@Parameter(name="*", group=Group("Trained networks and predictions", sort_key=1))
@dataclass(frozen=True, kw_only=True)
class PredictOptions:
    """Options of drawing, measuring or saving what a trained network predicts, and of scoring."""

    model: Annotated[Path | None, Parameter(help="model.safetensors of a run")] = None
    history: Annotated[
        bool, Parameter(help="score the recurrent network by the windows before each label")
    ] = False
    predict: Annotated[str, Parameter(help="recording in the task's data, or a path")] = ""
    save_predictions: Annotated[
        bool, Parameter(help="save the scored predictions, of a run in runs/NAME/predictions")
    ] = False
    score: Annotated[
        Path | None, Parameter(help="folder of predictions to score, with --task and --data")
    ] = None
    out: Annotated[
        Path | None,
        output(*PICTURES, FOLDER),
        Parameter(help="picture, or folder of <recording>.png, numbered if it exists"),
    ] = None
    clip: Annotated[
        tuple[float, float], Parameter(show_default=False, help="FROM TO in s (default: 0 10)")
    ] = (0, 10)

    def __post_init__(self) -> None:
        values = {f"--{name.replace('_', '-')}": value for name, value in vars(self).items()}
        given = {option for option, value in values.items() if value and option != "--clip"}
        is_use = any(given == set(re.findall(r"--[a-z-]+", use)) for use in USES)
        refuse(
            bool(given) and not is_use,
            f"{', '.join(sorted(given))} cannot be used like this; give {', or '.join(USES)}",
        )


def check_cell(cell: CellOptions) -> None:
    """Refuse mistakes in the options of a cell before torch is imported, then register methods."""
    refuse(not (cell.method or cell.reference), "--method is required (see --list)")
    refuse(not cell.task, "--task is required (see --list)")
    check_method(cell.method, cell.plugins)
    of_cell, of_pretraining = split_changes(cell.changes)
    profile = cell.training.profile or "paper"
    cell_facts(str(cell.task), cell.arch, profile, of_cell, frozen=cell.frozen)
    refuse_unknown_changes(of_pretraining)
    register_methods()


def format_metrics(metrics: Numbers, digits: int = 2) -> str:
    """Write metrics on one line.

    Args:
        metrics: values by name; None is written as nan.
        digits: number of digits after the point.
    """
    return ", ".join(
        f"{name} {'nan' if value is None else f'{value:.{digits}f}'}"
        for name, value in metrics.items()
    )


def resolve_setup(setup: Setup, given: Sequence[str], profile: str | None, data: str) -> Setup:
    """Check a setup, and complete its CPU threads and the command that repeats the run.

    Args:
        setup: the options.
        given: arguments of the command line.
        profile: gives the number of threads, if neither the options nor torch's default shall.
        data: value of `--data`, "" for the default folder.

    Returns:
        The setup. Its command, for the record, lacks the seed and holds in any folder: its paths
        are absolute. It includes the number of threads of a CPU run.
    """
    import torch

    from tespec.training.device import choose_device, starting

    threads = setup.threads
    if profile and not threads:
        threads = next((p.threads for p in reversed(read_profiles(profile)) if p.threads), None)
    launched = [*starting(setup.launcher, os.environ), "-m", "tespec.cli"]
    program = ["tespec"] if setup.launcher == "none" else launched
    words = [*_repeated(given), *(["--data", data] if data else [])]
    if not threads and choose_device(setup.device).type == "cpu":
        words += ["--threads", str(torch.get_num_threads())]
    setup = replace(setup, threads=threads, command=shlex.join([*program, *words]))
    setup.prepare()
    return setup


def by_option(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the words of a command line with the option that each belongs to, such as "--data"."""
    option = ""
    for word in words:
        if word.startswith("--"):
            option = word.partition("=")[0]
        yield option, word


def _repeated(given: Sequence[str]) -> Iterator[str]:
    """Yield arguments without omitted options, and with absolute paths."""
    for option, word in by_option(given):
        if option in OMITTED:
            continue
        # of an option, and of weights in a setting
        prefix, value = re.findall(r"^((?:--[a-z-]+=)?(?:[\w.]+_weights=)?)(.*)", word, re.DOTALL)[
            0
        ]
        is_path = (
            option in ("--checkpoint", "--import", "--model", "--score")
            or (option in ("--task", "--profile") and value.endswith(".yaml"))
            or prefix.endswith("_weights=")
        )
        if is_path and not value.startswith(("--", "timm:")):
            value = os.path.abspath(value)
        yield prefix + value

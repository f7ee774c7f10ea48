"""Options shared by several commands, and functions that check and complete them."""

import os
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Group, Parameter
from cyclopts.types import PositiveFloat

from tespec.cli.main import FOLDER, PICTURES, output, refuse
from tespec.comparison.records import Numbers
from tespec.core.config import add_file, cell_facts, names, read_profiles, refuse_unknown_changes
from tespec.core.errors import UserError
from tespec.core.settings import parse_size, suggest
from tespec.registry import register_methods, shipped_methods
from tespec.runs.setup import Advanced, NonNegativeInt, PositiveInt, Setup

PROFILES = ", ".join(names("profiles"))
PRETRAINING = "pretraining."  # prefix of changed settings of a cell's pre-training
# Options that a record's command omits: they change no result, or the command ends in their values.
OMITTED = {
    *("--results", "--runs", "--workers", "--overwrite", "--check-data", "--track"),
    *("--data", "--seed", "--seeds", "--save-predictions"),
}
Given = Annotated[Sequence[str], Parameter(parse=False)]  # unparsed arguments of the command line
Words = Parameter(consume_multiple=True)  # several words behind one option
Seeds = Parameter(
    name=("--seed", "--seeds"),
    consume_multiple=True,
    show_default=False,
    help="random seeds, run in turn (default: 0)",
)
Plugins = Annotated[
    tuple[Path, ...],
    Advanced(name="--import", help="Python file that registers a method, ...; repeatable"),
]
Changes = Annotated[
    tuple[str, ...], Parameter(name="--set", help="KEY=VALUE: change a setting; repeatable")
]


def read_config(kind: str, name: str | None) -> str | None:
    """Add the file FILE.yaml to the configs, and return its name.

    Args:
        kind: "tasks", "profiles" or "plans".
        name: name of a config, which is returned as it is, or a path that ends in .yaml.
    """
    return add_file(kind, Path(name)) if name and name.endswith(".yaml") else name


def check_names(plugins: Sequence[Path], data: Path | None, **named: str | None) -> None:
    """Refuse missing files and unknown names, before torch is imported unless a plug-in does.

    Args:
        plugins: files given to --import, which are imported here, as they may register names.
        data: file or folder given to --data.
        named: values of --task, --profile and --method.
    """
    for path in (*plugins, data):
        if path and path != Path("sample") and not path.exists():
            raise UserError(path, "no such file or folder", "check the path")
    if plugins:
        register_methods(plugins)
    known = {
        "task": names("tasks"),
        "profile": names("profiles"),
        "method": [] if plugins else shipped_methods(),
    }
    for option, name in named.items():
        if name is not None and known[option] and name not in known[option]:
            remedy = suggest(name, known[option])
            if option == "method":
                remedy += "; --import FILE.py adds your own"
            raise UserError(f"--{option} {name[:100]}", f"unknown {option}", remedy)


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
        Parameter(help=f"{PROFILES}, or FILE.yaml (default: sample on sample data, else paper)"),
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
    task: Annotated[str | None, Parameter(help=f"{', '.join(names('tasks'))}, or FILE.yaml")] = None
    arch: Annotated[
        Literal["recurrent", "feedforward"], Parameter(help="architecture of the backbone")
    ] = "recurrent"
    data: Annotated[
        Path | None, Parameter(help="DIR or sample (default: $TESPEC_DATA/<task>, ./data/<task>)")
    ] = None
    split: Annotated[
        Literal["test", "val"], Parameter(help="split to score; choose settings on val")
    ] = "test"
    seeds: Annotated[tuple[NonNegativeInt, ...], Seeds] = (0,)
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
        """Changed settings `KEY=VALUE`, with a prefix for those of the pre-training."""
        fraction = () if self.label_fraction is None else (f"label_fraction={self.label_fraction}",)
        stem = ("new_stem=true",) if self.new_stem else ()
        return self.training.all_changes + fraction + stem

    @property
    def finetuning_changes(self) -> tuple[str, ...]:
        """Changed settings of the fine-tuning."""
        return tuple(change for change in self.changes if not change.startswith(PRETRAINING))

    @property
    def pretraining_changes(self) -> tuple[str, ...]:
        """Changed settings of the pre-training, without their prefix."""
        changes = (change for change in self.changes if change.startswith(PRETRAINING))
        return tuple(change.removeprefix(PRETRAINING) for change in changes)


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
    task = read_config("tasks", cell.task)
    profile = read_config("profiles", cell.training.profile)
    has_method = cell.method or cell.reference
    missing = [name for name, given in (("--method", has_method), ("--task", task)) if not given]
    verb = "are" if len(missing) > 1 else "is"
    refuse(bool(missing), f"{' and '.join(missing)} {verb} required (see --list)")
    check_names(cell.plugins, cell.data, method=cell.method, task=task, profile=profile)
    cell_facts(
        str(task), cell.arch, profile or "paper", cell.finetuning_changes, frozen=cell.frozen
    )
    refuse_unknown_changes(cell.pretraining_changes)
    register_methods()


def network_of(backbone: str | None, method: Any) -> str:
    """Check that a method can train a backbone.

    Args:
        backbone: name of an architecture, or None.
        method: class of the method.

    Returns:
        The backbone, or for None the method's kind of network.
    """
    if backbone is None:
        return method.network
    method.require_backbone(backbone)
    return backbone


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
    program = ["tespec"]
    if setup.launcher != "none":
        program = [*starting(setup.launcher, os.environ), "-m", "tespec.cli"]
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

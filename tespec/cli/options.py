"""Options shared by multiple commands, and their processing."""

import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from tespec.cli.main import refuse
from tespec.comparison.records import Numbers
from tespec.core.config import add_file, names, read_profiles
from tespec.core.errors import UserError
from tespec.core.settings import parse_size, suggest
from tespec.registry import shipped_methods
from tespec.runs.setup import Advanced, PositiveInt, Setup

PROFILES = ", ".join(names("profiles"))
PLACES = {"--results", "--runs", "--workers"}  # options with a value that do not affect results
Given = Annotated[Sequence[str], Parameter(parse=False)]  # unparsed arguments of the command line
Words = Parameter(consume_multiple=True)  # several words behind one option
Plugins = Annotated[
    tuple[Path, ...],
    Advanced(name="--import", help="Python file that registers a method, ...; repeatable"),
]
Changes = Annotated[
    tuple[str, ...], Parameter(name="--set", help="KEY=VALUE: change a setting; repeatable")
]


def read_config(kind: str, name: str | None) -> str | None:
    """Return the name of a config; FILE.yaml is added to the known configs, under the file's stem."""
    return add_file(kind, Path(name)) if name and name.endswith(".yaml") else name


def require_known(plugins: Sequence[Path], data: Path | None, **given: str | None) -> None:
    """Refuse a missing file or folder and an unknown task, profile or method, before torch is imported."""
    for path in (*plugins, data):
        if path and path != Path("sample") and not path.exists():
            raise UserError(path, "no such file or folder", "check the path")
    if plugins:
        return  # plug-ins may register more
    known = {"task": names("tasks"), "profile": names("profiles"), "method": shipped_methods()}
    for option, name in given.items():
        if name is not None and known[option] and name not in known[option]:
            own = "; --import FILE.py adds your own" * (option == "method")
            raise UserError(
                f"--{option} {name[:100]}", f"unknown {option}", suggest(name, known[option]) + own
            )


def _size(kind: type, tokens: Any) -> str:
    parse_size(tokens[0].value)
    return str(tokens[0].value)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Changed:
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
class Choices(Changed):
    """Options shared by `run` and `pretrain`."""

    profile: Annotated[
        str | None,
        Parameter(help=f"{PROFILES}, or FILE.yaml (default: sample on sample data, else paper)"),
    ] = None
    backbone: Annotated[
        str | None,
        Parameter(help="swin_tiny, swin_micro, resnet50, maxvit_base (default: the method's)"),
    ] = None
    dry_run: Annotated[
        bool, Parameter(help="print settings, FLOPs, memory and GPU hours; train nothing")
    ] = False
    gpus: Annotated[PositiveInt, Advanced(help="GPUs that share the batch, for --dry-run")] = 1

    def __post_init__(self) -> None:
        refuse(
            self.gpus > 1 and not self.dry_run,
            "--gpus requires --dry-run; use --launcher for multiple processes",
        )


def network_of(backbone: str | None, method: Any) -> str:
    """Return the architecture `backbone` if the class `method` can have it, or the method's kind of network if None."""
    if backbone is None:
        return method.network
    from tespec.models import EventSwin
    from tespec.models.backbone import backbones

    known = backbones()
    if backbone not in known:
        raise UserError(
            f"--backbone {backbone[:100]}", "unknown backbone", suggest(backbone, known)
        )
    if getattr(method, "masks_patches", False) and not issubclass(known[backbone], EventSwin):
        what = f"has no patches that {method.row.title} could mask"
        swins = ", ".join(each for each in known if issubclass(known[each], EventSwin))
        raise UserError(f"--backbone {backbone}", what, f"choose from {swins}")
    return backbone


def numbers_of(metrics: Numbers, digits: int = 2) -> str:
    """Metrics on one line, rounded to `digits` after the point."""
    return ", ".join(
        f"{name} {'nan' if value is None else f'{value:.{digits}f}'}"
        for name, value in metrics.items()
    )


def prepared(setup: Setup, given: Sequence[str], profile: str | None) -> Setup:
    """Check the setup, set its CPU threads, by default those of `profile`, and add the command for records.

    The command reproduces the run on any machine: it omits folders, and includes the number of
    threads of a CPU run.
    """
    import torch

    from tespec.training.device import choose_device, starting

    program = (
        ["tespec"]
        if setup.launcher == "none"
        else [*starting(setup.launcher, os.environ), "-m", "tespec.cli"]
    )
    stated = [each.threads for each in read_profiles(profile) if each.threads] if profile else []
    threads = setup.threads or (stated[-1] if stated else None)
    taken = (
        []
        if threads or choose_device(setup.device).type != "cpu"
        else ["--threads", str(torch.get_num_threads())]
    )
    words = [
        word
        for before, word in pairwise(("", *given))
        if not {before, word.partition("=")[0]} & PLACES
    ]
    kept = (word.replace(f"{setup.runs.absolute()}/", "runs/") for word in words)
    setup = replace(setup, threads=threads, command=shlex.join([*program, *kept, *taken]))
    setup.prepare()
    return setup

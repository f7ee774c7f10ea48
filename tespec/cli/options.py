"""Options that several command lines share, each declared once, and what they do."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from tespec.cli.command import by_installed_command, refuse
from tespec.core import config
from tespec.core.config import names
from tespec.core.errors import UserError
from tespec.core.registry import register_methods, shipped_methods
from tespec.core.settings import parse_size, suggest
from tespec.runs.setup import ADVANCED, PositiveInt, Setup
from tespec.training.launch import starting

if TYPE_CHECKING:
    from tespec.pretraining.method import Method

# Options that decide nothing about a result, with a value and without.
PLACES = ("--results", "--runs", "--workers", "--track")
SWITCHES = ("--overwrite", "--no-picture")

Given = Annotated[Sequence[str], Parameter(parse=False)]  # the words of the command line
Sensor = Annotated[str | None, Parameter(group=ADVANCED, help="WIDTHxHEIGHT in px of recordings that do not name it")]
Changes = Annotated[tuple[str, ...], Parameter(name="--set", help="KEY=VALUE: change a setting; repeatable")]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Own:
    """Code and configs of one's own."""

    plugins: Annotated[
        tuple[Path, ...],
        Parameter(name="--import", group=ADVANCED, help="Python file that registers a method, ...; repeatable"),
    ] = ()
    configs: Annotated[
        tuple[Path, ...],
        Parameter(group=ADVANCED, help="folder laid out like configs/, read as well; repeatable"),
    ] = ()

    def read(self, task: str | None = None) -> str | None:
        """Read the configs too; a task that is a file's name becomes that config's."""
        for folder in self.configs:
            config.add_folder(folder)
        return config.add_file("tasks", Path(task)) if task and task.endswith(".yaml") else task

    def require(self, **given: str | None) -> None:
        """Refuse a task, a profile or a method that does not exist, before torch is imported.

        Raises:
            UserError: names the nearest, or all of them.
        """
        if self.plugins:
            return  # which may bring any of them
        known = {"task": names("tasks"), "profile": names("profiles"), "method": shipped_methods()}
        for option, name in given.items():
            if name is not None and known[option] and name not in known[option]:
                raise UserError(f"--{option} {name[:100]}", f"unknown {option}", suggest(name, known[option]))

    def load(self, *, only_given: bool = False) -> None:
        """Register every method and what --import names; `only_given`: nothing where it names none."""
        if self.plugins or not only_given:
            register_methods(self.plugins)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Choices:
    """Settings that `run` and `pretrain` are called with."""

    profile: Annotated[
        str | None, Parameter(help=f"{', '.join(names('profiles'))} (default: sample for the sample world, else paper)")
    ] = None
    changes: Changes = ()
    backbone: Annotated[
        str | None, Parameter(help="tiny, micro, resnet50, maxvit-base or a plug-in's (default: the method's)")
    ] = None
    dry_run: Annotated[bool, Parameter(help="print settings, FLOPs, memory and GPU hours; train nothing")] = False
    gpus: Annotated[PositiveInt, Parameter(group=ADVANCED, help="of --dry-run: split the batch over so many GPUs")] = 1
    sensor: Sensor = None

    def __post_init__(self) -> None:
        refuse(self.gpus > 1 and not self.dry_run, "--gpus goes with --dry-run; --launcher starts several processes")

    @property
    def all_changes(self) -> tuple[str, ...]:
        """The changed settings, the size of the sensor included."""
        return with_sensor(self.changes, self.sensor)

    def network(self, method: type[Method]) -> str:
        """What decides the network: the architecture that --backbone names, else the kind of network of the method.

        Raises:
            UserError: no backbone has this architecture, or the method masks patches that it does not have.
        """
        if self.backbone is None:
            return method.network
        from tespec.models import EventSwin
        from tespec.models.backbone import architectures

        name, known = self.backbone, architectures()
        if name not in known:
            raise UserError(f"--backbone {name[:100]}", "unknown backbone", suggest(name, known))
        if getattr(method, "masks_patches", False) and not issubclass(known[name], EventSwin):
            what = f"has no patches that {method.title} could mask"
            swins = ", ".join(each for each in known if issubclass(known[each], EventSwin))
            raise UserError(f"--backbone {name}", what, f"choose from {swins}")
        return name


def with_sensor(changes: Sequence[str], sensor: str | None) -> tuple[str, ...]:
    """Changed settings with that of the sensor's size.

    Raises:
        UserError: it is no size.
    """
    if sensor is None:
        return tuple(changes)
    parse_size(sensor)
    return (*changes, f"sensor_px={sensor}")


def prepared(setup: Setup, verb: str, given: Sequence[str], profile: str | None) -> Setup:
    """The setup with the command for records, checked and with its threads set; `profile` may set the CPU threads."""
    import torch

    from tespec.core.config import threads_of
    from tespec.training.device import choose_device

    on_cpu = choose_device(setup.device).type == "cpu"
    threads = setup.threads or (threads_of(profile) if profile else None)
    taken = ["--threads", str(torch.get_num_threads())] if on_cpu and not threads else []
    words = [*_started(setup.launcher, verb), *(_anywhere(each, setup.runs) for each in _deciding(given)), *taken]
    setup = replace(setup, threads=threads, command=shlex.join(words))
    setup.prepare()
    return setup


def _started(launcher: str, verb: str) -> list[str]:
    """How a command line begins that starts as many processes."""
    if launcher == "none":
        return ["tespec", verb] if by_installed_command() else ["python", f"benchmarks/{verb}.py"]
    script = ["-m", "tespec.cli", verb] if by_installed_command() else [f"benchmarks/{verb}.py"]
    return [*starting(launcher, os.environ), *script]


def _deciding(arguments: Sequence[str]) -> list[str]:
    """A command line without what changes no result: where things are kept, and whether a run goes on."""
    kept: list[str] = []
    passed = False
    for each in arguments:
        if passed:
            passed = False
        elif each in PLACES:
            passed = True
        elif each not in SWITCHES and not each.startswith(tuple(f"{name}=" for name in PLACES)):
            kept.append(each)
    return kept


def _anywhere(word: str, runs: Path) -> str:
    """A word of a command whose files in the folder of runs are named as if it were `runs`."""
    return word.replace(f"{runs.absolute()}/", "runs/")

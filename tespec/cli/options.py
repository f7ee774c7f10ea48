"""Options that the training command lines share."""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tespec.cli.command import by_installed_command
from tespec.cli.cost import add_cost_options
from tespec.core.config import names
from tespec.core.errors import UserError
from tespec.core.paths import RESULTS, RUNS, cache_root
from tespec.core.registry import shipped_methods
from tespec.core.settings import parse_size, suggest
from tespec.training.launch import LAUNCHERS, starting

if TYPE_CHECKING:
    from tespec.pretraining.method import Method
    from tespec.runs.setup import Setup


# As in tespec/training/hooks.py, which takes long to import.
TRACKERS = ("files", "tensorboard", "wandb", "mlflow")
# Options that decide nothing about a result, with a value and without.
PLACES = ("--results", "--runs", "--workers", "--track")
SWITCHES = ("--overwrite", "--no-picture")
# As a shell on any machine finds the folder of `cache_root`.
CACHE = '"${TESPEC_CACHE:-$HOME/.cache/tespec}"'


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """Add what decides how and where a run is carried out."""
    group = parser.add_argument_group("how and where")
    group.add_argument("--seed", type=whole_number, default=0, help="decides everything random (default 0)")
    profiles = ", ".join(names("profiles"))
    group.add_argument("--profile", help=f"{profiles} (default: sample for the sample world, else paper)")
    group.add_argument("--backbone", metavar="NAME",
                       help="tiny, micro, resnet50, maxvit-base or a plug-in's (default: the method's)")  # fmt: skip
    group.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="change a setting; repeatable")
    add_sensor(group)
    group.add_argument("--device", help="cpu, cuda or cuda:N (default: a GPU where there is one)")
    group.add_argument("--threads", type=positive, metavar="N",
                       help="CPU threads (default: the profile's, or what torch takes)")  # fmt: skip
    group.add_argument("--workers", type=whole_number, metavar="N",
                       help="processes that prepare batches (default: chosen on a GPU, 0 on a CPU)")  # fmt: skip
    group.add_argument(
        "--launcher", choices=("none", *LAUNCHERS), default="none", help="what started the processes of this run"
    )
    group.add_argument("--accumulate", type=positive, default=1, metavar="N",
                       help="gradient accumulation steps: less memory for the same batch (default 1)")  # fmt: skip
    group.add_argument(
        "--enlarge-batch",
        action="store_true",
        help="round the batch up to the next size the processes can share; recorded as another run, same learning rate",
    )
    group.add_argument("--results", type=Path, default=RESULTS, help="folder of records, tables and pictures")
    group.add_argument("--runs", type=Path, default=RUNS, help="folder of checkpoints and weights")
    group.add_argument("--overwrite", action="store_true",
                       help="start again despite a result or checkpoint (default: load, resume)")  # fmt: skip
    group.add_argument("--deterministic", action="store_true", help="repeat to the bit on a GPU as well; slower")
    group.add_argument(
        "--recompute", action="store_true", help="activation checkpointing: less memory, a third more time"
    )
    group.add_argument("--fused-attention", action=argparse.BooleanOptionalAction, default=None,
                       help="fused attention in the backbone (default: on a GPU, if not --deterministic)")  # fmt: skip
    group.add_argument("--compile", action="store_true",
                       help="compile the backbone's stages and ConvLSTMs; needs a C++ compiler")  # fmt: skip
    group.add_argument(
        "--count-on-device",
        action="store_true",
        help="send packed events to the device and count histograms there: the same bytes, less work for --workers",
    )
    group.add_argument("--track", choices=TRACKERS, help="also log to this tracker")
    add_own(group)
    dry = parser.add_argument_group("cost before the run")
    dry.add_argument("--dry-run", action="store_true", help="print settings and cost; train and write nothing")
    dry.add_argument("--gpus", type=positive, default=1, metavar="N", help="forecast for so many GPUs (default 1)")
    add_cost_options(dry)


def refuse_forecast(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Refuse options of a forecast where a run was asked for."""
    if not options.dry_run and (options.gpu or options.share or options.gpus > 1):
        parser.error("--gpu, --gpus and --share go with --dry-run; --device and --launcher say where a run computes")


def add_own(group: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """Add what brings in code and configs of one's own; `load_plugins` acts on it."""
    group.add_argument("--import", action="append", type=Path, default=[], dest="plugins", metavar="FILE",
                       help="Python file that registers a method, a data set, ...; it is run; repeatable")  # fmt: skip
    group.add_argument("--configs", action="append", type=Path, default=[], metavar="DIR",
                       help="folder laid out like configs/, whose files are found by name too; repeatable")  # fmt: skip


def add_sensor(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """Add the size of the sensor, which becomes the setting `sensor_px`; the parser has `--set` as well."""
    parser.add_argument("--sensor", action=_Sensor, metavar="WIDTHxHEIGHT",
                        help="in px, of recordings that do not name it; as --set sensor_px=WIDTHxHEIGHT")  # fmt: skip


class _Sensor(argparse.Action):
    """Checks the size and puts it among the changed settings too."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        try:
            parse_size(str(values))
        except UserError as error:
            parser.error(str(error))
        namespace.sensor = str(values)
        namespace.set = [*namespace.set, f"sensor_px={values}"]


def whole_number(text: str) -> int:
    """A whole number from 0 on, from the command line."""
    return _at_least(0, text)


def positive(text: str) -> int:
    """A whole number from 1 on, from the command line."""
    return _at_least(1, text)


def _at_least(least: int, text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = least - 1
    if number < least:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number; give {least} or more")
    return number


def setup_of(options: argparse.Namespace, verb: str) -> Setup:
    """How and where, from the parsed options; the command line is kept for records."""
    from tespec.core.config import threads_of
    from tespec.models.execution import Execution
    from tespec.runs.setup import Setup

    threads = options.threads or (threads_of(options.profile) if options.profile else None)
    taken = [] if threads else _threads(options.device)
    return Setup(
        results=options.results,
        runs=options.runs,
        device=options.device,
        workers=options.workers,
        overwrite=options.overwrite,
        track=options.track,
        deterministic=options.deterministic,
        accumulate=options.accumulate,
        enlarge_batch=options.enlarge_batch,
        variant=options.variant,
        execution=Execution(options.recompute, options.fused_attention, options.compile),
        count_on_device=options.count_on_device,
        threads=threads,
        command=" ".join(
            [
                shlex.join(_started(options.launcher, verb)),
                *(_word(each, options.runs) for each in _deciding(options.given)),
                *taken,
            ]
        ),
    )


def _threads(device: str | None) -> list[str]:
    """Option for as many threads as the machine gives this run; none on a GPU."""
    import torch

    from tespec.training.device import choose_device

    return ["--threads", str(torch.get_num_threads())] if choose_device(device).type == "cpu" else []


def _started(launcher: str, verb: str) -> list[str]:
    """How a command line begins that starts as many processes."""
    if by_installed_command():
        script = ["-m", "tespec.cli", verb]
        if launcher == "none":
            return ["tespec", verb]
    else:
        script = [f"benchmarks/{verb}.py"]
    return ["python", *script] if launcher == "none" else [*starting(launcher, os.environ), *script]


def _deciding(arguments: list[str]) -> list[str]:
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


def _word(argument: str, runs: Path) -> str:
    """A word of a command as a shell reads it; of a file that the harness makes, where it lies on any machine.

    Args:
        argument: as given.
        runs: folder of the run's own weights, which stands for the usual one.
    """
    option, equals, value = argument.partition("=")
    if equals and option.startswith("--"):
        return f"{shlex.quote(option)}={_word(value, runs)}"
    if (path := Path(argument)).is_absolute():
        for folder, usual in ((runs.absolute(), RUNS.name), (cache_root().absolute(), CACHE)):
            if path.is_relative_to(folder) and path != folder:
                return f"{usual}/{shlex.quote(path.relative_to(folder).as_posix())}"
    return shlex.quote(argument)


def add_configs(options: argparse.Namespace) -> None:
    """Read configs from the folders named with --configs too; a task that is a file's name becomes that config's."""
    from tespec.core import config

    for folder in options.configs:
        config.add_folder(folder)
    if (task := getattr(options, "task", None)) and task.endswith(".yaml"):
        options.task = config.add_file("tasks", Path(task))


def load_plugins(options: argparse.Namespace, *, only_given: bool = False) -> None:
    """Add configs of one's own, and register every method and what --import names.

    Args:
        options: parsed.
        only_given: register nothing where no file is named, since that takes seconds.
    """
    add_configs(options)
    refuse_unknown_names(options)
    if options.plugins or not only_given:
        from tespec.core.registry import register_methods

        register_methods(options.plugins)


def network_of(options: argparse.Namespace, method: type[Method]) -> str:
    """What decides the network: the architecture that --backbone names, else the kind of network of the method.

    Raises:
        UserError: no backbone has this architecture, or the method masks patches that it does not have.
    """
    if options.backbone is None:
        return method.network
    from tespec.models import EventSwin
    from tespec.models.backbone import architectures

    name, known = options.backbone, architectures()
    if name not in known:
        raise UserError(f"--backbone {name[:100]}", "unknown backbone", suggest(name, known))
    if getattr(method, "masks_patches", False) and not issubclass(known[name], EventSwin):
        swins = ", ".join(each for each in known if issubclass(known[each], EventSwin))
        raise UserError(f"--backbone {name}", f"has no patches that {method.title} could mask", f"choose from {swins}")
    return str(name)


def refuse_unknown_names(options: argparse.Namespace) -> None:
    """Refuse a task, a profile or a method that does not exist, before torch is imported.

    Raises:
        UserError: names the nearest, or all of them.
    """
    if options.plugins:
        return  # which may bring any of them
    known = {"task": names("tasks"), "profile": names("profiles"), "method": shipped_methods()}
    for option, choices in known.items():
        given = getattr(options, option, None)
        if given is not None and choices and given not in choices:
            raise UserError(f"--{option} {given[:100]}", f"unknown {option}", suggest(given, choices))

"""Fine-tune and evaluate one cell of the tables.

python benchmarks/run.py --method tespec --task ddd17
python benchmarks/run.py --method scratch --task ddd17 --arch feedforward --data /data/ddd17
python benchmarks/run.py --method tespec --task ddd17 --split val --set optimisation.peak_lr=5e-4   # to choose settings
python benchmarks/run.py --method tespec --task ddd17 --probe
python benchmarks/run.py --reference prior --task ddd17       # the label prior, which ignores the input
python benchmarks/run.py --method scratch --task ddd17 --predict dir1 --out pictures
python benchmarks/run.py --model runs/evaluation-.../model.safetensors --predict drive.raw --out pictures
python benchmarks/run.py --list
python benchmarks/run.py --describe tespec
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

# Heavy imports stand inside the functions: mistakes on the command line are answered at once, and what a broken
# installation raises on import is answered in one line.
from tespec.cli.command import Parser
from tespec.core.errors import UserError, one_line

if TYPE_CHECKING:
    from tespec.comparison.records import Numbers, Record
    from tespec.core.settings import Finetuning
    from tespec.runs.data import Data
    from tespec.runs.setup import Setup

REFERENCES = ("prior",)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    from tespec.cli.options import add_run_options, refuse_forecast, whole_number
    from tespec.core.settings import ARCHITECTURES

    parser = Parser(verb="run", description=__doc__)
    what = parser.add_argument_group("what")
    what.add_argument("--method", help="how the backbone starts; --list names them")
    what.add_argument("--task", help="what it is fine-tuned on; --list names them")
    what.add_argument("--arch", choices=ARCHITECTURES, default="recurrent", help="default: recurrent")
    what.add_argument("--data", type=Path, metavar="ROOT", help="the task's data, or sample: the sample world "
                      "(default: $TESPEC_DATA/<task>, ./data/<task>)")  # fmt: skip
    what.add_argument("--split", choices=("test", "val"), default="test",
                      help="recordings that are scored: val to choose settings, test to report (default)")  # fmt: skip
    what.add_argument("--checkpoint", type=Path, metavar="FILE", help="weights the method starts from, or timm:NAME")
    what.add_argument("--seeds", type=whole_number, nargs="+", metavar="N", help="several seeds, one after the other")
    what.add_argument("--pretraining-seed", type=whole_number, metavar="N",
                      help="of the pre-training on the sample world that it starts from (default: own)")  # fmt: skip
    what.add_argument("--freeze", action="store_true", help="train the head alone, on a frozen backbone")
    what.add_argument("--probe", action="store_true", help="linear and k-NN probe of the frozen backbone")
    what.add_argument("--reference", choices=REFERENCES, help="not a method but the label prior, without input")
    what.add_argument("--variant", default="", metavar="NAME", help="row of an ablation, for the record")
    what.add_argument("--no-picture", action="store_true", help="draw no strip of the scored recordings into --results")
    what.add_argument("--list", action="store_true", help="list methods and tasks")
    what.add_argument("--describe", metavar="NAME", help="describe a method or a task")
    drawn = parser.add_argument_group("pictures of predictions")
    drawn.add_argument("--predict", metavar="RECORDING", help="name in the task's data, or a path; drawn after the run")
    drawn.add_argument("--model", type=Path, metavar="FILE", help="model.safetensors of a run, in place of a new run")
    drawn.add_argument("--out", type=Path, metavar="DIR", help="folder for a figure (PNG) and a video (GIF)")
    drawn.add_argument("--clip", type=float, nargs=2, metavar=("FROM", "TO"),
                       help="seconds that are drawn (default: 0 10)")  # fmt: skip
    drawn.add_argument("--min-score", type=float, help="of boxes that are drawn (default: 0.3)")
    add_run_options(parser)
    options = parser.parse_args(arguments)
    if options.reference and (options.method or options.probe or options.predict or options.checkpoint):
        parser.error("--reference stands alone: no --method, --probe, --predict or --checkpoint")
    if options.backbone and (options.reference or options.model):
        parser.error("--backbone goes with --method: --reference has none, and --model has its own")
    refuse_forecast(parser, options)
    if options.reference and options.dry_run:
        parser.error("--dry-run: --method scratch --arch feedforward --dry-run prints what such a run costs")
    if options.freeze and (options.reference or options.probe or options.model):
        parser.error("--freeze goes with a fine-tuning: no --reference, --probe or --model")
    if options.probe and options.predict:
        parser.error("--probe trains no model that could --predict")
    if bool(options.predict) != bool(options.out):
        parser.error("--predict RECORDING and --out DIR go together")
    if not options.predict and (options.clip, options.min_score) != (None, None):
        parser.error("--clip and --min-score go with --predict RECORDING")
    if options.seeds and options.seed:
        parser.error("--seed and --seeds: give one of them")
    if options.model and not options.predict:
        parser.error("--model goes with --predict RECORDING")
    if not (options.list or options.describe or options.model) and not (
        (options.method or options.reference) and options.task
    ):
        parser.error("--method and --task are needed (--list names them)")
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what the command line says."""
    options = parse(arguments)
    from tespec.cli.options import load_plugins

    load_plugins(options)
    if options.list:
        print_list()
    elif options.describe:
        describe(options.describe, options.profile or "paper", options.set)
    elif options.model:
        draw_predictions(options, options.model)
    elif options.dry_run:
        dry_run(options)
    else:
        from tespec.training.device import denormals_flushed
        from tespec.training.launch import launched

        with launched(options.launcher, options.device), denormals_flushed():
            (measure_reference if options.reference else run_cell)(options)


def run_cell(options: argparse.Namespace) -> None:
    """Fine-tune, evaluate, record."""
    from tespec.cli.options import setup_of
    from tespec.core.distributed import is_first
    from tespec.pretraining.method import find_method
    from tespec.runs.finetune import Wanted, finetune
    from tespec.runs.probe import probe
    from tespec.runs.run import WEIGHTS
    from tespec.runs.setup import check_places
    from tespec.weights.export import fetch

    setup, method = setup_of(options, "run"), find_method(options.method)
    check_places(setup)
    settings, recipe, data = resolve(options)
    if recipe and (method.recipe is None or options.checkpoint):
        raise UserError(f"--set pretraining.{recipe[0]}", "this run does no pre-training", "leave it out")
    first = options.pretraining_seed
    if first is not None and (method.recipe is None or options.checkpoint):
        raise UserError(f"--pretraining-seed {first}", "this run does no pre-training", "leave it out")
    checkpoint = fetch(options.checkpoint)
    measure = probe if options.probe else finetune
    for seed in options.seeds or [options.seed]:
        wanted = Wanted(
            options.method,
            method,
            settings,
            data,
            checkpoint,
            seed,
            setup,
            recipe,
            options.split,
            first,
            options.freeze,
        )
        record = measure(wanted)
        if is_first():
            print_result(record)
            if not (options.probe or options.no_picture):
                draw_strip_of(record, setup, data.root)
    if options.predict and is_first():
        draw_predictions(options, setup.runs / record.name / WEIGHTS, data.root)


def measure_reference(options: argparse.Namespace) -> None:
    """Score the label prior of a task, and record it."""
    from tespec.cli.options import setup_of
    from tespec.core.progress import say
    from tespec.runs.data import find_data, settings_of
    from tespec.runs.references import label_prior
    from tespec.runs.setup import check_places

    setup = setup_of(options, "run")
    check_places(setup)
    data = find_data(options.task, options.data, options.profile)
    if data.notice:
        say(data.notice)
    settings = settings_of(data, options.task, "feedforward", options.profile, options.set)
    for seed in options.seeds or [options.seed]:
        print_result(label_prior(settings, data, seed, setup, options.split))


def draw_strip_of(record: Record, setup: Setup, root: Path) -> None:
    """Draw what the run's network says, where that was not done; a picture is no reason to lose a result."""
    from tespec.core.progress import say
    from tespec.inference.predict import draw_strip
    from tespec.runs.run import WEIGHTS
    from tespec.training.device import choose_device

    weights = setup.runs / record.name / WEIGHTS
    picture = setup.picture(record.name)
    if picture.is_file() or not weights.is_file():
        return
    try:
        draw_strip(weights, root, choose_device(setup.device), picture, record.split)
    # Whatever goes wrong in drawing (memory is short, say), the record is written and the next seed waits.
    except Exception as error:
        say(f"no picture: {one_line(str(error)) or type(error).__name__}")


def draw_predictions(options: argparse.Namespace, weights: Path, root: Path | None = None) -> None:
    """Draw what a trained model says of a recording."""
    from tespec.inference.load import read_settings
    from tespec.inference.predict import MIN_SCORE, predict
    from tespec.runs.data import find_data
    from tespec.training.device import choose_device

    if not weights.is_file():
        remedy = "name a model.safetensors of runs/" if options.model else "give --overwrite to train again"
        raise UserError(weights, "no such file" if options.model else "the weights of this run are gone", remedy)
    if root is None and not Path(options.predict).exists():
        trained = read_settings(weights)
        root = find_data(trained.task, options.data, trained.profile).root
    drawn = predict(
        weights,
        options.predict,
        options.out,
        choose_device(options.device),
        root=root,
        clip=options.clip or (0.0, 10.0),
        min_score=MIN_SCORE if options.min_score is None else options.min_score,
        sensor_px=options.sensor,
    )
    print(f"{drawn.moments} windows, {drawn.labelled} of them labelled: {drawn.figure}, {drawn.video}")


def resolve(options: argparse.Namespace) -> tuple[Finetuning, tuple[str, ...], Data]:
    """Settings of the cell, changes to its pre-training, and its data."""
    from tespec.cli.options import network_of
    from tespec.core.config import finetuning_settings
    from tespec.core.progress import say
    from tespec.pretraining.method import find_method
    from tespec.runs.data import find_data, settings_of

    prefix = "pretraining."
    own = [change for change in options.set if not change.startswith(prefix)]
    recipe = tuple(change.removeprefix(prefix) for change in options.set if change.startswith(prefix))
    # Mistakes in the settings come to light before any data is made.
    method = find_method(options.method)
    method.require(options.method, options.arch)
    profile = options.profile or find_data(options.task, options.data, make=False).profile
    network = network_of(options, method)
    finetuning_settings(options.task, options.arch, profile, own, network=network)
    data = find_data(options.task, options.data, options.profile)
    if data.notice:
        say(data.notice)
    settings = settings_of(data, options.task, options.arch, options.profile, own, network)
    return settings, recipe, data


def print_list() -> None:
    """Print methods and tasks, a line each."""
    from tespec.core.config import names
    from tespec.core.registry import METHODS

    print("methods")
    for name, method in sorted(METHODS.module_dict.items()):
        print(f"  {name:13} {method.title}: {method.summary}")
    print("tasks\n  " + "\n  ".join(names("tasks")))
    print("profiles\n  " + "\n  ".join(names("profiles")))


def describe(name: str, profile: str, changes: Sequence[str]) -> None:
    """Print what is known of a method, or the settings of a task under a profile and changes."""
    import yaml

    from tespec.core.config import as_facts, finetuning_settings, names
    from tespec.core.settings import ARCHITECTURES
    from tespec.pretraining.method import find_method

    if name in names("tasks"):
        facts = {arch: as_facts(finetuning_settings(name, arch, profile, changes)) for arch in ARCHITECTURES}
    else:
        facts = find_method(name).facts()
    print(yaml.safe_dump({name: facts}, sort_keys=False, allow_unicode=True, width=100).rstrip())


def dry_run(options: argparse.Namespace) -> None:
    """Print the settings and the cost of the run."""
    from tespec.cli.cost import print_cost
    from tespec.cli.options import network_of
    from tespec.core.config import finetuning_settings
    from tespec.pretraining.method import find_method
    from tespec.runs.cost import estimate_cell, input_of, planned_data
    from tespec.runs.finetune import with_start

    method = find_method(options.method)
    method.require(options.method, options.arch)
    own = [change for change in options.set if not change.startswith("pretraining.")]
    recipe = [change.removeprefix("pretraining.") for change in options.set if change not in own]
    data = planned_data(options.task, options.data, options.profile)
    network = network_of(options, method)
    settings = finetuning_settings(options.task, options.arch, data.profile, own, data.overrides, network)
    settings = with_start(settings, options.method, method, options.checkpoint, sample=data.is_sample, changes=recipe)
    estimate = estimate_cell(settings, input_of(settings, options.task, data.sensor))
    if options.freeze:
        estimate.model.freeze_backbone()
    print_cost(estimate, data.title, options)


def print_result(record: Record) -> None:
    """Print the scores of a record and where they belong."""
    split = "" if record.split == "test" else f", {record.split} split"
    print(f"{record.method} on {record.task} ({record.arch}, data: {record.data}{split}): {_numbers(record.metrics)}")
    for name, each in record.groups.items():
        if not name.startswith("stage "):
            print(f"  {name}: {_numbers(each)}")
    ranks = [each["rank"] or 0.0 for name, each in sorted(record.groups.items()) if name.startswith("stage ")]
    if ranks:
        said = ", ".join(f"{rank:.1f}" for rank in ranks)
        print(f"  rank of the features of stages 1 to {len(ranks)} after training: {said}")


def _numbers(metrics: Numbers) -> str:
    return ", ".join(f"{name} {'nan' if value is None else f'{value:.2f}'}" for name, value in metrics.items())

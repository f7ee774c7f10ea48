"""Fine-tune and evaluate one cell of the tables; pre-train a backbone without labels."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

# `tespec.cli.cells`, which needs torch, is imported inside functions: mistakes on the command line
# are reported immediately, and import errors of a broken installation in one line.
from tespec.cli.main import examples, new_app
from tespec.cli.options import (
    CellOptions,
    Given,
    Plugins,
    PredictOptions,
    Task,
    TrainingOptions,
    check_cell,
    check_method,
)
from tespec.core import config
from tespec.core.settings import INPUTS, input_settings
from tespec.registry import METHODS, register_methods
from tespec.runs.setup import Advanced, NonNegativeInt, Setup

app = new_app(
    "run",
    help_epilogue=examples(
        "run --method tespec --task ddd17 --data sample",
        "run --model runs/NAME/model.safetensors --predict drive.raw --out pictures",
    ),
)
pretrain_app = new_app(
    "pretrain",
    help_epilogue=examples(
        "pretrain --method tespec --data /data/1mpx",
        "pretrain --method moby --data sample --set optimisation.steps=100",
    ),
)


@app.default
def run(
    *,
    cell: CellOptions = CellOptions(),
    list_: Annotated[
        bool, Parameter(name="--list", help="list methods, tasks and profiles")
    ] = False,
    describe: Annotated[
        str | None, Task(help="print settings of a task or method, with their sources")
    ] = None,
    setup: Setup = Setup(),
    prediction: PredictOptions = PredictOptions(),
    reproduce: Annotated[
        str,
        Parameter(help="compute a record (FILE or NAME) again; exit code 1: tables would differ"),
    ] = "",
    given: Given,
) -> int:
    """Fine-tune a method's backbone on a task and evaluate it: one cell of the tables.

    Settings: the task's config, then --profile, then --set; the later one wins (see --describe).

    Returns:
        Exit code: 1 if tables would show another number for the record of --reproduce.
    """
    if reproduce:
        from tespec.cli.reproduce import run_again

        return run_again(reproduce, setup, given)
    if list_ or describe or prediction.model or prediction.score:
        register_methods(cell.plugins)
    else:
        check_cell(cell)
    if list_:
        print_names()
        return 0
    from tespec.cli import cells

    if describe:
        cells.print_settings(describe, cell)
    elif prediction.score:
        cells.score_folder(prediction.score, cell, setup, given)
    elif prediction.predict:
        cells.draw_predictions(prediction, cell, setup)
    elif prediction.model:
        cells.measure_model(prediction, cell, setup, given)
    elif cell.training.dry_run:
        cells.print_cost(cell, setup)
    else:
        cells.run_cell(cell, setup, given, save=prediction.save_predictions)
    return 0


def print_names() -> None:
    """Print the methods, tasks and profiles that options may name."""
    print("methods")
    for name, method in sorted(METHODS.module_dict.items()):
        print(f"  {name:13} {method.row.title}: {method.row.summary}")
    print("backbones of published files, and their input (tespec weights list: all files)")
    for name in INPUTS:
        print(f"  {name:23} {input_settings(name)}")
    for kind in ("tasks", "profiles"):
        print(f"{kind}\n  " + "\n  ".join(config.names(kind)))


@pretrain_app.default
def pretrain(
    *,
    method: Annotated[str, Parameter(help="method with a pre-training recipe; see `run --list`")],
    data: Annotated[
        Path | None, Parameter(help="recording, folder of recordings, or sample: the sample world")
    ] = None,
    seed: Annotated[NonNegativeInt, Parameter(help="seed of all randomness")] = 0,
    training: TrainingOptions = TrainingOptions(),
    skip_damaged: Annotated[
        bool, Advanced(help="skip recordings that cannot be read; the record lists them")
    ] = False,
    setup: Setup = Setup(),
    plugins: Plugins = (),
    given: Given,
) -> None:
    """Pre-train a backbone without labels.

    Settings: the method's recipe, then --profile, then --set; the later one wins (`run --describe
    METHOD` shows them).
    """
    check_method(method, plugins)
    config.read_profiles(training.profile or "paper")
    config.refuse_unknown_changes(training.all_changes)
    register_methods()
    from tespec.cli import cells

    settings, dataset = cells.resolve_pretraining(method, data, training)
    if training.dry_run:
        cells.print_pretraining_cost(settings, dataset, setup, training.gpus)
        return
    cells.run_pretraining(
        settings, dataset, seed, setup, given, profile=training.profile, skip_damaged=skip_damaged
    )

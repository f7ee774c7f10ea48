"""Functions of the verbs `run` and `pretrain`, which import them late, as torch takes seconds."""

import shlex
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from pydantic import TypeAdapter

from tespec import inference
from tespec.cli.main import refuse
from tespec.cli.options import (
    CellOptions,
    PredictOptions,
    TrainingOptions,
    format_metrics,
    resolve_setup,
)
from tespec.comparison.cell import run_of
from tespec.comparison.records import Record
from tespec.core import config
from tespec.core.distributed import is_first
from tespec.core.errors import one_line, require
from tespec.core.settings import Pretraining
from tespec.pretraining.method import Method, find_method
from tespec.registry import METHODS
from tespec.runs import predictions as predict
from tespec.runs.cost import (
    estimate_training,
    evaluated_windows,
    input_size,
)
from tespec.runs.data import SAMPLE, Data, find_data, settings_of
from tespec.runs.finetune import CellSpec, finetune
from tespec.runs.identity import pretraining_cell, required_network
from tespec.runs.pretrain import pretrain
from tespec.runs.references import (
    CONTROL,
    PRIOR,
    REFERENCES,
    label_prior,
    probe,
    require_supported,
)
from tespec.runs.run import PREDICTIONS, WEIGHTS
from tespec.runs.setup import Setup
from tespec.training.device import choose_device, flush_denormals, launched
from tespec.weights.files import read_recipe
from tespec.weights.load import RUN, fetch


def run_cell(cell: CellOptions, setup: Setup, given: Sequence[str], *, save: bool = False) -> None:
    """Compute a cell or a reference, once for each seed, and print the results.

    Args:
        cell: options of the cell.
        setup: options of how and where to run.
        given: arguments of the command line, for the record.
        save: whether to save the predictions, in the folder of each run.
    """
    without_network = cell.probe or cell.reference == PRIOR
    refuse(
        save and without_network,
        "--save-predictions cannot be combined with --probe and --reference prior",
    )
    spec = build_spec(cell, setup)
    measure: Callable[[CellSpec], Record] = finetune
    if without_network:
        require_supported(spec.settings, is_probe=cell.probe)
        measure = probe if cell.probe else label_prior
    elif cell.reference == CONTROL:
        measure = partial(finetune, kind="control")
    with launched(setup.launcher, setup.device), flush_denormals():
        setup = resolve_setup(setup, given, cell.training.profile, spec.data.option)
        spec.validate()  # before data is generated
        spec.data.generate()
        plugin = spec.plugin
        for seed in cell.seeds:
            require(
                spec.plugin == plugin,
                spec.name,
                "or a file that it uses was changed since this command started",
                f"run it again from seed {seed}",
            )
            command = f"{setup.command} --seed {seed}"
            record = measure(replace(spec, seed=seed, setup=replace(setup, command=command)))
            weights = setup.runs / record.name / WEIGHTS
            predictions = weights.with_name(PREDICTIONS)
            if save and not predictions.exists():
                predict.save_predictions(weights, spec.data, predictions, setup)
            if is_first():
                print_result(record)
                if weights.is_file():
                    print(f"weights: {weights}")
                if save:
                    print(f"predictions: {predictions}")


def build_spec(cell: CellOptions, setup: Setup) -> CellSpec:
    """Resolve the settings of a cell.

    Args:
        cell: its options, checked by `check_cell`.
        setup: options of how and where to run.

    Returns:
        The cell, with the first of its seeds. Its data may not exist yet.
    """
    name = str(cell.method or cell.reference)
    method = REFERENCES[name] if cell.reference else find_method(name)
    arch = "feedforward" if cell.reference == PRIOR else cell.arch
    method.require(name, arch)
    task = str(cell.task)
    profile = cell.training.profile
    data = find_data(task, cell.data, profile, planned=cell.training.dry_run)
    network = method.require_backbone(cell.training.backbone)
    changes, pretraining_changes = config.split_changes(cell.changes)
    return CellSpec(
        name=name,
        method=method,
        settings=settings_of(data, task, arch, profile, changes, network, frozen=cell.frozen),
        data=data,
        checkpoint=fetch(cell.checkpoint),
        seed=cell.seeds[0],
        setup=setup,
        pretraining_changes=pretraining_changes,
        split=cell.split,
        pretraining_seed=cell.pretraining_seed,
    )


def print_result(record: Record) -> None:
    """Print the scores of a record with its method, task, architecture, data and split."""
    cell = record.cell
    split = "" if cell.split == "test" else f", {cell.split} split"
    words = f"{cell.method} on {cell.task} ({cell.arch}, data: {cell.data}{split})"
    print(f"{one_line(words)}: {format_metrics(record.metrics)}")
    for group, metrics in record.groups.items():
        print(f"  {group}: {format_metrics(metrics)}")


def print_cost(cell: CellOptions, setup: Setup) -> None:
    """Print an estimate of the FLOPs, memory and GPU hours of a cell's fine-tuning.

    Args:
        cell: its options, with the number of GPUs.
        setup: options that change the cost, such as gradient accumulation.
    """
    spec = build_spec(cell, setup)
    spec.validate(planned=True)
    settings = spec.resolve_settings()
    size = input_size(settings, settings.task, spec.data.sensor(settings.sensor))
    windows = 0 if spec.data.is_sample or spec.split != "test" else evaluated_windows(settings)
    estimate = estimate_training(settings, size)
    print(estimate.report(spec.data.title, setup, cell.training.gpus, windows))
    if spec.pretrains and spec.data.is_sample:
        words = ["tespec", "pretrain", "--method", spec.name, "--profile", settings.profile]
        words += ["--backbone", cell.training.backbone] if cell.training.backbone else []
        words += [word for change in spec.pretraining_changes for word in ("--set", change)]
        command = shlex.join([*words, "--data", SAMPLE, "--dry-run"])
        print(f"First, {spec.name} is pre-trained: see {command}.")


def draw_predictions(prediction: PredictOptions, cell: CellOptions, setup: Setup) -> None:
    """Draw the predictions of a trained network on a recording.

    Args:
        prediction: the network, the recording, and where to draw.
        cell: gives the folder of the data and the sensor size, and no other option.
        setup: gives the device.
    """
    model = _model_of(prediction, cell)
    device = choose_device(setup.device)
    root = None
    if cell.data or not Path(prediction.predict).exists():
        settings = inference.settings_of(read_recipe(model), model)
        root = find_data(settings.task, cell.data, settings.profile).generate().root
    out: Any = prediction.out
    windows, labelled, figure = inference.predict(
        model,
        prediction.predict,
        out,
        device,
        root=root,
        clip=prediction.clip,
        sensor_px=cell.training.sensor,
    )
    print(f"{windows} windows, {labelled} of them labelled: {figure}")


def measure_model(
    prediction: PredictOptions, cell: CellOptions, setup: Setup, given: Sequence[str]
) -> None:
    """Score a trained network by the history that it sees, or save its predictions.

    Args:
        prediction: the network, and the folder for the predictions.
        cell: gives the folder of the data, and no other option.
        setup: options of how and where to run.
        given: arguments of the command line, for the record.
    """
    from tespec.runs.history import measure_history  # imports pandas and matplotlib

    model = _model_of(prediction, cell)
    recipe = read_recipe(model)
    trained, _ = run_of(recipe.get(RUN, recipe), model)
    # its threads are those of the evaluation
    profile = trained.profile if trained.profile in config.names("profiles") else None
    data = find_data(trained.task, cell.data, trained.profile)
    with launched(setup.launcher, setup.device), flush_denormals():
        setup = resolve_setup(setup, given, profile, data.option)
        if prediction.history:
            record = measure_history(model, data, setup)
            figure = setup.results / "pictures" / record.name
            text = f"{record.protocol['memory']}\nfigure and table: {figure}.png, .csv"
        else:
            out: Any = prediction.out
            metrics = predict.save_predictions(model, data, out, setup)
            text = f"{format_metrics(metrics)}\npredictions: {out}"
        if is_first():
            print(text)


def score_folder(folder: Path, cell: CellOptions, setup: Setup, given: Sequence[str]) -> None:
    """Score predictions from files, and print the results.

    Args:
        folder: with the predictions.
        cell: gives task and data, and no other option.
        setup: options of how and where to run.
        given: arguments of the command line, for the record.
    """
    used = CellOptions(task=cell.task, data=cell.data, plugins=cell.plugins)
    refuse(
        cell.task is None or cell != used,
        "--score needs --task, and no option of a run but --data and --import",
    )
    task = str(cell.task)
    data = find_data(task, cell.data)
    with launched(setup.launcher, setup.device), flush_denormals():
        setup = resolve_setup(setup, given, None, data.option)
        record = predict.score_predictions(folder, task, data, setup)
        if is_first():
            print_result(record)


def _model_of(prediction: PredictOptions, cell: CellOptions) -> Path:
    """Return the trained network, and refuse options of a run."""
    allowed = TrainingOptions(sensor=cell.training.sensor)
    refuse(
        cell != CellOptions(data=cell.data, plugins=cell.plugins, training=allowed),
        "--model cannot be combined with options of a run, such as --method, --task and --set",
    )
    model: Any = prediction.model
    require(model.is_file(), model, "no such file", "give the model.safetensors of a run")
    return Path(model)


def print_settings(name: str, cell: CellOptions) -> None:
    """Print the settings that a run with these options would have, with their sources.

    Args:
        name: a task or the file of one, or a method, whose facts are printed too.
        cell: the options.
    """
    data = find_data(name, cell.data) if cell.data else None
    profile = cell.training.profile or (data.profile if data else "paper")
    backbone = cell.training.backbone
    settings: config.Settings
    if name in config.names("tasks"):
        print(f"{name}, {cell.arch}, profile {profile}")
        described = data.description.overrides() if data else {}
        network = Method.require_backbone(backbone)
        options = (name, cell.arch, profile, cell.changes, described)
        settings = config.finetuning_settings(*options, network, frozen=cell.frozen)
        layers = config.cell_layers(*options, settings.backbone, frozen=cell.frozen)
    else:
        method = find_method(name)
        facts = {name: asdict(method.row)}
        print(yaml.safe_dump(facts, sort_keys=False, allow_unicode=True, width=100).rstrip())
        if method.recipe is None:
            return
        print(f"\npre-training, profile {profile}")
        changes = cell.training.all_changes
        network = method.require_backbone(backbone)
        settings = config.pretraining_settings(name, profile, changes, network)
        (source, _), *others = config.pretraining_layers(name, profile, changes)
        # without defaults of the harness, of which the publication may say nothing
        recipe = TypeAdapter(Pretraining).dump_python(method.recipe, exclude_defaults=True)
        layers = [(source, recipe), *others]
    source = "--backbone" if backbone else f"profile {profile}"
    layers.append((source, {"backbone": settings.backbone}))
    sources = {key: source for source, layer in layers for key in config.flattened(layer)}
    for key, value in config.flattened(config.as_facts(settings)).items():
        # printed above, except for deviations, which are long, and in every record
        if key in ("task", "name", "arch", "profile", "deviations"):
            continue
        text = yaml.safe_dump(value, default_flow_style=True, width=1000).removesuffix("...\n")
        source = sources.get(key, "default")
        shown = "--set" if source.startswith("--set") else source
        print(f"  {f'{key}: {text.rstrip()}':60} # {shown}")


def resolve_pretraining(
    method: str, path: Path | None, training: TrainingOptions
) -> tuple[Pretraining, Data]:
    """Find the data of a pre-training, and resolve its settings.

    Args:
        method: name of a registered method.
        path: data given by the user.
        training: the other options.

    Returns:
        The settings, by default of the data's profile, and the data, which may not exist yet.
    """
    profile = training.profile
    changes = training.all_changes
    network = find_method(method).require_backbone(training.backbone)
    recipe = config.pretraining_settings(method, profile or "paper", changes, network)
    data = find_data(recipe.dataset, path, profile, planned=training.dry_run, labelled=False)
    return config.pretraining_settings(method, profile or data.profile, changes, network), data


def run_pretraining(
    settings: Pretraining,
    data: Data,
    seed: int,
    setup: Setup,
    given: Sequence[str],
    *,
    profile: str | None,
    skip_damaged: bool,
) -> None:
    """Pre-train a backbone, and print its validation losses and the paths of its files.

    Args:
        settings: of the pre-training.
        data: to learn from; a missing sample world is generated.
        seed: of all randomness.
        setup: options of how and where to run.
        given: arguments of the command line, for the record.
        profile: given by the user; its number of threads is the default.
        skip_damaged: skip recordings that cannot be read.
    """
    with launched(setup.launcher, setup.device), flush_denormals():
        setup = resolve_setup(setup, given, profile, data.option)
        setup = replace(setup, command=f"{setup.command} --seed {seed}")
        result = pretrain(settings.name, settings, data, seed, setup, skip_damaged=skip_damaged)
        if is_first():
            print(f"validation: {format_metrics(result.record.metrics, 4)}")
            print(f"weights: {result.weights}")
            if (picture := setup.results / "pictures" / f"{result.record.name}.png").is_file():
                print(f"picture: {picture}")


def print_pretraining_cost(settings: Pretraining, data: Data, setup: Setup, gpus: int) -> None:
    """Print an estimate of the FLOPs, memory and GPU hours of a pre-training.

    Args:
        settings: of the pre-training.
        data: gives the sensor size, and is not read.
        setup: options that change the cost, such as gradient accumulation.
        gpus: number of GPUs among which a batch is divided.
    """
    pretraining_cell(settings, data.label)  # refuses settings without effect
    size = input_size(settings, settings.dataset, data.sensor(settings.sensor))
    print(estimate_training(settings, size).report(data.title, setup, gpus))
    first, file = required_network(settings)
    if first in METHODS.module_dict and not file and data.is_sample:
        print(f"First, {first} is pre-trained: see --method {first} --dry-run.")
    elif first and not file:
        print(f"It needs the weights of {first}.")

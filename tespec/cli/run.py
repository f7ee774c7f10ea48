"""Fine-tune and evaluate one cell of the tables; pre-train a backbone without labels."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Group, Parameter
from cyclopts.types import PositiveFloat

# Modules that need torch are imported inside functions: mistakes on the command line are reported
# immediately, and import errors of a broken installation in one line.
from tespec.cli.main import new_app, refuse
from tespec.cli.options import (
    Choices,
    Given,
    Plugins,
    network_of,
    numbers_of,
    prepared,
    read_config,
    require_known,
)
from tespec.comparison.records import Record
from tespec.core import config
from tespec.core.errors import UserError
from tespec.core.progress import say
from tespec.registry import METHODS, register_methods
from tespec.runs.setup import Advanced, NonNegativeInt, Setup

Seeds = Parameter(
    name=("--seed", "--seeds"),
    consume_multiple=True,
    show_default=False,
    help="random seeds, run in turn (default: 0)",
)
PICTURES = Group("Pictures of predictions", sort_key=1)
app, pretrain_app = new_app("run", usage=""), new_app("pretrain", usage="")


@Parameter(name="*", group=PICTURES)
@dataclass(frozen=True, kw_only=True)
class Drawing:
    """Options of drawing a trained network's predictions, instead of a run."""

    model: Annotated[Path | None, Parameter(help="model.safetensors of a run")] = None
    predict: Annotated[str, Parameter(help="recording in the task's data, or a path")] = ""
    out: Annotated[Path | None, Parameter(help="folder for the figure (PNG)")] = None
    clip: Annotated[
        tuple[float, float], Parameter(show_default=False, help="FROM TO in s (default: 0 10)")
    ] = (0, 10)

    def __post_init__(self) -> None:
        given = (self.model, self.predict, self.out)
        refuse(
            any(given) and not all(given),
            "--model FILE, --predict RECORDING and --out DIR are required together",
        )


@app.default
def run(
    *,
    method: Annotated[
        str | None, Parameter(help="method that initialises the backbone; see --list")
    ] = None,
    task: Annotated[
        str | None, Parameter(help="task to fine-tune on; see --list, or FILE.yaml")
    ] = None,
    arch: Annotated[
        Literal["recurrent", "feedforward"], Parameter(help="architecture of the backbone")
    ] = "recurrent",
    data: Annotated[
        Path | None, Parameter(help="DIR or sample (default: $TESPEC_DATA/<task>, ./data/<task>)")
    ] = None,
    split: Annotated[
        Literal["test", "val"], Parameter(help="split to score; choose settings on val")
    ] = "test",
    seeds: Annotated[tuple[NonNegativeInt, ...], Seeds] = (0,),
    checkpoint: Annotated[
        Path | None, Parameter(help="initial weights: a file, or timm:NAME")
    ] = None,
    choices: Choices = Choices(),
    freeze: Annotated[bool, Parameter(help="train only the head, on a frozen backbone")] = False,
    label_fraction: Annotated[
        PositiveFloat | None, Parameter(help="fraction of training labels (default: 1)")
    ] = None,
    probe: Annotated[bool, Parameter(help="linear and k-NN probe of the frozen backbone")] = False,
    list_: Annotated[
        bool, Parameter(name="--list", help="list methods, tasks and profiles")
    ] = False,
    describe: Annotated[
        str | None, Parameter(help="print settings of a task or method, each with its source")
    ] = None,
    setup: Setup = Setup(),
    drawing: Drawing = Drawing(),
    reference: Annotated[
        Literal["prior"] | None, Advanced(help="score the label prior instead of a method")
    ] = None,
    # of its pre-training, by a plan
    pretraining_seed: Annotated[NonNegativeInt | None, Parameter(show=False)] = None,
    plugins: Plugins = (),
    given: Given,
) -> None:
    """Fine-tune a method's backbone on a task and evaluate it: one cell of the tables.
    Settings: the task's config, then --profile, then --set; the later one wins (--describe TASK
    shows them).
    """
    starts = method or probe or checkpoint or freeze or choices.dry_run or choices.backbone
    beside = "--method, --checkpoint, --backbone, --probe, --freeze, --dry-run"
    refuse(bool(reference and starts), f"--reference cannot be combined with {beside}")
    ignored = starts or task or reference or choices.changes or label_fraction
    beside = "--method, --task, --set, --label-fraction"
    refuse(bool(drawing.model and ignored), f"--model cannot be combined with {beside}")
    refuse(freeze and probe, "--freeze cannot be combined with --probe")
    refuse(
        choices.dry_run and probe, "--dry-run estimates trainings, but --probe trains no network"
    )
    task, describe = read_config("tasks", task), read_config("tasks", describe)
    profile = read_config("profiles", choices.profile)
    needed = not (list_ or describe or drawing.model)
    refuse(
        needed and not (task and (method or reference)),
        "--method and --task are required (see --list)",
    )
    few = [] if label_fraction is None else [f"label_fraction={label_fraction}"]
    changes = [
        change for change in choices.all_changes if not change.startswith("pretraining.")
    ] + few
    recipe = tuple(
        each.removeprefix("pretraining.")
        for each in choices.changes
        if each.startswith("pretraining.")
    )
    require_known(plugins, data, method=method, task=task, profile=profile)
    arch = "feedforward" if reference else arch
    if task in config.names("tasks") and (profile or "paper") in config.names(
        "profiles"
    ):  # not a plug-in's
        # refuses unknown settings before torch is imported
        config.cell_facts(task, arch, profile or "paper", changes)
    config.refuse_unknown_changes(recipe)
    register_methods(plugins)
    require_known((), None, task=task, profile=profile)
    if list_:
        print("methods")
        for known, listed in sorted(METHODS.module_dict.items()):
            print(f"  {known:13} {listed.row.title}: {listed.row.summary}")
        for part in ("tasks", "profiles"):
            print(f"{part}\n  " + "\n  ".join(config.names(part)))
    elif describe:
        changes = [*choices.all_changes, *(few if describe in config.names("tasks") else ())]
        print_settings(describe, arch, profile, changes, data, choices)
    elif drawing.model:
        draw(drawing, data, setup, choices.sensor)
    if not needed:
        return

    from tespec.pretraining.method import find_method
    from tespec.runs.data import find_data, settings_of
    from tespec.runs.finetune import CellSpec, finetune
    from tespec.runs.references import PRIOR, Prior, label_prior, require_supported
    from tespec.runs.references import probe as probe_cell
    from tespec.weights.load import fetch

    assert task
    name, kind = (method, find_method(method)) if method else (PRIOR, Prior)
    kind.require(name, arch)
    found = find_data(task, data, profile, planned=choices.dry_run)
    settings = settings_of(found, task, arch, profile, changes, network_of(choices.backbone, kind))
    spec = CellSpec(
        name=name, method=kind, settings=settings, data=found, checkpoint=fetch(checkpoint), seed=seeds[0], setup=setup,
        pretraining_changes=recipe, split=split, pretraining_seed=pretraining_seed, freeze=freeze,
    )  # fmt: skip
    measure = label_prior if reference else probe_cell if probe else finetune
    if probe or reference:
        require_supported(settings, is_probe=probe)
    if choices.dry_run:
        from tespec.runs.cost import estimate_cell, input_of

        spec.require_start(planned=True)
        started = spec.started()
        estimate = estimate_cell(started, input_of(started, task, found.sensor(started.sensor)))
        if freeze:
            estimate.model.freeze_backbone()
        print(estimate.report(found.title, setup, choices.gpus))
        if spec.pretrains and found.is_sample:
            print(f"First, {name} is pre-trained: see tespec pretrain --method {name} --dry-run.")
        return
    from tespec.core.distributed import is_first
    from tespec.runs.run import WEIGHTS
    from tespec.training.device import denormals_flushed, launched

    with launched(setup.launcher, setup.device), denormals_flushed():
        setup = prepared(setup, given, profile)
        spec.try_weights()  # report unusable weights before generating data
        spec.require_start()
        if found.notice:
            say(found.notice)
        found.made()
        for seed in seeds:
            record = measure(replace(spec, seed=seed, setup=setup))
            if is_first():
                print_result(record)
                if (weights := setup.runs / record.name / WEIGHTS).is_file():
                    print(f"weights: {weights}")


@pretrain_app.default
def pretrain(
    *,
    method: Annotated[str, Parameter(help="method with a pre-training recipe; see `run --list`")],
    data: Annotated[
        Path | None, Parameter(help="recording, folder of recordings, or sample: the sample world")
    ] = None,
    seed: Annotated[NonNegativeInt, Parameter(help="seed of all randomness")] = 0,
    choices: Choices = Choices(),
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
    profile = read_config("profiles", choices.profile)
    require_known(plugins, data, method=method, profile=profile)
    config.refuse_unknown_changes(choices.all_changes)
    register_methods(plugins)
    from tespec.pretraining.method import find_method
    from tespec.runs.data import find_unlabelled
    from tespec.runs.required import required_network

    network, changes = network_of(choices.backbone, find_method(method)), choices.all_changes
    dataset = config.pretraining_settings(method, profile or "paper", changes, network).dataset
    found = find_unlabelled(dataset, data, profile, planned=choices.dry_run)
    settings = config.pretraining_settings(method, profile or found.profile, changes, network)
    first, file = required_network(settings)
    if choices.dry_run:
        from tespec.runs.cost import estimate_pretraining, input_of
        from tespec.runs.pretrain import identity_of

        identity_of(settings)  # refuses settings without effect
        estimate = estimate_pretraining(
            settings, input_of(settings, dataset, found.sensor(settings.sensor))
        )
        print(estimate.report(found.title, setup, choices.gpus))
        if first in METHODS.module_dict and not file and found.is_sample:
            print(f"First, {first} is pre-trained: see --method {first} --dry-run.")
        elif first and not file:
            print(f"It needs the weights of {first}.")
        return
    from tespec.core.distributed import is_first
    from tespec.runs.pretrain import pretrain
    from tespec.runs.train import require_trainable
    from tespec.training.device import denormals_flushed, launched

    with launched(setup.launcher, setup.device), denormals_flushed():
        setup = prepared(setup, given, profile)
        require_trainable(settings, setup)  # before data is generated
        if found.notice:
            say(found.notice)
        result = pretrain(method, settings, found.made(), seed, setup, skip_damaged=skip_damaged)
        if is_first():
            print(f"validation: {numbers_of(result.record.metrics, 4)}")
            print(f"weights: {result.weights}")
            if (picture := setup.results / "pictures" / f"{result.record.name}.png").is_file():
                print(f"picture: {picture}")


def draw(drawing: Drawing, data: Path | None, setup: Setup, sensor: str | None) -> None:
    """Draw a trained model's predictions on a recording, given by its name in the task's data or by path."""
    from tespec.inference import predict, read_settings
    from tespec.runs.data import find_data
    from tespec.training.device import choose_device

    assert drawing.model
    assert drawing.out
    if not drawing.model.is_file():
        raise UserError(drawing.model, "no such file", "give the model.safetensors of a run")
    root, device = None, choose_device(setup.device)
    if data or not Path(drawing.predict).exists():
        trained = read_settings(drawing.model)
        root = find_data(trained.task, data, trained.profile).made().root
    windows, labelled, figure = predict(
        drawing.model,
        drawing.predict,
        drawing.out,
        device,
        root=root,
        clip=drawing.clip,
        sensor_px=sensor,
    )
    print(f"{windows} windows, {labelled} of them labelled: {figure}")


def print_settings(
    name: str,
    arch: str,
    profile: str | None,
    changes: Sequence[str],
    data: Path | None,
    choices: Choices,
) -> None:
    """Print the settings of a task or a method as a run with these options resolves them, each with its source."""
    import yaml

    from tespec.pretraining.method import Method, find_method
    from tespec.runs.data import find_data

    settings: config.Settings
    found = find_data(name, data) if data else None
    profile = profile or (found.profile if found else "paper")
    if name in config.names("tasks"):
        print(f"{name}, {arch}, profile {profile}")
        of_data, network = (
            found.description.overrides() if found else {},
            network_of(choices.backbone, Method),
        )
        settings = config.finetuning_settings(name, arch, profile, changes, of_data, network)
        layers = config.cell_layers(name, arch, profile, changes, of_data)
    else:
        method = find_method(name)
        print(
            yaml.safe_dump(
                {name: asdict(method.row)}, sort_keys=False, allow_unicode=True, width=100
            ).rstrip()
        )
        if method.recipe is None:
            return
        print(f"\npre-training, profile {profile}")
        settings = config.pretraining_settings(
            name, profile, changes, network_of(choices.backbone, method)
        )
        layers = config.pretraining_layers(name, profile, changes)
    layers.append(
        (
            "--backbone" if choices.backbone else f"profile {profile}",
            {"backbone": settings.backbone},
        )
    )
    origins = {key: source for source, layer in layers for key in config.flattened(layer)}
    for key, value in config.flattened(config.as_facts(settings)).items():
        if key not in (
            "task",
            "name",
            "arch",
            "profile",
            "deviations",
        ):  # above; the last is long, and in every record
            shown = (
                yaml.safe_dump(value, default_flow_style=True, width=1000)
                .removesuffix("...\n")
                .rstrip()
            )
            origin = origins.get(key, "default")
            print(f"  {f'{key}: {shown}':60} # {'--set' if origin.startswith('--set') else origin}")


def print_result(record: Record) -> None:
    """Print the scores of a record with its method, task, architecture, data and split."""
    split = "" if record.split == "test" else f", {record.split} split"
    print(
        f"{record.method} on {record.task} ({record.arch}, data: {record.data}{split}): {numbers_of(record.metrics)}"
    )
    for name, each in record.groups.items():
        print(f"  {name}: {numbers_of(each)}")

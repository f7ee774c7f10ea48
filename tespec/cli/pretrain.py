"""Pre-train a backbone without labels."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from tespec.cli.main import new_app
from tespec.cli.options import Choices, Given, Plugins, prepared, read_config, require_known
from tespec.core.config import refuse_unknown_changes
from tespec.core.errors import UserError
from tespec.core.progress import say
from tespec.registry import register_methods
from tespec.runs.setup import ADVANCED, NonNegativeInt, Setup

app = new_app("pretrain", usage="")


@app.default
def pretrain(
    *,
    method: Annotated[str, Parameter(help="method with a pre-training recipe; see `run --list`")],
    data: Annotated[Path | None, Parameter(help="recording, folder of recordings, or sample: the sample world")] = None,
    seed: Annotated[NonNegativeInt, Parameter(help="seed of all randomness")] = 0,
    choices: Choices = Choices(),
    skip_damaged: Annotated[
        bool, Parameter(group=ADVANCED, help="skip recordings that cannot be read; the record lists them")
    ] = False,
    setup: Setup = Setup(),
    plugins: Plugins = (),
    given: Given,
) -> None:
    """Pre-train a backbone without labels.
    Settings: the method's recipe, then --profile, then --set; the later one wins (`run --describe METHOD` shows them).
    """
    profile = read_config("profiles", choices.profile)
    require_known(plugins, method=method, profile=profile)
    refuse_unknown_changes(None, "", None, (), choices.all_changes)
    register_methods(plugins)
    from tespec.core.config import pretraining_settings
    from tespec.pretraining.method import find_method, own_settings, pretrain_method
    from tespec.runs.data import find_unlabelled

    kind = find_method(method)
    if kind.recipe is None:
        raise UserError(f"--method {method}", "has no pre-training recipe", "choose a method that has one")
    network, changes = choices.network(kind), choices.all_changes
    dataset = pretraining_settings(method, profile or "paper", changes, network).dataset
    found = find_unlabelled(dataset, data, profile, planned=choices.dry_run)
    settings = pretraining_settings(method, profile or found.profile, changes, network)
    first, file = pretrain_method(settings).upstream(own_settings(settings.objective))
    if choices.dry_run:
        from tespec.runs.cost import estimate_pretraining, input_of
        from tespec.runs.pretrain import identity_of

        identity_of(settings)  # refuses settings without effect
        estimate = estimate_pretraining(settings, input_of(settings, dataset, found.sensor(settings.sensor)))
        print(estimate.report(found.title, setup, choices.gpus))
        if first and not file:
            print(f"First, {first} is pre-trained: see --method {first} --dry-run.")
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
            finite = {name: value for name, value in result.record.metrics.items() if value is not None}
            print("validation: " + ", ".join(f"{name} {value:.4f}" for name, value in finite.items()))
            print(f"weights: {result.weights}")
            if (picture := setup.results / "pictures" / f"{result.record.name}.png").is_file():
                print(f"picture: {picture}")

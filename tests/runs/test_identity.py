"""A record is found again if all choices are the same, whatever else changed."""

import shutil

import pytest
from guides import forgotten_afterwards
from short_runs import cell_spec, setup_in

import tespec
from tespec.comparison import records
from tespec.comparison.records import RESULTS_VERSION, read_records, write_record
from tespec.core import config
from tespec.core.config import pretraining_settings
from tespec.core.paths import CONFIGS
from tespec.pretraining.method import find_method
from tespec.registry import register_methods
from tespec.runs import pretrain
from tespec.runs.data import Data
from tespec.runs.finetune import prepare_run
from tespec.runs.references import label_prior

DECODER = """
from tespec.registry import MODELS
from tespec.pretraining.masking import LastStageDecoder


@MODELS.register_module(name="Mine")
class Mine(LastStageDecoder):
    pass
"""


def cell(world, folder, method="scratch", task="ddd17", changes=(), profile="smoke", **how):
    few = ["optimisation.steps=1", "optimisation.warmup_steps=0", *changes]
    how |= {"changes": few, "data": Data(world / "ddd17", "sample")}
    return cell_spec(world, folder, task, "feedforward", method, profile=profile, **how)


def name_of(*given, **how):
    return prepare_run("evaluation", cell(*given, **how))[0].name


def test_how_and_where_it_is_computed_is_no_choice(tiny_world, tmp_path):
    usual = [
        f"head.dropout={cell(tiny_world, tmp_path).settings.head['dropout']}",
        "optimisation.steps=1",
    ]
    how = {"device": None, "workers": 2, "threads": 1, "variant": "masking: 25%", "track": "files"}
    assert name_of(tiny_world, tmp_path, changes=usual, **how) == name_of(tiny_world, tmp_path)


def test_every_choice_is_in_the_name(tiny_world, tmp_path, monkeypatch):
    monkeypatch.setattr(config, "_added", {})
    own = {"task": tmp_path / "my_task.yaml", "profile": tmp_path / "my_profile.yaml"}
    for kind, base in (("task", "ddd17"), ("profile", "smoke")):
        shutil.copy(CONFIGS / f"{kind}s" / f"{base}.yaml", own[kind])
        config.add_file(f"{kind}s", own[kind])
    others = [
        {"changes": [change]}
        for change in ("head.dropout=0.3", "label_fraction=0.5", "batch_size=3")
    ]
    others += [
        {"seed": 1},
        {"split": "val"},
        {"accumulate": 2},
        {"task": "my_task"},
        {"profile": "my_profile"},
    ]
    found = {name_of(tiny_world, tmp_path, **other) for other in ({}, *others)}
    for kind, file in own.items():
        file.write_text(f"{file.read_text()}# edited\n")
        found.add(name_of(tiny_world, tmp_path, **{kind: file.stem}))
    monkeypatch.setattr(find_method("scratch"), "version", 2)
    found.add(name_of(tiny_world, tmp_path))
    assert len(found) == 1 + len(others) + 3


def test_settings_and_parts_of_a_pretraining_are_in_its_name(tiny_world, tmp_path, monkeypatch):
    def name_of(settings):
        return pretrain.pretrain(
            "tespec", settings, Data(tiny_world / "1mpx", "sample"), 0, setup_in(tmp_path)
        ).record

    monkeypatch.setattr(pretrain, "run_or_load", lambda run, *how: run.name)
    file = tmp_path / "mine.py"
    file.write_text(DECODER)
    usual = pretraining_settings("tespec", "smoke")
    with forgotten_afterwards():
        register_methods([file])
        of_own_part = pretraining_settings("tespec", "smoke", ["objective.decoder={type: Mine}"])
        changes = (
            "objective.mask.ratio=0.3",
            "objective=cpc",
            "segments=3",
            "objective.target.kind=high_pass",
        )
        others = [pretraining_settings("tespec", "smoke", [change]) for change in changes]
        names = [name_of(each) for each in (usual, of_own_part, *others)]
        assert (
            name_of(pretraining_settings("tespec", "smoke", [f"batch_size={usual.batch_size}"]))
            == names[0]
        )
        file.write_text(f"{DECODER}# edited\n")
        names.append(name_of(of_own_part))
    assert len(set(names)) == len(names)


@pytest.fixture
def prior(tiny_world, tmp_path):
    """Return a function that computes the label prior of a cell or takes up its record."""
    return lambda **how: label_prior(cell(tiny_world, tmp_path, "prior", **how))


def test_what_differs_from_a_similar_record_is_said_with_both_values(prior, capsys):
    first = prior()
    assert "differs" not in capsys.readouterr().err
    prior(changes=["label_fraction=0.5", "head.dropout=0.3"])
    changed = "--set head.dropout (default there, 0.3 here), --set label_fraction ("
    assert f"running, since {first.name} differs in {changed}" in capsys.readouterr().err


def test_an_old_record_is_taken_and_named_and_gets_the_variant(
    prior, tmp_path, monkeypatch, capsys
):
    first = prior()
    of_old = first.environment | {"tespec": "0.0.1"}
    write_record(first.model_copy(update={"environment": of_old}), tmp_path / "results")
    assert prior(variant="target: Eq. 6").metrics == first.metrics
    said = capsys.readouterr().err
    assert (
        f"is already complete (made by 0.0.1, results version {RESULTS_VERSION}); --overwrite"
        in said
    )
    assert "different settings" not in said
    assert [record.variant for record in read_records(tmp_path / "results")[0]] == ["target: Eq. 6"]
    assert prior().variant == "target: Eq. 6"
    write_record(first, tmp_path / "results")
    monkeypatch.setattr(records, "RESULTS_VERSION", RESULTS_VERSION + 1)
    assert prior() == first
    assert (
        f"(made by {tespec.__version__}, results version {RESULTS_VERSION})"
        in capsys.readouterr().err
    )
    # As if a profile of the repository had been edited, which is not a choice of the run.
    changed = first.config | {"batch_size": 77, "deviations": ["other words"]}
    write_record(first.model_copy(update={"config": changed}), tmp_path / "results")
    prior()
    values = f"(77 there, {first.config['batch_size']} here)"
    message = f"was made with different settings: batch_size {values}"
    assert message in capsys.readouterr().err

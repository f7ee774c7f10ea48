"""A record is found again if all choices are the same, whatever else changed."""

import shutil
from dataclasses import replace

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

METHOD = """
from tespec.registry import METHODS
from tespec.pretraining.method import Method


@METHODS.register_module(name="{name}")
class Mine(Method):
    title = "{name}"
    summary = "Starts as every network does."
"""
DECODER = """
from tespec.registry import MODELS
from tespec.pretraining.masking import LastStageDecoder


@MODELS.register_module(name="Mine")
class Mine(LastStageDecoder):
    pass
"""
STEPS = ("optimisation.steps=1", "optimisation.warmup_steps=0")


@pytest.fixture(scope="module")
def methods(tmp_path_factory):
    """Folder with plug-in files of two methods."""
    folder = tmp_path_factory.mktemp("methods")
    for name in ("mine", "other"):
        (folder / f"{name}.py").write_text(METHOD.format(name=name))
    with forgotten_afterwards():
        register_methods(sorted(folder.iterdir()))
        yield folder


@pytest.fixture(scope="module")
def cell(tiny_world, methods):
    """Return a function that specifies a feed-forward cell with one training step."""

    def cell(folder, method="scratch", task="ddd17", changes=(), profile="tiny", **how):
        how |= {"changes": [*STEPS, *changes], "data": Data(tiny_world / "ddd17", "sample")}
        return cell_spec(tiny_world, folder, task, "feedforward", method, profile=profile, **how)

    return cell


def name_of(wanted):
    return prepare_run("evaluation", wanted)[0].name


@pytest.fixture(scope="module")
def names(cell, tmp_path_factory):
    """Names of the runs of a built-in and of two user-defined methods."""
    return {method: name_of(cell(tmp_path_factory.mktemp("made"), method)) for method in ("scratch", "mine", "other")}


def test_an_edited_method_file_or_a_raised_version_voids_that_method_alone(names, methods, cell, tmp_path, monkeypatch):
    def kept():
        return {method for method, name in names.items() if name_of(cell(tmp_path, method)) == name}

    (methods / "mine.py").write_text(METHOD.format(name="mine") + "# edited\n")
    assert kept() == {"scratch", "other"}
    (methods / "mine.py").write_text(METHOD.format(name="mine"))
    monkeypatch.setattr(find_method("scratch"), "version", 2)
    assert kept() == {"mine", "other"}


def test_how_and_where_it_is_computed_is_no_choice(names, cell, tmp_path):
    default = cell(tmp_path).settings.head["dropout"]
    for wanted in (
        cell(tmp_path, device=None, workers=2, threads=1, variant="masking: 25%", track="files"),
        cell(tmp_path, changes=[f"head.dropout={default}", "optimisation.steps=1"]),
    ):
        assert name_of(wanted) == names["scratch"]


def test_every_choice_is_in_the_name(names, cell, tmp_path, monkeypatch):
    monkeypatch.setattr(config, "_added", {})
    own = {"task": tmp_path / "my_task.yaml", "profile": tmp_path / "my_profile.yaml"}
    for kind, base in (("task", "ddd17"), ("profile", "tiny")):
        shutil.copy(CONFIGS / f"{kind}s" / f"{base}.yaml", own[kind])
        config.add_file(f"{kind}s", own[kind])
    usual = cell(tmp_path).settings
    others = [
        cell(tmp_path, changes=["head.dropout=0.3"]),
        cell(tmp_path, changes=["label_share=0.5"]),
        cell(tmp_path, settings=replace(usual, batch_size=usual.batch_size + 1)),
        cell(tmp_path, settings=replace(usual, optimisation=replace(usual.optimisation, peak_lr=1e-4))),
        cell(tmp_path, seed=1),
        cell(tmp_path, split="val"),
        cell(tmp_path, accumulate=2),
        cell(tmp_path, task="my_task"),
        cell(tmp_path, profile="my_profile"),
    ]
    found = {name_of(other) for other in others}
    for kind, file in own.items():
        file.write_text(f"{file.read_text()}# edited\n")
        found.add(name_of(cell(tmp_path, **{kind: file.stem})))
    assert len(found - {names["scratch"]}) == len(others) + 2


def test_settings_and_parts_of_a_pretraining_are_in_its_name(tiny_world, tmp_path, monkeypatch):
    def name_of(settings):
        return pretrain.pretrain("tespec", settings, Data(tiny_world / "1mpx", "sample"), 0, setup_in(tmp_path)).record

    monkeypatch.setattr(pretrain, "run_or_load", lambda run, *how: run.name)
    file = tmp_path / "mine.py"
    file.write_text(DECODER)
    usual = pretraining_settings("tespec", "tiny")
    with forgotten_afterwards():
        register_methods([file])
        of_own_part = pretraining_settings("tespec", "tiny", ["objective.decoder={type: Mine}"])
        others = [
            pretraining_settings("tespec", "tiny", ["objective.mask.ratio=0.3"]),
            pretraining_settings("tespec", "tiny", ["objective=cpc"]),
            replace(usual, segments=usual.segments + 1),
            replace(usual, objective=usual.objective | {"target": usual.objective["target"] | {"kind": "high_pass"}}),
            of_own_part,
        ]
        names = [name_of(usual), *map(name_of, others)]
        assert name_of(pretraining_settings("tespec", "tiny", [f"batch_size={usual.batch_size}"])) == names[0]
        file.write_text(f"{DECODER}# edited\n")
        names.append(name_of(of_own_part))
    assert len(set(names)) == len(names)


def prior(cell, folder, changes=(), **how):
    return label_prior(cell(folder, "prior", changes=changes, **how))


def test_what_differs_from_a_similar_record_is_said_with_both_values(cell, tmp_path, capsys):
    first = prior(cell, tmp_path)
    assert "differs" not in capsys.readouterr().err
    prior(cell, tmp_path, ["label_share=0.5", "head.dropout=0.3"])
    said = f"running, since {first.name} differs in --set head.dropout (default there, 0.3 here), --set label_share ("
    assert said in capsys.readouterr().err


def test_an_old_record_is_taken_and_named_and_gets_the_variant(cell, tmp_path, monkeypatch, capsys):
    first = prior(cell, tmp_path)
    of_old = first.environment | {"tespec": "0.0.1"}
    write_record(first.model_copy(update={"environment": of_old}), tmp_path / "results")
    assert prior(cell, tmp_path, variant="target: Eq. 6").metrics == first.metrics
    said = capsys.readouterr().err
    assert f"is already complete (made by 0.0.1, results version {RESULTS_VERSION}); --overwrite" in said
    assert "different settings" not in said
    assert [record.variant for record in read_records(tmp_path / "results")[0]] == ["target: Eq. 6"]
    assert prior(cell, tmp_path).variant == "target: Eq. 6"
    write_record(first, tmp_path / "results")
    monkeypatch.setattr(records, "RESULTS_VERSION", RESULTS_VERSION + 1)
    assert prior(cell, tmp_path) == first
    assert f"(made by {tespec.__version__}, results version {RESULTS_VERSION})" in capsys.readouterr().err
    # As if a profile of the repository had been edited, which is not a choice of the run.
    changed = first.config | {"batch_size": 77, "deviations": ["other words"]}
    write_record(first.model_copy(update={"config": changed}), tmp_path / "results")
    prior(cell, tmp_path)
    said = f"was made with different settings: batch_size (77 there, {first.config['batch_size']} here)"
    assert said in capsys.readouterr().err

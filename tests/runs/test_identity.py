"""A record is found again if all choices are the same, whatever else changed."""

import shutil
import sys
from dataclasses import replace

import pytest
from event_files import change_middle_byte
from guides import forgotten_afterwards
from made_records import cell as made_cell
from made_records import record as made_record
from short_runs import cell_spec, setup_in
from twins import copied

from tespec.cli import cells
from tespec.cli.main import main
from tespec.comparison.cell import OWN_WEIGHTS, RESULTS_VERSION, recipe_of, start_of
from tespec.comparison.records import read_records, write_record
from tespec.core import config
from tespec.core.config import pretraining_settings
from tespec.core.errors import UserError
from tespec.core.paths import CONFIGS
from tespec.pretraining.method import find_method
from tespec.registry import METHODS, register_methods, source_files
from tespec.runs import finetune as finetuning
from tespec.runs import identity, pretrain
from tespec.runs.data import Data
from tespec.runs.finetune import CellSpec, prepare_run
from tespec.runs.references import label_prior
from tespec.tasks.base import random_backbone
from tespec.weights.files import read_recipe, write_weights

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
    how = {"device": None, "workers": 2, "threads": 1, "track": "files"}
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
        {"frozen": True},
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

    monkeypatch.setattr(pretrain, "train_or_load", lambda run, *how: run.name)
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
    changed = "overrides.head.dropout (default there, 0.3 here), label_fraction (1.0 there, 0.5 "
    assert f"running, since {first.name} differs in {changed}" in capsys.readouterr().err


def test_a_record_of_an_older_version_does_not_answer(prior, tmp_path, monkeypatch, capsys):
    first = prior()
    monkeypatch.setattr(identity, "RESULTS_VERSION", RESULTS_VERSION + 1)
    again = prior()
    assert again.name != first.name
    values = f"({RESULTS_VERSION} there, {RESULTS_VERSION + 1} here)"
    assert f"differs in results_version {values}" in capsys.readouterr().err
    assert len(read_records(tmp_path / "results")[0]) == 2


def test_other_settings_of_a_complete_run_are_named(prior, tmp_path, capsys):
    first = prior()
    # As if a profile of the repository had been edited, which is not in the cell.
    changed = first.config | {"batch_size": 77, "deviations": ["other words"]}
    write_record(first.model_copy(update={"config": changed}), tmp_path / "results")
    prior()
    values = f"(77 there, {first.config['batch_size']} here)"
    message = f"was made with different settings: batch_size {values}"
    assert message in capsys.readouterr().err


def test_changed_data_is_computed_again_and_the_file_is_named(tiny_world, tmp_path, capsys):
    root = copied(tiny_world, tmp_path, "ddd17")
    given = replace(cell(tiny_world, tmp_path, "prior"), data=Data(root, "sample"))
    first = label_prior(given)
    change_middle_byte(root / "dir2" / "events.dat.xyp")
    capsys.readouterr()
    again = label_prior(given)
    files = "dir2: events.dat.xyp, events.dat.t"
    message = f"{again.name}: running, since {first.name} used other data (1 changed): {files}\n"
    assert capsys.readouterr().err == message
    assert len(read_records(tmp_path / "results")[0]) == 2
    for path in tmp_path.glob("runs/*/data.json"):  # as on another machine
        path.unlink()
    change_middle_byte(root / "dir2" / "ego_speed.npy")
    label_prior(given)
    assert " differs in data_fingerprint (" in capsys.readouterr().err


def test_a_reference_is_recordable_before_it_is_computed(prior, tmp_path):
    with pytest.raises(UserError, match="cannot be recorded, as it is not UTF-8"):
        prior(command="run --data \udcff")
    assert not list(tmp_path.glob("*/*"))


def test_converted_weights_stay_a_draw_of_their_pretraining(tiny_world, tmp_path):
    given = cell(tiny_world, tmp_path, "imagenet")
    pretraining = made_cell("imagenet", "feedforward", kind="pretraining")
    recipe = {"backbone": given.settings.backbone, "bins": 10, "recurrent": False}
    file = tmp_path / "a.safetensors"
    tensors = random_backbone(given.settings, (64, 96)).state_dict()
    write_weights(file, tensors, {**recipe, "sensor": [64, 96], **recipe_of(pretraining, 3)})
    other = tmp_path / "b.safetensors"
    assert main(["weights", "convert", str(file), str(other), "--sensor", "128x64"]) == 0
    assert start_of(read_recipe(other), "", other) == (pretraining, 3)


HELPER = "def distance(a):\n    return a\n"
PLUGGED = """
import sys
sys.path.insert(0, {folder!r})
from my_distances import distance
from tespec.pretraining.method import Method, TableRow
from tespec.registry import METHODS


@METHODS.register_module(name="{name}")
class Plugged(Method):
    row = TableRow(title="Plugged")
"""


def test_files_of_equal_names_and_the_modules_that_they_import_are_parts_of_a_run(
    tiny_world, tmp_path, monkeypatch
):
    monkeypatch.setattr(sys, "path", list(sys.path))
    helper = tmp_path / "my_distances.py"
    helper.write_text(HELPER)
    files = {name: tmp_path / name / "method.py" for name in ("plugged", "other")}
    for name, file in files.items():
        file.parent.mkdir()
        file.write_text(PLUGGED.format(folder=str(tmp_path), name=name))
    with forgotten_afterwards():
        register_methods([*files.values()])
        for name, file in files.items():
            assert source_files(METHODS.module_dict[name].__module__) == {file, helper}
        first = name_of(tiny_world, tmp_path, method="plugged")
        helper.write_text(f"{HELPER}# edited\n")
        assert name_of(tiny_world, tmp_path, method="plugged") != first
    sys.modules.pop("my_distances")


def test_a_file_that_is_changed_between_two_seeds_ends_the_command(
    tiny_world, tmp_path, monkeypatch, capsys
):
    """The code in memory is that of the start."""
    hashes = iter("aab")
    monkeypatch.setattr(CellSpec, "plugin", property(lambda spec: next(hashes)))
    computed = []
    monkeypatch.setattr(
        cells, "finetune", lambda spec: computed.append(spec.seed) or made_record("scratch")
    )
    words = ["--method", "scratch", "--task", "ddd17", "--profile", "smoke", "--seeds", "0", "1"]
    folders = ["--results", str(tmp_path / "results"), "--runs", str(tmp_path / "runs")]
    assert main(["run", *words, "--data", str(tiny_world / "ddd17"), *folders]) == 2
    assert computed == [0]
    assert "changed since this command started; run it again from seed 1" in capsys.readouterr().err


def test_overwriting_a_run_keeps_the_pretraining_that_it_starts_from(
    tiny_world, tmp_path, monkeypatch
):
    setups = []

    def stopped(*given):
        setups.append(given[-1])
        raise KeyboardInterrupt

    monkeypatch.setattr(finetuning, "pretrain", stopped)
    spec = cell(tiny_world, tmp_path, "tespec", overwrite=True)
    with pytest.raises(KeyboardInterrupt):
        prepare_run("evaluation", spec)
    assert (spec.setup.overwrite, setups[0].overwrite) == (True, False)
    monkeypatch.setattr(pretrain, "pretrain", lambda *given, **_: stopped(*given))
    settings = pretraining_settings("mem", "smoke")
    with pytest.raises(KeyboardInterrupt):  # of the tokenizer
        pretrain.pretrain_required("mem", settings, spec.data, 0, spec.setup, False)
    assert not setups[1].overwrite


def test_installed_and_own_modules_are_no_files_of_the_user():
    assert source_files("tespec.runs.run") == set()
    assert source_files("pytest")  # itself, but not what it imports
    assert all("pytest" in path.parts[-2] for path in source_files("pytest"))


def test_three_files_of_weights_are_draws_of_one_cell(tiny_world, tmp_path):
    runs = []
    for seed in (0, 1, 2):
        given = cell(tiny_world, tmp_path, "imagenet", seed=seed)
        network = random_backbone(given.settings, (64, 96))
        file = tmp_path / f"{seed}.safetensors"
        recipe = {"backbone": given.settings.backbone, "bins": 10, "recurrent": False}
        tensors = {name: tensor + seed for name, tensor in network.state_dict().items()}
        write_weights(file, tensors, {**recipe, "sensor": [64, 96]})
        runs.append(prepare_run("evaluation", replace(given, checkpoint=file))[0])
    assert {run.cell.start for run in runs} == {OWN_WEIGHTS}
    assert len({run.cell for run in runs}) == 1
    assert len({run.pretraining for run in runs}) == 3

import json

import pytest
import torch
from PIL import Image

from tespec.cli import pretrain as pretrain_cli
from tespec.cli import run as run_cli
from tespec.cli import tables as tables_cli
from tespec.cli.command import run
from tespec.core.config import finetuning_settings
from tespec.core.paths import REPOSITORY
from tespec.models import EventSwin
from tespec.weights.files import write_weights

WARMUP = ["--set", "optimisation.warmup_steps=1"]
FEW = ["--set", "optimisation.steps=3", *WARMUP, "--set", "batch_size=2", "--set", "segments=3"]


@pytest.fixture
def call(capsys):
    """Call a command line's main in this process; gives (exit code, stdout, stderr)."""

    def call(module, *arguments):
        try:
            code = run(lambda: module.main(list(map(str, arguments))))
        except SystemExit as stop:
            code = stop.code
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def places(folder):
    return ["--results", folder / "results", "--runs", folder / "runs", "--device", "cpu"]


def test_lists_and_describes(call):
    code, out, _ = call(run_cli, "--list")
    assert code == 0
    assert "scratch" in out
    assert "ddd17" in out
    code, out, _ = call(run_cli, "--describe", "tespec")
    assert code == 0
    assert "ICCV 2025" in out
    code, out, _ = call(run_cli, "--describe", "ddd17")
    assert code == 0
    assert "batch_size: 16" in out
    code, out, _ = call(run_cli, "--describe", "ddd17", "--profile", "small", "--set", "batch_size=3")
    assert code == 0
    assert f"      steps: {finetuning_settings('ddd17', 'recurrent', 'small').optimisation.steps}\n" in out
    assert "batch_size: 3" in out


def test_a_cell_prints_its_scores(call, tiny_world, tmp_path):
    arguments = ["--method", "scratch", "--task", "ddd17", "--data", tiny_world / "ddd17", "--arch", "feedforward"]
    few = ["--set", "optimisation.steps=3", *WARMUP, "--set", "batch_size=2"]
    code, out, _ = call(run_cli, *arguments, *places(tmp_path), *few)
    assert code == 0
    assert out.startswith("scratch on ddd17 (feedforward, data: sample): ")
    assert "moving: " in out


@pytest.mark.slow
def test_a_cell_is_scored_on_the_validation_split(call, tiny_world, tmp_path):
    arguments = ["--method", "scratch", "--task", "ddd17", "--data", tiny_world / "ddd17", "--arch", "feedforward"]
    arguments += ["--set", "optimisation.steps=3", *WARMUP, "--set", "batch_size=2", *places(tmp_path)]
    _, by_test, _ = call(run_cli, *arguments)
    code, by_val, said = call(run_cli, *arguments, "--split", "val")
    assert code == 0
    assert by_val.startswith("scratch on ddd17 (feedforward, data: sample, val split): ")
    assert by_val.partition(": ")[2] != by_test.partition(": ")[2]
    assert "trained already, for the test split" in said
    assert len(list((tmp_path / "results" / "pictures").iterdir())) == 2
    code, _, said = call(run_cli, *arguments, "--split", "val", "--set", "splits.val=[]")
    assert code == 2
    assert "DDD17 has no validation split: no recordings are named for one; take some out of" in said


def test_pretrains_on_a_single_recording(call, tmp_path):
    recording = REPOSITORY / "tests" / "data" / "evt3_640x480_2.08s.raw"
    few = ["--set", "optimisation.steps=2", *WARMUP, "--set", "batch_size=2", "--set", "segments=2"]
    arguments = ["--method", "tespec", "--data", recording, "--profile", "sample", *few]
    code, out, _ = call(pretrain_cli, *arguments, *places(tmp_path))
    assert code == 0
    assert "loss_masked_carried" in out
    (record,) = (json.loads(path.read_text()) for path in (tmp_path / "results" / "runs").glob("*.json"))
    assert record["data"] == "evt3_640x480_2_08s"
    (picture,) = (tmp_path / "results" / "pictures").iterdir()
    with Image.open(picture) as drawn:
        assert drawn.width > 600


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--method and --task are needed"),
        (["--method", "tespek", "--task", "ddd17"], "unknown method; did you mean 'tespec'"),
        (["--method", "scratch", "--task", "ddd71"], "choose from 1mpx, ddd17"),
        (["--method", "scratch", "--task", "ddd17", "--arch", "recurent"], "did you mean 'recurrent'"),
        (["--method", "scratch", "--task", "ddd17", "--data", "/nowhere/at/all"], "/nowhere/at/all: no such"),
        (["--method", "scratch", "--task", "ddd17", "--profile", "papre"], "papre: no such file in configs/profiles"),
        (["--method", "scratch", "--task", "ddd17", "--profile", "paper"], "--profile paper: no ddd17 data given"),
        (["--reference", "prior", "--task", "ddd17", "--profile", "paper"], "--profile paper: no ddd17 data given"),
        (["--method", "scratch", "--task", "ddd17", "--set", "optimisation.step=3"], "did you mean 'steps'"),
        (["--method", "scratch", "--task", "ddd17", "--sed", "3"], "--seed"),
        (["--method", "scratch", "--task", "ddd17", "--seed", "-3"], "'-3' is not a whole number; give 0 or more"),
        (["--method", "scratch", "--task", "ddd17", "--import", "gone.py"], "gone.py: no such file"),
        (["--method", "scratch", "--task", "ddd17", "--clip", "0", "3"], "--clip and --min-score go with --predict"),
        (["--method", "scratch", "--task", "ddd17", "--seed", "2", "--seeds", "0", "1"], "give one of them"),
    ],
)
def test_mistakes_are_answered_in_one_line(call, tmp_path, monkeypatch, arguments, message):
    monkeypatch.setenv("TESPEC_CACHE", str(tmp_path / "cache"))
    code, out, err = call(run_cli, *arguments, *places(tmp_path))
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert message in err
    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_for_another_architecture_is_named(call, tiny_world, tmp_path):
    weights = tmp_path / "other.safetensors"
    torch.manual_seed(0)
    write_weights(weights, EventSwin(arch="tiny", img_size=(64, 96)).state_dict(), {"width": "tiny"})
    arguments = ["--method", "tespec", "--task", "ddd17", "--data", tiny_world / "ddd17", "--checkpoint", weights]
    code, _, err = call(run_cli, *arguments, *places(tmp_path))
    assert code == 2
    assert "other.safetensors: " in err
    assert "written for arch 'tiny'" in err
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"", "the file is empty"), (b"% evt 3.0\n% geometry 640x480\n\x00", "truncated"), (b"no header", "header")],
)
def test_a_broken_recording_is_named(call, tmp_path, content, message):
    recording = tmp_path / "broken.raw"
    recording.write_bytes(content)
    code, _, err = call(
        pretrain_cli, "--method", "tespec", "--data", recording, "--profile", "sample", *places(tmp_path)
    )
    assert code == 2
    assert err.startswith(f"error: {recording}: ")
    assert message in err
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("dataset=Foo", "dataset: unknown dataset 'Foo'; choose from Ddd17, Dsec, Gen1, Mvsec, OneMpx"),
        ("kind=Foo", "kind: unknown task 'Foo'; choose from depth, detection, segmentation"),
        ("segments=5000", "set fewer segments"),
    ],
)
def test_settings_that_cannot_be_carried_out_are_named(call, tiny_world, tmp_path, change, message):
    arguments = ["--method", "scratch", "--task", "ddd17", "--data", tiny_world / "ddd17", "--set", change]
    code, _, err = call(run_cli, *arguments, *places(tmp_path))
    assert code == 2
    assert message in err
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_table_folder_that_is_a_file_is_named(call, tmp_path):
    file = tmp_path / "file"
    file.touch()
    code, _, err = call(tables_cli, "--results", tmp_path, "--out", file)
    assert code == 2
    assert err.splitlines()[-1].startswith(f"error: {file}: ")


def test_a_step_with_a_single_label_is_refused(call, tiny_world, tmp_path):
    single = ["--set", "batch_size=1", "--set", "labels_per_chunk=1", "--set", "sampling=streams"]
    arguments = ["--method", "scratch", "--task", "ddd17", "--data", tiny_world / "ddd17", *single]
    code, _, err = call(run_cli, *arguments, *places(tmp_path))
    assert (code, "batch normalisation needs two" in err) == (2, True)


@pytest.mark.parametrize("option", ["--results", "--runs"])
def test_a_place_that_is_a_file_is_named_before_training(call, tiny_world, tmp_path, option):
    file = tmp_path / "file"
    file.touch()
    arguments = ["--method", "scratch", "--task", "ddd17", "--data", tiny_world / "ddd17", *places(tmp_path)]
    code, _, err = call(run_cli, *arguments, option, file)
    assert (code, err) == (2, f"error: {option} {file}: {file} cannot be written to; name another folder\n")


def test_an_unknown_decoder_is_named(call, tiny_world, tmp_path):
    arguments = ["--method", "tespec", "--data", tiny_world / "1mpx", "--set", "objective.decoder.type=Foo"]
    code, _, err = call(pretrain_cli, *arguments, *places(tmp_path))
    assert code == 2
    assert "objective.decoder.type: unknown model 'Foo'; choose from AllStagesDecoder" in err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--gpu", "h100"], "--gpu, --gpus and --share go with --dry-run"),
    ],
)
def test_mistakes_of_a_forecast_are_named(call, tmp_path, monkeypatch, options, message):
    monkeypatch.chdir(tmp_path)
    arguments = ["--method", "scratch", "--task", "ddd17", "--profile", "sample", *options]
    code, _, err = call(run_cli, *arguments, *places(tmp_path))
    assert code == 2
    assert message in err


def test_settings_of_a_pretraining_that_is_not_done_are_refused(call, tiny_world, tmp_path):
    arguments = ["--method", "scratch", "--task", "ddd17", "--data", tiny_world / "ddd17"]
    code, _, err = call(run_cli, *arguments, "--set", "pretraining.batch_size=3", *places(tmp_path))
    message = "error: --set pretraining.batch_size=3: this run does no pre-training; leave it out\n"
    assert (code, err) == (2, message)


def test_a_seed_of_a_pretraining_that_is_not_done_is_refused(call, tiny_world, tmp_path):
    arguments = ["--method", "scratch", "--task", "ddd17", "--data", tiny_world / "ddd17"]
    code, _, err = call(run_cli, *arguments, "--pretraining-seed", "3", *places(tmp_path))
    assert (code, err) == (2, "error: --pretraining-seed 3: this run does no pre-training; leave it out\n")


def test_scratch_takes_no_checkpoint(call, tiny_world, tmp_path):
    arguments = ["--method", "scratch", "--task", "ddd17", "--data", tiny_world / "ddd17", "--checkpoint", "x.pth"]
    code, _, err = call(run_cli, *arguments, *places(tmp_path))
    assert code == 2
    assert "--method scratch: takes no --checkpoint" in err


def test_scratch_has_no_pretraining(call, tmp_path):
    code, _, err = call(pretrain_cli, "--method", "scratch", *places(tmp_path))
    assert (code, err) == (2, "error: --method scratch: has no pre-training; choose a method with a recipe\n")

import re

import pytest
import torch
from PIL import Image

from tespec.cli import pretrain as pretrain_cli
from tespec.cli import run as run_cli
from tespec.cli.command import run
from tespec.comparison.frame import to_frame
from tespec.comparison.records import read_records
from tespec.core.config import finetuning_settings
from tespec.core.paths import REPOSITORY
from tespec.inference.load import load_trained
from tespec.models import EventSwin
from tespec.tasks import build_task
from tespec.training.device import derive, seed_everything
from tespec.weights.files import state_sha256, write_weights

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


def test_dry_run_says_what_it_costs_and_writes_nothing(call, tiny_world, tmp_path):
    arguments = ["--method", "scratch", "--task", "ddd17", "--data", tiny_world / "ddd17", "--dry-run"]
    code, out, _ = call(run_cli, *arguments, *places(tmp_path))
    assert code == 0
    for word in ("steps: 300", "backbone", "parameters", "memory", f"({tiny_world / 'ddd17'})", "H100 SXM", "fits"):
        assert word in out
    assert list(tmp_path.iterdir()) == []


def test_a_cell_prints_its_scores(call, tiny_world, tmp_path):
    arguments = ["--method", "scratch", "--task", "ddd17", "--data", tiny_world / "ddd17", "--arch", "feedforward"]
    few = ["--set", "optimisation.steps=3", *WARMUP, "--set", "batch_size=2"]
    code, out, _ = call(run_cli, *arguments, *places(tmp_path), *few)
    assert code == 0
    assert out.startswith("scratch on ddd17 (feedforward, data: sample): ")
    assert "moving: " in out


def test_pretrains_on_a_single_recording(call, tmp_path):
    recording = REPOSITORY / "tests" / "data" / "evt3_640x480_2.08s.raw"
    few = ["--set", "optimisation.steps=2", *WARMUP, "--set", "batch_size=2", "--set", "segments=2"]
    arguments = ["--method", "tespec", "--data", recording, "--profile", "sample", *few]
    code, out, _ = call(pretrain_cli, *arguments, *places(tmp_path))
    assert code == 0
    assert "loss_masked_carried" in out
    (record,), _ = read_records(tmp_path / "results")
    assert record.data == "evt3_640x480_2_08s"
    (picture,) = (tmp_path / "results" / "pictures").iterdir()
    with Image.open(picture) as drawn:
        assert drawn.width > 600


CELL = "--method scratch --task ddd17 "
ON_DATA = CELL + "--data {world}/ddd17 "
PRETRAINING = "--method tespec --data {world}/1mpx "
MISTAKES = [
    (run_cli, "", "--method and --task are needed"),
    (run_cli, "--method tespek --task ddd17", "unknown method; did you mean 'tespec'"),
    (run_cli, "--method scratch --task ddd71", "--task ddd71: unknown task; did you mean 'ddd17'?"),
    (run_cli, CELL + "--arch recurent", "did you mean 'recurrent'"),
    (run_cli, CELL + "--data /nowhere/at/all", "/nowhere/at/all: no such"),
    (run_cli, CELL + "--set peak_lr=5e-4", "unknown setting 'peak_lr'; did you mean 'optimisation.peak_lr'?"),
    (run_cli, CELL + "--profile papre", "--profile papre: unknown profile; did you mean 'paper'?"),
    (run_cli, CELL + "--profile paper", "--profile paper: no ddd17 data given"),
    (run_cli, "--reference prior --task ddd17 --profile paper", "--profile paper: no ddd17 data given"),
    (run_cli, CELL + "--set optimisation.step=3", "did you mean 'steps'"),
    (run_cli, CELL + "--sed 3", "--seed"),
    (run_cli, CELL + "--resume", "unknown argument '--resume'; did you mean"),
    (run_cli, CELL + "--seed -3", "'-3' is not a whole number; give 0 or more"),
    (run_cli, CELL + "--import gone.py", "gone.py: no such file"),
    (run_cli, CELL + "--clip 0 3", "--clip and --min-score go with --predict"),
    (run_cli, CELL + "--seed 2 --seeds 0 1", "give one of them"),
    (run_cli, "--model typo.safetensors --predict drive.raw --out out", "typo.safetensors: no such file; name a model"),
    (run_cli, ON_DATA + "--set dataset=Foo", "dataset: unknown dataset 'Foo'; choose from Ddd17, Dsec, Gen1, Mvsec"),
    (run_cli, ON_DATA + "--set kind=Foo", "kind: unknown task 'Foo'; choose from depth, detection, segmentation"),
    (run_cli, ON_DATA + "--set segments=5000", "or fewer"),
    (run_cli, ON_DATA + "--split val --set splits.val=[]", "DDD17 has no validation split: no recordings are named"),
    (
        run_cli,
        ON_DATA + "--set batch_size=1 --set labels_per_chunk=1 --set sampling=streams",
        "normalisation needs two",
    ),
    (run_cli, ON_DATA + "--set pretraining.batch_size=3", "--set pretraining.batch_size=3: this run does no pre-train"),
    (run_cli, ON_DATA + "--pretraining-seed 3", "--pretraining-seed 3: this run does no pre-training; leave it out"),
    (run_cli, ON_DATA + "--checkpoint x.pth", "--method scratch: takes no --checkpoint"),
    (pretrain_cli, "--method scratch", "--method scratch: has no pre-training; choose a method with a recipe"),
    (
        pretrain_cli,
        PRETRAINING + "--set objective.decoder.type=Foo",
        "objective.decoder.type: unknown model 'Foo'; choo",
    ),
]


@pytest.mark.parametrize(("module", "arguments", "message"), MISTAKES)
def test_mistakes_are_answered_in_one_line(call, tiny_world, tmp_path, monkeypatch, module, arguments, message):
    monkeypatch.setenv("TESPEC_CACHE", str(tmp_path / "cache"))
    code, out, err = call(module, *arguments.format(world=tiny_world).split(), *places(tmp_path))
    assert (code, out) == (2, "")
    *notes, error = err.splitlines()  # a pre-training names the test recordings that it leaves alone
    assert error.startswith("error: ")
    assert message in error
    assert all(note.startswith("of a test split, so left alone: ") for note in notes)
    made = {path.name for path in tmp_path.iterdir()}
    assert made <= ({"cache"} if "{world}" in arguments else set())


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


@pytest.mark.parametrize("option", ["--results", "--runs"])
@pytest.mark.parametrize(
    ("module", "given"),
    [
        (run_cli, ["--method", "tespec", "--task", "ddd17"]),
        (run_cli, ["--reference", "prior", "--task", "ddd17"]),
        (pretrain_cli, ["--method", "tespec"]),
    ],
)
def test_a_folder_that_cannot_be_written_to_is_named_before_data_is_made(
    call, tmp_path, monkeypatch, module, given, option
):
    monkeypatch.chdir(tmp_path)  # without data/
    monkeypatch.delenv("TESPEC_DATA", raising=False)
    monkeypatch.setenv("TESPEC_CACHE", str(tmp_path / "cache"))
    (tmp_path / "file").touch()
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "page.md").touch()
    for place in ("/proc/nope", tmp_path / "file", *([tmp_path / "docs"] if option == "--results" else [])):
        code, _, err = call(module, *given, *places(tmp_path), option, place)
        assert code == 2
        assert re.fullmatch(
            rf"error: {option} {place}: (cannot be written to \(.*\); name another|is not a results folder; name .*)\n",
            err,
        )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["docs", "file"]


def test_dry_run_of_a_pretraining(call, tiny_world, tmp_path):
    arguments = ["--method", "tespec", "--data", tiny_world / "1mpx", "--dry-run"]
    code, out, _ = call(pretrain_cli, *arguments, *places(tmp_path))
    assert code == 0
    costs = ("memory", "a step", "kept for the backward pass", "35 % of the peak")
    for word in ("type: tespec", "decoder", "parameters", *costs):
        assert word in out
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_needs_no_data(call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TESPEC_DATA", raising=False)
    forecast = ["--dry-run", "--gpu", "a100", "--gpus", "8", "--share", "0.5"]
    code, out, _ = call(run_cli, "--method", "scratch", "--task", "mvsec", "--arch", "feedforward", *forecast)
    assert code == 0
    for word in ("data        sample", "profile     sample", "50 % of the peak", "A100 80GB"):
        assert word in out
    assert "H100" not in out
    code, out, _ = call(pretrain_cli, "--method", "tespec", "--profile", "sample", *forecast[:3], "--accumulate", "4")
    assert code == 0
    assert "96 x 160 px" in out
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--dry-run", "--gpu", "h10"], "--gpu h10: unknown GPU; did you mean 'h100'?"),
        (["--dry-run", "--share", "1.5"], "--share 1.5: no share of a GPU's peak; give a number above 0, 1 at most"),
        (["--dry-run", "--share", "much"], "--share much: no share of a GPU's peak"),
        (["--dry-run", "--gpus", "3"], "batch_size: 4 lanes do not divide evenly into 3 parts"),
        (["--gpu", "h100"], "--gpu, --gpus and --share go with --dry-run"),
    ],
)
def test_mistakes_of_a_forecast_are_named(call, tmp_path, monkeypatch, options, message):
    monkeypatch.chdir(tmp_path)
    arguments = ["--method", "scratch", "--task", "ddd17", "--profile", "sample", *options]
    code, _, err = call(run_cli, *arguments, *places(tmp_path))
    assert code == 2
    assert message in err


def test_a_backbone_by_name_is_pretrained_and_fine_tuned_and_named_in_the_tables(call, tiny_world, tmp_path):
    what = ["--method", "tespec", "--task", "ddd17", "--data", tiny_world / "ddd17", "--profile", "tiny"]
    for name, message in (("microo", "unknown backbone; did you mean 'micro'"), ("resnet-micro", "has no patches")):
        code, _, err = call(run_cli, *what, "--backbone", name, *places(tmp_path))
        assert (code, message in err, list(tmp_path.iterdir())) == (2, True, [])
    what[1] = "cpc"
    code, _, err = call(run_cli, *what, "--backbone", "resnet-micro", *places(tmp_path))
    assert code == 0, err
    records = {record.kind: record for record in read_records(tmp_path / "results")[0]}
    assert set(records) == {"pretraining", "evaluation"}
    for record in records.values():
        assert record.overrides == {"width": "resnet-micro"}
        assert record.config["width"] == record.facts["backbone"] == "resnet-micro"
    rows = to_frame(records.values())
    assert set(rows["backbone"]) == {"resnet-micro"}
    assert set(rows["overrides"]) == set(rows["pretraining_overrides"]) == {""}


def test_a_frozen_backbone_stays_as_it_was_and_the_head_is_trained(call, tiny_world, tmp_path):
    what = ["--method", "scratch", "--task", "ddd17", "--arch", "feedforward", "--data", tiny_world / "ddd17"]
    what += ["--profile", "tiny", "--backbone", "resnet-micro", "--no-picture", *places(tmp_path)]
    networks, records = {}, {}
    for options in ((), ("--freeze",)):
        code, _, err = call(run_cli, *what, *options)
        assert code == 0, err
        (records[options],) = (each for each in read_records(tmp_path / "results")[0] if each not in records.values())
        networks[options] = load_trained(tmp_path / "runs" / records[options].name / "model.safetensors")
    tuned, frozen = records.values()
    assert frozen.overrides == tuned.overrides | {"freeze": True}
    assert frozen.config["freeze"]
    # The running statistics of its batch normalisations included.
    hashes = [state_sha256(each.model.backbone.state_dict()) for each in networks.values()]
    assert hashes[1] == frozen.start_sha256 == tuned.start_sha256 != hashes[0]
    model, settings = networks["--freeze",].model, networks["--freeze",].settings
    seed_everything(derive(0, "model"))
    fresh = build_task(settings, tiny_world / "ddd17").model()
    assert state_sha256(fresh.backbone.state_dict()) == frozen.start_sha256
    head = fresh.head.state_dict()
    assert not any(torch.equal(each, head[name]) for name, each in model.head.named_parameters())
    assert call(run_cli, *what, "--freeze", "--probe")[0] == 2

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from tespec.comparison.frame import to_frame
from tespec.comparison.records import read_records
from tespec.core.paths import REPOSITORY
from tespec.inference import load_trained
from tespec.models import EventSwin
from tespec.tasks import build_task
from tespec.training.device import derive_seed, seed_everything
from tespec.weights.files import read_recipe, read_tensors, state_sha256, write_weights

FEW = [
    "--set",
    "optimisation.steps=2",
    "--set",
    "optimisation.warmup_steps=1",
    "--set",
    "batch_size=2",
]


@pytest.fixture
def places(tmp_path):
    return ["--results", tmp_path / "results", "--runs", tmp_path / "runs", "--device", "cpu"]


def test_lists_and_describes(call, tmp_path):
    code, out, _ = call("run", "--list")
    assert (code, "scratch" in out, "ddd17" in out, "sample" in out) == (0, True, True, True)
    assert "ICCV 2025" in call("run", "--describe", "tespec")[1]
    (tmp_path / "dataset.json").write_text(
        '{"data": "sample", "splits": {"train": ["a"], "test": ["b"]}}'
    )
    for words, settings in {
        "ddd17 --profile study --set batch_size=3": [
            "batch_size: 3 # --set",
            "rule: edges # default",
            "head.channels: 48 # profile sample, task ddd17",
            "labels_per_chunk: 2 # profile sample",
            "sensor_px: null # default",
            "backbone: swin_micro # profile study",
        ],
        f"ddd17 --label-fraction 0.05 --backbone resnet50 --data {tmp_path}": [
            "label_fraction: 0.05 # --set",
            "backbone: resnet50 # --backbone",
            "batch_size: 4 # profile sample",
            "splits.test: [b] # dataset.json",
        ],
        "tespec --profile sample --set objective.mask.ratio=0.3": [
            "objective.mask.ratio: 0.3 # --set",
            "objective.mask.unit: 16 # profile sample, method tespec",
            "objective.target.alpha: 5.0 # recipe of tespec",
            "bins: 10 # default",
        ],
    }.items():
        out = call("run", "--describe", *words.split())[1]
        assert set(settings) <= {" ".join(line.split()) for line in out.splitlines()}, words


def test_pretrains_on_a_single_recording(call, tmp_path, places):
    recording = REPOSITORY / "tests" / "data" / "evt3_640x480_2.08s.raw"
    what = [
        "--method",
        "tespec",
        "--data",
        recording,
        "--profile",
        "sample",
        *FEW,
        "--set",
        "segments=2",
    ]
    code, out, err = call("pretrain", *what, *places)
    assert code == 0, err
    assert "loss_masked_carried" in out
    (record,), _ = read_records(tmp_path / "results")
    assert record.cell.data == "evt3_640x480_2_08s"
    with Image.open(tmp_path / "results" / "pictures" / f"{record.name}.png") as drawn:
        assert drawn.width > 600


@pytest.mark.slow
def test_a_backbone_by_name_is_pretrained_and_fine_tuned_and_named_in_the_tables(
    call, tiny_world, tmp_path, places
):
    what = [
        "--method",
        "cpc",
        "--task",
        "ddd17",
        "--data",
        tiny_world / "ddd17",
        "--profile",
        "smoke",
    ]
    code, out, err = call("run", *what, "--backbone", "resnet_micro", *places)
    assert code == 0, err
    assert out.startswith("cpc on ddd17 (recurrent, data: sample): miou ")
    assert "moving: " in out
    records = {record.cell.kind: record for record in read_records(tmp_path / "results")[0]}
    assert set(records) == {"pretraining", "evaluation"}
    for record in records.values():
        assert record.config["backbone"] == record.cell.backbone == "resnet_micro"
    rows = to_frame(records.values())
    assert set(rows["backbone"]) == {"resnet_micro"}
    assert set(rows["overrides"]) == set(rows["pretraining_overrides"]) == {""}


@pytest.mark.parametrize(
    ("arch", "backbone"), [("feedforward", "resnet_micro"), ("recurrent", "swin_micro")]
)
def test_a_frozen_backbone_stays_as_it_was_and_the_head_is_trained(
    call, tiny_world, tmp_path, places, arch, backbone
):
    what = ["--method", "scratch", "--task", "ddd17", "--arch", arch]
    what += ["--data", tiny_world / "ddd17", "--profile", "smoke", "--backbone", backbone]
    changes = ["--set", "drop_path=0.5"] if backbone == "swin_micro" else []
    code, _, err = call("run", *what, *changes, "--freeze", *places)
    assert code == 0, err
    (record,), _ = read_records(tmp_path / "results")
    assert (record.cell.backbone, record.cell.evaluation) == (backbone, "frozen")
    network = load_trained(tmp_path / "runs" / record.name / "model.safetensors")
    seed_everything(derive_seed(0, "model"))
    fresh = build_task(network.settings, tiny_world / "ddd17").model()
    # The hashes include the running statistics of batch normalisation.
    of_trained, of_fresh = (
        state_sha256(each.backbone.state_dict()) for each in (network.model, fresh)
    )
    assert of_trained == of_fresh == record.start_sha256
    head = fresh.head.state_dict()
    assert not any(
        torch.equal(each, head[name]) for name, each in network.model.head.named_parameters()
    )


def test_the_backbone_of_a_fine_tuned_network_is_a_control_and_nothing_else(
    call, tiny_world, tmp_path, places
):
    def run(start, task="ddd17", arch="feedforward", seed=0):
        what = ["--task", task, "--arch", arch, "--seed", seed, "--data", tiny_world / task]
        return call("run", *start, *what, "--profile", "smoke", *places)

    code, _, err = run(["--method", "scratch"], seed=3)
    assert code == 0, err
    (tuned,), _ = read_records(tmp_path / "results")
    weights = tmp_path / "runs" / tuned.name / "model.safetensors"
    control = ["--reference", "control", "--checkpoint"]
    code, out, err = run([*control, weights])
    assert code == 0, err
    assert out.startswith("control on ddd17 (feedforward, data: sample): miou ")
    (made,) = (each for each in read_records(tmp_path / "results")[0] if each != tuned)
    cell = made.cell
    assert (cell.kind, cell.evaluation, cell.start) == ("control", "frozen", tuned.cell)
    assert made.pretraining == 3
    assert made.facts["title"] == "Fine-tuned backbone (saw these labels)"
    trained = load_file(tmp_path / "runs" / made.name / "model.safetensors")
    assert all(
        torch.equal(trained[name], tensor)
        for name, tensor in load_file(weights).items()
        if name.startswith("backbone.")
    )
    tensors, recipe = read_tensors(weights)
    changed = {"pretrained": {"run": recipe["run"] | {"pretraining": 7}}}
    changed |= {"frozen": {"frozen": True}, "few": {"label_fraction": 0.5}}
    for name, facts in changed.items():
        write_weights(tmp_path / name, tensors, recipe | facts)
    assert run([*control, tmp_path / "pretrained"], seed=1)[0] == 0
    assert 7 in {each.pretraining for each in read_records(tmp_path / "results")[0]}
    other = "so it is no positive control; give"
    for refused, message in (
        (run(["--method", "ecddp", "--checkpoint", weights]), "holds a fine-tuned network"),
        (run([*control, weights], arch="recurrent"), "give weights of backbone"),
        (run([*control, weights], task="dsec"), other),
        (run([*control, tmp_path / "frozen"]), other),
        (run([*control, tmp_path / "few"]), other),
    ):
        assert (refused[0], message in refused[2]) == (2, True)


def test_a_backbone_whose_features_are_not_finite_is_not_probed(call, tiny_world, tmp_path, places):
    path, state = (
        tmp_path / "backbone.safetensors",
        EventSwin("swin_micro", recurrent=False, img_size=(64, 96)).state_dict(),
    )
    # finite, but no sum of products with counts is
    state["swin.patch_embed.proj.weight"].fill_(3e38)
    write_weights(
        path, state, {"backbone": "swin_micro", "recurrent": False, "bins": 10, "sensor": [64, 96]}
    )
    what = [
        "--method",
        "ecddp",
        "--task",
        "ddd17",
        "--arch",
        "feedforward",
        "--data",
        tiny_world / "ddd17",
    ]
    code, out, err = call(
        "run", *what, "--profile", "smoke", "--checkpoint", path, "--probe", *places
    )
    assert (code, out) == (2, "")
    assert err.splitlines()[-1] == (
        "error: the backbone: gives features that are infinite or NaN; use other weights"
    )
    assert not [
        file
        for file in tmp_path.rglob("*")
        if file.is_file() and file != path and ".locks" not in file.parts
    ]


def test_a_recording_of_the_data_is_drawn_with_its_labels_by_name_and_by_path_with_data(
    call, tiny_world, tmp_path, places
):
    data, profile = ["--data", tiny_world / "ddd17"], ["--profile", "smoke", *FEW]
    code, _, err = call("run", "--method", "scratch", "--task", "ddd17", *data, *profile, *places)
    assert code == 0, err
    (path,) = tmp_path.glob("runs/*/model.safetensors")
    recipe = read_recipe(path)["histograms"]
    assert (recipe["window_ms"], recipe["size"], recipe["reset"]) == (30.0, [64, 96], False)
    drawing = ["--model", path, "--out", tmp_path / "out", "--device", "cpu", "--predict"]
    recording = tiny_world / "ddd17" / "dir2"
    printed = [
        call("run", *drawing, *words)[1].strip().split(": ")
        for words in (["dir2", *data], [recording, *data], [recording])
    ]
    by_name, by_path, alone = (counts for counts, _ in printed)
    names = ["dir2.png", "dir2-2.png", "dir2-3.png"]
    assert [file for _, file in printed] == [str(tmp_path / "out" / name) for name in names]
    assert by_name == by_path == "63 windows, 63 of them labelled"
    assert alone.endswith(" windows, 0 of them labelled")

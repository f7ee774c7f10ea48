"""Every objective, from data to weights that a task can start from."""

import shutil
from functools import cache

import pytest
import torch
from loss_cases import CASES as NETWORKS
from short_runs import cell_spec, setup_in

from tespec.core.config import pretraining_settings
from tespec.core.errors import UserError
from tespec.core.files import sha256_of
from tespec.pretraining import data
from tespec.pretraining.method import EventMethod, find_method, open_pretraining
from tespec.registry import register_methods
from tespec.runs import validation
from tespec.runs.data import Data, settings_of
from tespec.runs.finetune import prepare_run
from tespec.runs.pretrain import pretrain
from tespec.training.trainer import LossModule

TASKS = ("segmentation", "detection", "depth")
FEW = ["optimisation.steps=2", "optimisation.warmup_steps=1", "batch_size=3"]
# The data of each method; TESPEC's pre-trainings are golden cases.
DATA = dict.fromkeys(("ecddp", "mem"), "1mpx") | dict.fromkeys(
    ("ecdp", "cm3ae", "scaleevent"), "ddd17"
)
DATA |= dict.fromkeys(("moby", "imagenet"), "objects")


def few_steps(name, *changes):
    return pretraining_settings(name, "sample", [*FEW, *changes])


def run(tiny_world, folder, name, *changes):
    register_methods()
    return pretrain(
        name,
        few_steps(name, *changes),
        Data(tiny_world / DATA[name], "sample"),
        0,
        setup_in(folder),
    )


@pytest.fixture(scope="module")
def made(tiny_world, tmp_path_factory):
    """Return a function that pre-trains each method once, with little validation data."""

    @cache
    def make(name):
        taught = (
            [f"objective.teacher_weights={make('imagenet').weights}"]
            if name in ("ecdp", "scaleevent")
            else []
        )
        return run(tiny_world, tmp_path_factory.mktemp("made"), name, *taught)

    with pytest.MonkeyPatch.context() as patch:
        for name in ("VAL_WINDOWS", "VAL_PAIRS", "VAL_IMAGES"):
            patch.setattr(data, name, 4)
        patch.setattr(validation, "FRAMES", 4)
        yield make


@pytest.mark.parametrize("name", [name for name in NETWORKS if name not in TASKS])
def test_a_few_steps_lower_the_loss_and_train_every_parameter(name):
    model, batch = NETWORKS[name]()
    trained = {each: value for each, value in model.named_parameters() if value.requires_grad}
    before = {each: value.detach().clone() for each, value in trained.items()}
    optimizer = torch.optim.Adam(trained.values(), 2e-3)
    losses = []
    for step in range(6):
        torch.manual_seed(0)  # the same views
        named, _ = model.loss(batch, None)
        assert all(torch.isfinite(value).all() for value in named.values())
        optimizer.zero_grad()
        named["loss"].backward()
        losses.append(named["loss"].item())
        optimizer.step()
        if hasattr(model, "after_step"):
            model.after_step((step + 1) / 6)
    assert losses[-1] < losses[0] - 0.01
    assert not [each for each, value in trained.items() if torch.equal(value, before[each])]


@pytest.mark.parametrize("name", ["mem", "moby", "ecdp"])
def test_a_record_names_what_was_trained_on_and_held_out_and_no_test_recording(made, name):
    record = made(name).record
    assert {"last_stage_std", "last_stage_rank"} < set(record.metrics)
    assert {part for each in record.recordings.values() for part in each} == {"train", "held_out"}
    assert not any("test" in name or name.startswith("dir2") for name in record.recordings)


def test_another_network_counts_by_its_content_wherever_its_file_lies(tiny_world, made, tmp_path):
    file = shutil.copy(made("imagenet").weights, tmp_path / "teacher.safetensors")
    trained = made("scaleevent")
    folder = trained.weights.parents[2]
    taken_up = run(tiny_world, folder, "scaleevent", f"objective.teacher_weights={file}")
    assert taken_up.record == trained.record
    assert taken_up.record.start_sha256 == sha256_of(file)


@pytest.mark.parametrize("case", ["moby", "ecddp", "ecdp", "mem", "cm3ae", "scaleevent"])
def test_a_task_starts_from_them(tiny_world, made, tmp_path, case):
    method, data = find_method(case), Data(tiny_world / "mvsec", "sample")
    for arch in method.architectures:
        settings = settings_of(data, "mvsec", arch, None, [], method.network)
        spec = cell_spec(
            tiny_world,
            tmp_path,
            "mvsec",
            arch,
            case,
            settings=settings,
            checkpoint=made(case).weights,
        )
        start = prepare_run("evaluation", spec)[0].start
        assert not [name for name in start["fresh"] if not name.startswith("lstms.")]
        assert bool(start["fresh"]) == (arch == "recurrent") == (start["coverage"] < 1)
        assert ("swin.patch_embed.proj.weight" in start["adapted"]) == (case == "moby")


@pytest.mark.parametrize("name", ["ecdp", "cm3ae"])
@pytest.mark.parametrize("batch", [2, 100_000])
def test_pairs_are_scored_at_every_batch_size(tiny_world, name, batch):
    task = open_pretraining(few_steps(name, f"batch_size={batch}"), tiny_world / "ddd17")
    scored = sum(len(each["images"]) for each in task.val_batches(torch.device("cpu")))
    pairs = sum(each.get("held_out", 0) for each in task.recordings().values())
    assert max(2, pairs - 1) <= scored <= pairs


DECODER = r"objective.decoder: LastStageDecoder cannot be built \(.*\); correct its settings"
UNIT = "is not allowed; it should be 4, 8, 16 or 32"
MISTAKES = [
    (
        "tespec",
        "1mpx",
        "objective=mae",
        "method mae: has no pre-training recipe; choose from cm3ae, cpc",
    ),
    (
        "tespec",
        "1mpx",
        "objective.mask.ratio=1e-4",
        r"mask.ratio: 0.0001 masks none of \d+ patches; .* autoencoder",
    ),
    ("tespec", "1mpx", "objective.mask.unit=24", f"objective.mask.unit: 24 {UNIT}"),
    (
        "tespec",
        "1mpx",
        "objective.decoder.type=None",
        "objective.decoder.type: unknown model 'None'; choose from",
    ),
    ("tespec", "1mpx", "objective.decoder={type: LastStageDecoder, widht: 32}", DECODER),
    ("tespec", "1mpx", "objective.decoder={type: LastStageDecoder, width: wide}", DECODER),
    ("tespec", "1mpx", "objective.ahead=2", "--set objective.ahead=2: unknown setting 'ahead'"),
    (
        "tespec",
        "1mpx",
        "segments=1000",
        "fewer than 1; the longest has .* of 50 ms; use --set segments=.*, or longer",
    ),
    (
        "ecddp",
        "1mpx",
        "objective.large=40",
        "objective.large: 40 is not allowed; it should be a multiple of 32",
    ),
    (
        "moby",
        "objects",
        "batch_size=2000",
        "batch_size: 2000 images do not fit into the queue of 1024; use fewer",
    ),
    (
        "moby",
        "objects",
        "recurrent=true",
        "recurrent: images have no order in time; set it to false",
    ),
    ("moby", "ddd17/dir0/index", "", "holds 0 images"),
    ("mem", "1mpx", "objective.tokenizer.unit=64", f"objective.tokenizer.unit: 64 {UNIT}"),
    (
        "ecdp",
        "ddd17",
        "recurrent=true",
        "recurrent: pairs of events and image have no order in time",
    ),
    (
        "cm3ae",
        "ddd17",
        "objective.mask.ratio=0",
        r"objective.mask.ratio: 0 leaves none of \d+ patches masked; choose",
    ),
    (
        "cm3ae",
        "ddd17",
        "objective.mask.ratio=1",
        r"objective.mask.ratio: 1 leaves none of \d+ patches visible; choose",
    ),
    (
        "cm3ae",
        "ddd17",
        "objective.heads=5",
        "objective.heads: 5 does not divide the width of 192; set it to a divisor",
    ),
    (
        "cpc",
        "1mpx",
        "segments=2",
        "objective.ahead: 2 segments are too few to predict 2 ahead; decrease it, or",
    ),
    ("moby", "objects/train/street", "", "fewer than 2 images are left for validation; add images"),
    (
        "imagenet",
        "objects/train/car",
        "",
        "car: holds images outside of folders of classes; sort its images into a",
    ),
    (
        "imagenet",
        "objects",
        "objective.augment=autumn",
        "objective.augment: timm has no augmentation 'autumn'; write",
    ),
    (
        "imagenet",
        "objects",
        "objective.augment=rand-x9",
        "objective.augment: timm has no augmentation 'rand-x9'; wr",
    ),
    (
        "tespec",
        "1mpx",
        "--backbone=resnet",
        "--backbone resnet_micro: TESPEC does not work with it; choose from swin_micro, swin_tiny",
    ),
    (
        "cm3ae",
        "ddd17",
        "--backbone=resnet",
        "resnet_micro: CM3AE does not work with it; choose fro",
    ),
    (
        "ecddp",
        "1mpx",
        "--backbone=vit_micro",
        "vit_micro: ECDDP does not work with it; choose from s",
    ),
    (
        "mem",
        "1mpx",
        "--backbone=vit_small",
        "unit of masks: 8 px are no multiple of the 16 px patches of vit_small; choose a multiple",
    ),
]


def changed(name, change):
    """Settings of a method with a change NAME=VALUE, with another backbone, or as they are."""
    register_methods()
    setting, _, backbone = change.partition("--backbone=")
    return pretraining_settings(name, "sample", [setting] if setting else [], backbone or None)


@pytest.mark.parametrize(("name", "data", "change", "message"), MISTAKES)
def test_mistakes_are_named(tiny_world, name, data, change, message):
    with pytest.raises(UserError, match=message):  # noqa: PT012  # at either of the two
        opened = open_pretraining(changed(name, change), tiny_world / data)
        opened.method.from_data(opened)


UNUSED = {
    "moby": [
        "augmentation.flip=0.1",
        "bins=5",
        "rule=rvt",
        "sampling=stream",
        "segments=2",
        "sensor_px=8x8",
    ],
    "imagenet": ["downsample.keep=nearest", "window_ms=20"],
    "ecdp": ["sampling=stream", "segments=2"],
    "cm3ae": ["segments=2"],
    "scaleevent": ["sampling=stream"],
    "mem-tokenizer": ["drop_path=0.2", "recurrent=true", "--backbone=swin_tiny"],
}
EARLY = [
    (
        name,
        change,
        f"{change.split('=')[0]}: has no effect on the pre-training of .*; leave it unchanged",
    )
    for name, changes in UNUSED.items()
    for change in changes
]
EARLY += [
    (
        "mem",
        "recurrent=true",
        "recurrent: chunks of one window have no state to carry, .*; set sampling to stream",
    ),
    ("mem", "objective.ratio=0", "objective.ratio: 0 is not allowed; it should be greater than 0"),
]


@pytest.mark.parametrize(("name", "change", "message"), EARLY)
def test_mistakes_are_named_before_data_is_read_and_another_network_is_pre_trained(
    tmp_path, name, change, message
):
    settings = changed(name, change)
    with pytest.raises(UserError, match=message):
        pretrain(name, settings, Data(tmp_path / "missing", "sample"), 0, setup_in(tmp_path))


def test_a_method_without_a_loss_is_refused():
    class Lossless(EventMethod):
        backbone = None

    with pytest.raises(UserError, match=r"Lossless\.loss: does not return losses by name"):
        LossModule(Lossless())({}, None)


def test_images_are_looked_for_before_events_are_read(tmp_path):
    (tmp_path / "damaged_td.dat").write_bytes(b"no events")
    with pytest.raises(
        UserError, match="no recording has images in imgs/; give recordings of the DDD17 archive"
    ):
        open_pretraining(few_steps("ecdp"), tmp_path)

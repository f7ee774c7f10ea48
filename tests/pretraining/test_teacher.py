"""Frozen image networks: features, preprocessing, files and refusals."""

import tespec.core.compat  # noqa: F401  # before timm

import numpy as np
import pytest
import timm
import torch
from loss_cases import CASES, own
from PIL import Image
from short_runs import setup_in
from torchvision import transforms

from baselines.ecdp import Ecdp
from baselines.scaleevent import ScaleEvent
from tespec.core.config import changed_settings, pretraining_settings
from tespec.core.errors import UserError
from tespec.pretraining.method import open_pretraining
from tespec.pretraining.teacher import clip_preprocess
from tespec.runs.data import Data
from tespec.runs.identity import required_network, required_settings
from tespec.runs.pretrain import pretrain

MAPS = {
    "vit_tiny_patch16_224": 192,
    "resnet18": 256,
    "swin_tiny_patch4_window7_224": 384,
    "imagenet": 96,
}
VECTORS = {
    "vit_tiny_patch16_224": 1000,
    "resnet18": 1000,
    "test_vit.r160_in1k": 1000,
    "imagenet": 192,
}
IMAGES = torch.randint(
    0, 256, (2, 1, 60, 90), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
)


@pytest.mark.parametrize(("teacher", "width"), MAPS.items())
def test_any_image_network_at_stride_16_teaches_by_a_map(teacher, width):
    settings = pretraining_settings("scaleevent", "sample", [f"objective.teacher={teacher}"])
    built = ScaleEvent.build_teacher(teacher, settings, (64, 96))
    assert built(IMAGES).shape == (2, width, 4, 6)


@pytest.mark.parametrize(("teacher", "width"), VECTORS.items())
def test_any_image_network_teaches_by_a_vector(teacher, width):
    settings = pretraining_settings("ecdp", "sample", [f"objective.teacher={teacher}"])
    built = Ecdp.build_teacher(teacher, settings, (64, 96))
    assert built(IMAGES).shape == (2, width)
    assert not built(IMAGES).requires_grad


def test_clips_preprocessing_is_the_published_one():
    """openai/CLIP, clip/clip.py, _transform, of ViT-B/32, which is ECDP's image network."""
    published = timm.get_pretrained_cfg(Ecdp.recipe.objective.teacher)
    assert (published.input_size, published.num_classes) == ((3, 224, 224), 512)
    # resizing keeps it below 255
    smooth = np.add.outer(np.arange(60) * 2, np.arange(90)).astype(np.uint8)
    steps = [
        transforms.Resize(224, Image.Resampling.BICUBIC),
        transforms.CenterCrop(224),
        transforms.ToTensor(),
    ]
    statistics = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
    transform = transforms.Compose([*steps, transforms.Normalize(*statistics)])
    expected = transform(Image.fromarray(smooth).convert("RGB"))
    found = clip_preprocess(torch.from_numpy(smooth).expand(1, 3, -1, -1), published.to_dict())
    assert found.shape == (1, 3, 224, 224)
    torch.testing.assert_close(found[0], expected, atol=1.01 / 255 / 0.26, rtol=0)  # one grey level


@pytest.mark.parametrize("network", ["swin", "resnet"])
def test_scaleevents_teacher_has_the_backbone_of_the_events_and_ecdps_that_of_its_method(network):
    for kind, changed in ((ScaleEvent, network != "swin"), (Ecdp, False)):
        settings = pretraining_settings(kind.__name__.lower(), "sample", [], network)
        first = required_settings(settings, "imagenet")
        images = open_pretraining(first, None)
        trained = images.method.from_data(images)
        built = kind.build_teacher("imagenet", settings, (64, 64))
        built.network.load_state_dict(trained.backbone.state_dict())
        assert changed_settings(first, "swin") == (
            {"backbone": settings.backbone} if changed else {}
        )


@pytest.mark.parametrize("kind", [ScaleEvent, Ecdp])
@pytest.mark.parametrize(
    ("teacher", "weights", "message"),
    [
        (
            "nonsense",
            "",
            "'nonsense': is neither a timm network nor a method that learns from images",
        ),
        ("tespec", "", "'tespec': is neither a timm network nor a method that learns from images"),
        (
            "resnet18.nonsense",
            "",
            "'resnet18.nonsense': is neither a timm network nor a method that",
        ),
        ("imagenet", "nowhere.pth", "objective.teacher_weights 'nowhere.pth': no such file"),
        (
            "resnet18",
            "nowhere.pth",
            "'nowhere.pth': no such file; set it to the weights of resnet18",
        ),
    ],
)
def test_other_teachers_are_refused_before_data_is_opened(kind, teacher, weights, message):
    changes = [f"objective.teacher={teacher}", f"objective.teacher_weights={weights!r}"]
    settings = pretraining_settings(kind.__name__.lower(), "paper", changes)
    with pytest.raises(UserError, match=message):
        required_network(settings)


@pytest.mark.parametrize(
    ("method", "source"),
    [
        (
            Ecdp,
            "vit_base_patch32_clip_quickgelu_224.openai, "
            "from huggingface.co/timm/vit_base_patch32_clip_224.openai",
        ),
        (
            ScaleEvent,
            "vit_small_patch16_dinov3.lvd1689m, "
            "from huggingface.co/timm/vit_small_patch16_dinov3.lvd1689m",
        ),
    ],
)
def test_without_a_file_the_missing_one_is_named(method, source):
    settings = pretraining_settings(method.__name__.lower(), "paper")
    name, file = required_network(settings)
    assert not file
    with pytest.raises(UserError) as refused:
        required_settings(settings, name)
    assert (
        str(refused.value)
        == f"objective.teacher_weights: no file is given; set it to the weights of {source}"
    )


@pytest.mark.parametrize(
    ("case", "teacher"), [("ecdp", "test_vit"), ("scaleevent", "vit_tiny_patch16_224")]
)
def test_a_file_of_the_network_is_loaded_and_others_are_refused(tmp_path, case, teacher):
    model = CASES[case]()[0]
    kind, settings = type(model), pretraining_settings(case, "sample")
    model.cfg = own(case, teacher=teacher)
    model.teacher = kind.build_teacher(teacher, settings, (64, 96))
    torch.manual_seed(1)
    # for images of its own size
    torch.save(timm.create_model(teacher).state_dict(), tmp_path / "a.pth")
    before = model.teacher(IMAGES)
    model.load_required(tmp_path / "a.pth")
    assert not torch.equal(model.teacher(IMAGES), before)
    assert not any(parameter.requires_grad for parameter in model.teacher.parameters())
    torch.save(timm.create_model("resnet18").state_dict(), tmp_path / "b.pth")
    (tmp_path / "c.pth").write_bytes(b"")
    for name in "bc":
        with pytest.raises(UserError, match=rf"{name}\.pth: contains no weights of {teacher}"):
            model.load_required(tmp_path / f"{name}.pth")


def test_a_network_without_stride_16_is_refused_for_maps():
    settings = pretraining_settings("scaleevent", "sample", [])
    with pytest.raises(
        UserError,
        match=r"objective\.teacher: has no features at stride 16; choose a ViT with 16 px",
    ):
        ScaleEvent.build_teacher("vit_small_patch32_224", settings, (64, 96))


def test_data_without_images_are_refused_before_the_image_network_is_pre_trained(
    tiny_world, tmp_path
):
    settings = pretraining_settings("ecdp", "smoke")
    with pytest.raises(UserError, match="has images in imgs/"):
        pretrain("ecdp", settings, Data(tiny_world / "1mpx", "sample"), 0, setup_in(tmp_path))
    assert not [*tmp_path.rglob("*.json"), *tmp_path.rglob("*.safetensors")]

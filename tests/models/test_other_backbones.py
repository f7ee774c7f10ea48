import pytest
import torch

from tespec.core.boxes import Boxes
from tespec.core.errors import UserError
from tespec.models import EventResNet, build_backbone
from tespec.models.event_maxvit import EventMaxViT, partition_of
from tespec.tasks.depth import DepthModel
from tespec.tasks.detection import DetectionModel
from tespec.tasks.segmentation import SegmentationModel

SIZE = (64, 96)
NAMES = ("resnet-micro", "maxvit-micro")


def backbone(arch, recurrent=True, size=SIZE):
    torch.manual_seed(0)
    return build_backbone(arch, recurrent, 10, size).eval()


def histograms(height=50, width=70, segments=3):
    shape = (2, segments, 20, height, width)
    return torch.randint(0, 4, shape, generator=torch.Generator().manual_seed(0), dtype=torch.uint8)


@pytest.mark.parametrize("recurrent", [True, False])
@pytest.mark.parametrize("arch", NAMES)
@torch.no_grad()
def test_a_sequence_equals_its_steps(arch, recurrent):
    model, data = backbone(arch, recurrent), histograms()
    features, last = model(data)
    assert [feature.shape for feature in features] == [
        (2, 3, channels, SIZE[0] // stride, SIZE[1] // stride)
        for channels, stride in zip(model.channels, (4, 8, 16, 32), strict=True)
    ]
    state = None
    for t in range(3):
        of_step, state = model.step(data[:, t], state)
        for whole, step in zip(features, of_step, strict=True):
            torch.testing.assert_close(step, whole[:, t], rtol=1e-4, atol=1e-5)
    assert (last is None) == (state is None) == (not recurrent)


@pytest.mark.parametrize("arch", NAMES)
def test_gradients_reach_every_parameter(arch):
    model = backbone(arch).train()
    features, _ = model(histograms())
    sum(feature.square().mean() for feature in features).backward()
    assert all(torch.isfinite(parameter.grad).all() for parameter in model.parameters())
    # timm starts the last normalisation of a residual block at zero, so that no gradient passes it in the first step.
    kept = [parameter for name, parameter in model.named_parameters() if ".conv" not in name and ".bn1" not in name]
    assert all(parameter.grad.abs().sum() > 0 for parameter in kept)


@pytest.mark.parametrize("arch", NAMES)
def test_every_head_runs_on_it(arch):
    data = {
        "histograms": histograms(),
        "fresh": torch.ones(2, dtype=torch.bool),
        "label_place": torch.tensor([[0, 1], [1, 2]]),
    }
    cases = (
        (SegmentationModel(backbone(arch), 4, channels=16), {"labels": torch.ones(2, 50, 70, dtype=torch.uint8)}),
        (DepthModel(backbone(arch), 16), {"labels": torch.full((2, 50, 70), 9.0)}),
        (DetectionModel(backbone(arch), 2), {"boxes": torch.tensor([[[1.0, 5, 5, 40, 40]], [[0, 9, 9, 30, 30]]])}),
    )
    for model, labels in cases:
        losses, _ = model.train().loss(data | labels, None)
        losses["loss"].backward()
        with torch.no_grad():
            predicted, _ = model.eval().step(data["histograms"][:, 0])
        assert torch.isfinite(losses["loss"])
        assert isinstance(predicted[0], Boxes) or predicted.shape == (2, 50, 70)


def test_full_size_networks_have_the_parameters_that_their_pages_say():
    counts = {
        arch: sum(parameter.numel() for parameter in build_backbone(arch, recurrent, 10, (256, 320)).parameters())
        for arch, recurrent in (("resnet50", False), ("maxvit-base", True))
    }
    assert counts == {"resnet50": 23_561_344, "maxvit-base": 12_786_688}


def test_partitions_are_rvts():
    assert partition_of((256, 320)) == (8, 10)  # Gen1
    assert partition_of((384, 640)) == (6, 10)  # 1Mpx at half resolution
    assert partition_of((224, 352)) == (7, 11)


def test_unknown_names_and_sizes_are_refused():
    with pytest.raises(
        UserError, match="arch: unknown value 'vgg'; choose from maxvit-base, maxvit-micro, micro, resnet"
    ):
        build_backbone("vgg", True, 10, SIZE)
    for kind in (EventResNet, EventMaxViT):
        with pytest.raises(UserError, match="is not made of multiples of 32"):
            kind(img_size=(60, 96))
        with pytest.raises(UserError, match="unknown value 'vgg'"):
            kind(arch="vgg")

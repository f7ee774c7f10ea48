"""ScaleEvent: losses against the authors' code, active tokens, and the teacher."""

import pytest
import torch
from loss_cases import CASES, own
from torch.nn.functional import cosine_similarity

from baselines.scaleevent import ScaleEvent, active_tokens, build_teacher, distances
from tespec.core.config import changed_settings, pretraining_settings
from tespec.core.errors import UserError
from tespec.pretraining.method import new_network, open_pretraining


def test_losses_are_those_of_the_authors_code():
    """zhiwen-xdu/ScaleEvent, scale_event/pretrain/criterion.py, DistillLoss_With_CrossGram_V2, in float64."""
    generator = torch.Generator().manual_seed(0)
    events, images = (torch.randn(2, 5, 4, generator=generator, dtype=torch.float64) for _ in range(2))
    active = torch.tensor([[1, 1, 0, 1, 1], [1, 0, 1, 1, 1]], dtype=torch.float64).unsqueeze(2)
    intra = cross = 0.0
    for k, q in zip(events * active, images * active, strict=True):
        pairs = ((q, q), (k, k), (q, k))
        wanted, to_events, to_image = (cosine_similarity(a[:, None], b, dim=2).clamp(min=0) for a, b in pairs)
        intra += (to_events - wanted)[wanted > 0.1].square().sum().item() / 50
        cross += (to_image - wanted)[wanted > 0.1].square().sum().item() / 50
    plain = ((events - images) * active).abs().mean().item()
    found = distances(events, images, active, 0.1)
    assert [each.item() for each in found] == pytest.approx([plain, intra, cross], rel=1e-6)


def test_the_loss_weighs_them_1_10_and_4_and_only_events_learn():
    model, batch = CASES["scaleevent"]()
    named, _ = model.loss(batch, None)
    weighed = named["loss_plain"] + 10 * named["loss_intra"] + 4 * named["loss_cross"]
    assert named["loss"].item() == pytest.approx(weighed.item())
    named["loss"].backward()
    assert all(parameter.grad is None for parameter in model.teacher.parameters())
    model.train()
    model.loss(batch, None)
    assert not model.teacher.network.training


def test_a_token_counts_from_64_events_on():
    histograms = torch.zeros(1, 20, 32, 32, dtype=torch.uint8)
    histograms[0, 3, :8, :8] = 1  # 64 in the first token
    histograms[0, 4, 16:24, 16:24] = 1
    histograms[0, 4, 16, 16] = 0  # 63 in the last
    assert active_tokens(histograms, ScaleEvent.recipe.objective.activation).flatten().tolist() == [1, 0, 0, 0]


TEACHERS = {"vit_tiny_patch16_224": 192, "resnet18": 256, "swin_tiny_patch4_window7_224": 384, "imagenet": 96}


@pytest.mark.parametrize(("teacher", "width"), TEACHERS.items())
def test_any_image_network_at_stride_16_teaches(teacher, width):
    settings = pretraining_settings("scaleevent", "sample", [f"objective.teacher={teacher}"])
    built = build_teacher(teacher, settings, (64, 96))
    assert built(torch.zeros(2, 1, 60, 90, dtype=torch.uint8)).shape == (2, width, 4, 6)


@pytest.mark.parametrize("network", ["swin", "resnet"])
def test_a_teacher_that_is_pre_trained_first_has_the_backbone_that_is_built(network):
    settings = pretraining_settings("scaleevent", "sample", [], network)
    first = ScaleEvent.upstream_settings(settings, "imagenet")
    trained, built = new_network(first, open_pretraining(first, None)), build_teacher("imagenet", settings, (64, 64))
    built.network.load_state_dict(trained.backbone.state_dict())
    assert changed_settings(first, "swin") == ({} if network == "swin" else {"width": settings.width})


@pytest.mark.parametrize(
    ("teacher", "weights", "message"),
    [
        ("nonsense", "", "'nonsense': is neither a timm network nor a method that learns from images"),
        ("tespec", "", "'tespec': is neither a timm network nor a method that learns from images"),
        ("resnet18.nonsense", "", "'resnet18.nonsense': is neither a timm network nor a method that"),
        ("resnet18", "", "objective.teacher_weights '': no such file; set it to the weights of resnet18"),
        ("imagenet", "nowhere.pth", "objective.teacher_weights 'nowhere.pth': no such file"),
    ],
)
def test_other_teachers_are_refused_before_data_is_opened(teacher, weights, message):
    with pytest.raises(UserError, match=message):
        ScaleEvent.upstream(own("scaleevent", teacher=teacher, teacher_weights=weights))


def test_a_network_without_stride_16_and_a_file_of_another_are_refused(tmp_path):
    settings = pretraining_settings("scaleevent", "sample", [])
    with pytest.raises(UserError, match=r"objective\.teacher: has no features at stride 16; choose a ViT with 16 px"):
        build_teacher("vit_small_patch32_224", settings, (64, 96))
    model = CASES["scaleevent"]()[0]
    model.teacher = build_teacher("resnet18", settings, (64, 96))
    (tmp_path / "a.pth").write_bytes(b"")
    with pytest.raises(UserError, match=r"a\.pth: contains no weights of"):
        model.load_upstream(tmp_path / "a.pth")

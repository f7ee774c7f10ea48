import pytest
import torch
from mmengine.registry import DefaultScope
from torch.nn.functional import cross_entropy

from tespec.models import EventSwin
from tespec.tasks.segmentation import SegmentationModel, dice_losses

HEIGHT, WIDTH, CLASSES = 50, 70, 6


def segmentation_model(recurrent=True):
    torch.manual_seed(0)
    return SegmentationModel(EventSwin("micro", recurrent, img_size=(64, 96)), CLASSES, channels=16)


def labelled_batch(lanes=2, segments=4, labelled=2, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shape = (lanes, segments, 20, HEIGHT, WIDTH)
    labels = torch.randint(0, CLASSES, (lanes * labelled, HEIGHT, WIDTH), generator=generator, dtype=torch.uint8)
    labels[..., :5, :] = 255
    return {
        "histograms": torch.randint(0, 4, shape, generator=generator, dtype=torch.uint8),
        "fresh": torch.zeros(lanes, dtype=torch.bool),
        "labels": labels,
        "label_place": torch.tensor([[0, 1], [0, 3], [1, 0], [1, 2]]),
    }


def test_parameters_of_the_head():
    model = SegmentationModel(EventSwin("tiny", recurrent=False, img_size=(32, 32)), classes=11)
    assert sum(parameter.numel() for parameter in model.head.parameters()) == 11_290_475


@torch.no_grad()
def test_loss_is_cross_entropy_plus_dice_of_the_labelled_segments():
    model, batch = segmentation_model().eval(), labelled_batch()
    losses, _ = model.loss(batch, None)
    logits, _ = model.predict(batch["histograms"])
    chosen = torch.stack([logits[0, 1], logits[0, 3], logits[1, 0], logits[1, 2]])
    labels = batch["labels"]
    expected = cross_entropy(chosen, labels.long(), ignore_index=255)
    torch.testing.assert_close(losses["loss_ce"], expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(losses["loss_dice"], dice_losses(chosen, labels).mean(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(losses["loss"], losses["loss_ce"] + losses["loss_dice"])


def test_the_head_sees_the_labelled_segments_alone():
    model, batch = segmentation_model(), labelled_batch()
    seen = []
    model.head.register_forward_hook(lambda _, inputs, __: seen.append(len(inputs[0][0])))
    model.loss(batch, None)
    assert seen == [4]


def test_a_step_without_labelled_pixels_costs_nothing():
    model, batch = segmentation_model(), labelled_batch()
    batch["labels"].fill_(255)
    losses, _ = model.loss(batch, None)
    losses["loss"].backward()
    assert losses["loss"].item() == pytest.approx(0, abs=1e-6)
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)


@pytest.mark.parametrize("recurrent", [True, False])
@torch.no_grad()
def test_prediction_equals_its_steps_and_has_the_unpadded_size(recurrent):
    model, histograms = segmentation_model(recurrent).eval(), labelled_batch()["histograms"]
    logits, _ = model.predict(histograms)
    assert logits.shape == (2, 4, CLASSES, HEIGHT, WIDTH)
    state = None
    for t in range(4):
        of_segment, _ = model.predict(histograms[:, t : t + 1], state)
        torch.testing.assert_close(of_segment[:, 0], logits[:, t], rtol=1e-5, atol=1e-5)
        mask, state = model.step(histograms[:, t], state)
        assert mask.dtype == torch.uint8
        assert torch.equal(mask, of_segment[:, 0].argmax(dim=1))


@torch.no_grad()
def test_fresh_lanes_forget_and_the_others_do_not():
    model, batch = segmentation_model().eval(), labelled_batch()
    _, state = model.loss(labelled_batch(seed=1), None)
    afresh, _ = model.loss(batch, None)
    forgotten, _ = model.loss(batch | {"fresh": torch.tensor([True, True])}, state)
    half, _ = model.loss(batch | {"fresh": torch.tensor([True, False])}, state)
    carried, _ = model.loss(batch, state)
    assert forgotten["loss"].item() == pytest.approx(afresh["loss"].item(), rel=1e-6)
    assert len({afresh["loss"].item(), half["loss"].item(), carried["loss"].item()}) == 3


def test_a_step_trains_everything_and_hands_on_a_detached_state():
    model = segmentation_model()
    losses, state = model.loss(labelled_batch(), None)
    losses["loss"].backward()
    without = [name for name, parameter in model.named_parameters() if parameter.grad is None]
    assert without == []
    assert model.backbone.get_parameter("swin.patch_embed.proj.weight").grad.abs().sum() > 0
    assert not any(part.requires_grad for pair in state for part in pair)


def test_another_default_scope_changes_nothing():
    with DefaultScope.overwrite_default_scope("mmdet"):
        model = segmentation_model()
    assert type(model.head).__module__.startswith("mmseg.")
    expected = segmentation_model().state_dict()
    assert all(torch.equal(value, expected[name]) for name, value in model.state_dict().items())

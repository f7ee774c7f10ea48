import pytest
import torch

from tespec.models import EventSwin
from tespec.models.backbone import resized
from tespec.models.event_swin import resize_table
from tespec.tasks.segmentation import VIEWS, AveragedViews, SegmentationModel

SIZE = (50, 70)
PLACE = torch.tensor([[0, 1], [0, 2], [1, 2]])


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return SegmentationModel(EventSwin("micro", True, img_size=(64, 96)), 5, channels=16).eval()


@pytest.fixture(scope="module")
def histograms():
    return torch.randint(0, 4, (2, 3, 20, *SIZE), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)


@torch.no_grad()
def test_flip_is_the_mean_with_the_mirrored_image(model, histograms):
    straight, _ = model.predict(histograms, None, PLACE)
    mirrored, _ = model.predict(histograms.flip(-1), None, PLACE)
    seen, _ = AveragedViews(model, VIEWS["flip"], SIZE).predict(histograms, None, PLACE)
    torch.testing.assert_close(seen, (straight + mirrored.flip(-1)) / 2)


@pytest.mark.parametrize("name", ["flip", "ecddp"])
@torch.no_grad()
def test_a_mirrored_image_has_the_mirrored_prediction(model, histograms, name):
    views = AveragedViews(model, VIEWS[name], SIZE)
    seen, _ = views.predict(histograms, None, PLACE)
    mirrored, _ = views.predict(histograms.flip(-1), None, PLACE)
    torch.testing.assert_close(mirrored.flip(-1), seen, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_each_view_carries_its_own_state(model, histograms):
    views = AveragedViews(model, VIEWS["ecddp"], SIZE)
    whole, _ = views.predict(histograms, None, PLACE)
    state = views.update_state(histograms[:, :1])
    state = views.update_state(histograms[:, 1:2], state)
    last, _ = views.predict(histograms[:, 2:], state, torch.tensor([[0, 0], [1, 0]]))
    torch.testing.assert_close(last, whole[[1, 2]], rtol=1e-4, atol=1e-5)


def test_a_backbone_for_another_size_keeps_what_does_not_depend_on_it(model):
    other = resized(model.backbone, (128, 192))
    before, after = model.backbone.state_dict(), other.state_dict()
    assert before.keys() == after.keys()
    changed = {name for name in before if before[name].shape != after[name].shape}
    assert changed
    assert all(name.endswith("relative_position_bias_table") for name in changed)
    assert all(torch.equal(before[name], after[name]) for name in before.keys() - changed)
    back = model.backbone.resize(after, other.img_size)
    assert all(back[name].shape == before[name].shape for name in before)


def test_tables_of_equal_windows_stay_as_they_are():
    table = torch.randn(13 * 13, 3)
    assert resize_table(table, (7, 7), (7, 7)) is table
    flat = resize_table(torch.full((5 * 3, 2), 0.7), (3, 2), (7, 7))
    torch.testing.assert_close(flat, torch.full((13 * 13, 2), 0.7))

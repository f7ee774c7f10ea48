import torch

from tespec.pretraining.views import draw_view, random_crops, random_views

SIZE = (64, 96)


def test_views_are_crops_of_the_image_the_same_for_all_segments():
    frames = torch.arange(64 * 96).view(1, 1, 1, 64, 96).expand(2, 3, 1, 64, 96)
    torch.manual_seed(0)
    seen = random_views(frames, (32, 48), (0.05, 0.32))
    assert seen.shape == (2, 3, 1, 32, 48)
    assert torch.equal(seen[:, 0], seen[:, 2])
    assert not torch.equal(seen[0], seen[1])
    rows, columns = seen[0, 0, 0] // 96, seen[0, 0, 0] % 96
    assert (rows == rows[:, :1]).all()
    assert (columns == columns[:1]).all()
    for _ in range(50):
        rows, columns = draw_view(SIZE, SIZE, (1.0, 1.0))
        area = (rows.max() - rows.min() + 1) * (columns.max() - columns.min() + 1)
        assert 0.7 * 64 * 96 <= area <= 64 * 96


def test_a_crop_is_a_square_of_the_image_the_same_for_all_segments():
    frames = torch.arange(64 * 96).view(1, 1, 1, 64, 96).expand(5, 3, 1, 64, 96)
    torch.manual_seed(0)
    places = set()
    for lane in random_crops(frames, 40):
        assert lane.shape == (3, 1, 40, 40)
        top, left = divmod(int(lane[0, 0, 0, 0]), 96)
        assert torch.equal(lane, frames[0, :, :, top : top + 40, left : left + 40])
        places.add((top, left))
    assert len(places) > 1
    assert random_crops(frames, 80).shape == (5, 3, 1, 64, 80)
    assert torch.equal(random_crops(frames, 320), frames)
    # Every place can be drawn: the last row and column as well as the first.
    lanes = torch.arange(3 * 3).view(1, 1, 1, 3, 3).expand(200, 1, 1, 3, 3)
    assert set(random_crops(lanes, 2)[:, 0, 0, 0, 0].tolist()) == {0, 1, 3, 4}

import math

import pytest
import torch

from tespec.pretraining.views import ASPECT, draw_views, random_crops, random_views

SIZE = (64, 96)


def test_views_are_crops_of_the_image_the_same_for_all_segments():
    frames = torch.arange(64 * 96).view(1, 1, 1, 64, 96).expand(2, 3, 1, 64, 96)
    torch.manual_seed(0)
    (seen,) = random_views(frames, 1, (32, 48), (0.05, 0.32))
    assert seen.shape == (2, 3, 1, 32, 48)
    assert torch.equal(seen[:, 0], seen[:, 2])
    assert not torch.equal(seen[0], seen[1])
    rows, columns = seen[0, 0, 0] // 96, seen[0, 0, 0] % 96
    assert (rows == rows[:, :1]).all()
    assert (columns == columns[:1]).all()
    for rows, columns in zip(*draw_views(torch.rand(50, 5), SIZE, SIZE, (1.0, 1.0)), strict=True):
        area = (rows.max() - rows.min() + 1) * (columns.max() - columns.min() + 1)
        assert 0.7 * 64 * 96 <= area <= 64 * 96


def one_view(draws, wanted, scale):
    """Rows and columns of a single view, with plain numbers."""
    height, width = SIZE
    share, shape, down, right, mirrored = draws.tolist()
    area = (scale[0] + share * (scale[1] - scale[0])) * height * width
    aspect = math.exp(math.log(ASPECT[0]) + shape * math.log(ASPECT[1] / ASPECT[0])) * width / height
    rows = min(height, max(1.0, math.sqrt(area / aspect)))
    columns = min(width, max(1.0, math.sqrt(area * aspect)))
    top, left = down * (height - rows), right * (width - columns)
    of_rows = (top + (torch.arange(wanted[0]) + 0.5) * rows / wanted[0]).long().clamp(max=height - 1)
    of_columns = (left + (torch.arange(wanted[1]) + 0.5) * columns / wanted[1]).long().clamp(max=width - 1)
    return of_rows, of_columns.flip(0) if mirrored < 0.5 else of_columns


@pytest.mark.parametrize("scale", [(0.05, 0.32), (0.32, 1.0), (1.0, 1.0)])
def test_views_of_all_lanes_at_once_are_those_of_one_after_the_other(scale):
    frames = torch.randint(0, 11, (40, 2, 4, *SIZE), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    torch.manual_seed(1)
    found = random_views(frames, 3, (40, 56), scale)
    assert found.dtype == torch.uint8
    torch.manual_seed(1)
    for view in found:
        for lane, seen in zip(frames, view, strict=True):
            rows, columns = one_view(torch.rand(5), (40, 56), scale)
            assert torch.equal(seen, lane[..., rows, :][..., columns])


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

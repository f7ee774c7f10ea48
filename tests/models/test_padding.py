import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tespec.models.layers import crop, pad_to, padded_size


@pytest.mark.parametrize(
    ("native", "padded"),
    [
        ((240, 304), (256, 320)),  # Gen1
        ((360, 640), (384, 640)),  # 1Mpx halved
        ((440, 640), (448, 640)),  # DSEC
        ((200, 346), (224, 352)),  # DDD17
        ((260, 346), (288, 352)),  # MVSEC
    ],
)
def test_sizes_of_the_datasets(native, padded):
    assert padded_size(*native) == padded


@settings(deadline=None)
@given(height=st.integers(1, 70), width=st.integers(1, 70))
def test_crop_undoes_pad(height, width):
    maps = torch.arange(2 * height * width, dtype=torch.uint8).view(2, height, width)
    padded = pad_to(maps, padded_size(height, width))
    assert torch.equal(crop(padded, (height, width)), maps)
    assert padded.sum() == maps.sum()


def test_maps_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="96x33 px do not fit the 96x32 px"):
        pad_to(torch.zeros(1, 96, 33), (96, 32))

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tespec.models import build_backbone
from tespec.pretraining.masking import LastStageDecoder, MaskPatch, random_masks, replace_masked


@given(
    seed=st.integers(0, 2**63),
    rows=st.integers(1, 30),
    cols=st.integers(1, 30),
    ratio=st.floats(0, 1),
)
def test_masks_have_exactly_their_share(seed, rows, cols, ratio):
    torch.manual_seed(seed)
    masks = random_masks(3, rows, cols, ratio)
    assert masks.shape == (3, rows, cols)
    assert (masks.flatten(1).sum(1) == round(ratio * (rows * cols))).all()


def test_every_place_is_masked_about_equally_often():
    torch.manual_seed(0)
    share = random_masks(2000, 4, 5, 0.5).float().mean(0)
    assert (share - 0.5).abs().max() < 0.06


@pytest.mark.parametrize(
    ("name", "unit", "height", "width"),
    [
        ("swin_micro", 16, 64, 96),
        ("swin_micro", 16, 40, 90),
        ("swin_micro", 32, 40, 90),
        ("vit_micro", 8, 40, 90),
    ],
)
def test_masked_tokens_are_those_of_masked_pixels(name, unit, height, width):
    torch.manual_seed(0)
    backbone = build_backbone(name, True, 10, (64, 96))
    patch = MaskPatch(unit, backbone)
    histograms = torch.randint(0, 5, (2, 3, 20, height, width), dtype=torch.uint8)
    rows, cols = -(-height // unit), -(-width // unit)
    mask = random_masks(2, rows, cols, 0.5)
    frames = torch.nn.functional.pad(histograms.float(), (0, 96 - width, 0, 64 - height))
    for lane, row, col in mask.nonzero().tolist():
        frames[lane, :, :, row * unit : (row + 1) * unit, col * unit : (col + 1) * unit] = patch()[
            0
        ]
    tokens = replace_masked(backbone.embed(histograms), mask, backbone.embed_patches(patch()))
    wanted, weights = backbone.embed(frames), torch.randn(tokens.shape)
    torch.testing.assert_close(tokens, wanted, rtol=1e-5, atol=1e-5)
    gradients = (
        torch.autograd.grad((each * weights).sum(), patch.pixels) for each in (tokens, wanted)
    )
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-4)


def test_last_stage_tokens_draw_their_own_square_where_attention_adds_nothing():
    decoder = LastStageDecoder((24, 48, 96, 192), (64, 96), width=32, heads=4)
    for name in ("attn.proj", "mlp.fc2"):
        torch.nn.init.zeros_(decoder.block.get_submodule(name).weight)
        torch.nn.init.zeros_(decoder.block.get_submodule(name).bias)
    last = torch.zeros(1, 1, 192, 2, 3)
    blank = decoder([last])
    last[..., 1, 2] = 1.0
    changed = (decoder([last]) != blank)[0, 0, 0]
    assert changed[32:, 64:].all()
    assert changed.sum() == 32 * 32

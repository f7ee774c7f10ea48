import pytest
import torch

from tespec.core.registry import MODELS
from tespec.models import EventSwin
from tespec.pretraining.decoder import AllStagesDecoder, LastStageDecoder


def test_default_decoder_has_about_the_papers_parameters():
    decoder = LastStageDecoder((96, 192, 384, 768), (384, 640))
    assert sum(parameter.numel() for parameter in decoder.parameters()) == 3_741_432


@pytest.mark.parametrize("kind", [LastStageDecoder, AllStagesDecoder])
def test_image_has_the_padded_size_and_its_gradient_reaches_the_features(kind):
    torch.manual_seed(0)
    backbone = EventSwin("micro", img_size=(64, 96))
    decoder = MODELS.build({"type": kind.__name__, "channels": backbone.channels, "img_size": backbone.img_size})
    features, _ = backbone(torch.randint(0, 4, (2, 3, 20, 64, 96), dtype=torch.uint8))
    image = decoder(features)
    assert image.shape == (2, 3, 1, 64, 96)
    used = features if kind is AllStagesDecoder else features[3:]
    for gradient in torch.autograd.grad(image.square().sum(), used):
        assert gradient.abs().sum() > 0


def test_last_stage_tokens_draw_their_own_square_where_attention_adds_nothing():
    decoder = LastStageDecoder((24, 48, 96, 192), (64, 96), width=32, heads=4)
    for name in ("attn.proj", "mlp.fc2"):
        torch.nn.init.zeros_(decoder.block.get_submodule(name).weight)
        torch.nn.init.zeros_(decoder.block.get_submodule(name).bias)
    last = torch.zeros(1, 1, 192, 2, 3)
    blank = decoder([last])
    last[..., 1, 2] = 1.0
    changed = (decoder([last]) - blank).abs()[0, 0, 0] > 0
    assert changed[32:, 64:].all()
    assert changed.sum() == 32 * 32

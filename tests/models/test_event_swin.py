import pytest
import torch

from tespec.core.errors import UserError
from tespec.models import EventSwin

CLOSE = {"rtol": 1e-5, "atol": 1e-5}


def counts(lanes, segments, height, width, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 4, (lanes, segments, 20, height, width), generator=generator, dtype=torch.uint8)


def backbone(arch="micro", recurrent=True, img_size=(64, 96)):
    torch.manual_seed(0)
    return EventSwin(arch, recurrent, img_size=img_size).eval()


@pytest.mark.parametrize(("recurrent", "parameters"), [(False, 27_543_930), (True, 33_816_570)])
def test_parameters_of_swin_t(recurrent, parameters):
    model = EventSwin("tiny", recurrent, img_size=(224, 352))
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters


def test_names_of_tensors():
    names = backbone().state_dict().keys()
    assert {name.split(".")[0] for name in names} == {"swin", "lstms"}
    assert {"swin.patch_embed.proj.weight", "swin.layers.0.blocks.0.attn.qkv.weight", "lstms.3.gates.bias"} <= names
    assert not any(name.startswith(("swin.norm", "swin.head")) for name in names)


def test_windows_follow_the_true_padded_size():
    model = EventSwin("tiny", recurrent=False, img_size=(224, 352))
    shifted = [stage.blocks[1] for stage in model.swin.layers]
    assert [block.shift_size for block in shifted] == [(3, 3), (3, 3), (3, 3), (0, 3)]
    assert {block.window_size for block in shifted} == {(7, 7)}


def test_feature_shapes():
    features, state = backbone()(counts(2, 3, 64, 96))
    assert [tuple(feature.shape) for feature in features] == [
        (2, 3, 24, 16, 24),
        (2, 3, 48, 8, 12),
        (2, 3, 96, 4, 6),
        (2, 3, 192, 2, 3),
    ]
    assert [tuple(part.shape) for pair in state for part in pair] == [
        shape for feature in features for shape in [tuple(feature[:, 0].shape)] * 2
    ]


@pytest.mark.parametrize(("arch", "img_size"), [("micro", (64, 96)), ("tiny", (32, 64))])
@torch.no_grad()
def test_a_sequence_equals_its_steps(arch, img_size):
    model = backbone(arch, img_size=img_size)
    histograms = counts(2, 3, *img_size)
    features, end = model(histograms)
    state = None
    for t in range(3):
        of_step, state = model.step(histograms[:, t], state)
        for feature, expected in zip(of_step, features, strict=True):
            torch.testing.assert_close(feature, expected[:, t], **CLOSE)
    for pair, expected in zip(state, end, strict=True):
        torch.testing.assert_close(pair, expected, **CLOSE)


@torch.no_grad()
def test_a_sequence_equals_its_halves():
    model = backbone()
    histograms = counts(2, 6, 64, 96)
    whole, _ = model(histograms)
    first, state = model(histograms[:, :3])
    second, _ = model(histograms[:, 3:], state)
    for feature, a, b in zip(whole, first, second, strict=True):
        torch.testing.assert_close(torch.cat([a, b], dim=1), feature, **CLOSE)


@torch.no_grad()
def test_the_state_matters_and_lanes_do_not_mix():
    model = backbone()
    histograms = counts(2, 2, 64, 96)
    _, state = model(counts(2, 2, 64, 96, seed=1))
    carried, _ = model(histograms, state)
    afresh, _ = model(histograms)
    alone, _ = model(histograms[1:], tuple((hidden[1:], cell[1:]) for hidden, cell in state))
    assert (carried[3] - afresh[3]).abs().max() > 1e-3
    torch.testing.assert_close(carried[3][1:], alone[3], **CLOSE)


@torch.no_grad()
def test_hidden_state_is_the_feature():
    features, state = backbone()(counts(1, 2, 64, 96))
    for feature, (hidden, _) in zip(features, state, strict=True):
        assert torch.equal(feature[:, -1], hidden)


@torch.no_grad()
def test_feed_forward_features_are_those_of_timm():
    import timm

    model = backbone("tiny", recurrent=False, img_size=(64, 96))
    reference = timm.create_model(
        "swin_tiny_patch4_window7_224", features_only=True, in_chans=20, img_size=(64, 96), drop_path_rate=0.0
    ).eval()
    tensors = {name.removeprefix("swin."): tensor for name, tensor in model.state_dict().items()}
    reference.load_state_dict({name.replace("layers.", "layers_"): tensor for name, tensor in tensors.items()})
    histograms = counts(1, 2, 64, 96)
    features, state = model(histograms)
    assert state is None
    for feature, expected in zip(features, reference(histograms[0].float()), strict=True):
        torch.testing.assert_close(feature[0], expected.permute(0, 3, 1, 2), rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_smaller_input_is_padded_with_zeros_at_the_right_and_bottom():
    model = backbone()
    histograms = counts(1, 1, 50, 70)
    padded = torch.zeros(1, 1, 20, 64, 96)
    padded[..., :50, :70] = histograms
    for feature, expected in zip(model(histograms)[0], model(padded)[0], strict=True):
        torch.testing.assert_close(feature, expected, **CLOSE)


def test_gradient_reaches_the_embedding_and_every_gate():
    model = backbone()
    features, _ = model(counts(1, 2, 64, 96))
    features[3].square().sum().backward()
    for name in ("swin.patch_embed.proj.weight", *(f"lstms.{i}.gates.weight" for i in range(4))):
        gradient = model.get_parameter(name).grad
        assert gradient.abs().sum() > 0, name


@torch.no_grad()
def test_state_is_float32_under_autocast():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        features, state = backbone()(counts(1, 2, 64, 96))
    assert all(part.dtype == torch.float32 for pair in state for part in pair)
    assert all(torch.isfinite(feature).all() for feature in features)


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"arch": "huge"}, "unknown value 'huge'"), ({"img_size": (200, 346)}, "multiples of 32")],
)
def test_bad_settings_are_named(settings, message):
    with pytest.raises(UserError, match=message):
        EventSwin(**settings)

"""All backbones: features, state and sizes; then parts specific to one backbone."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from tespec.core.errors import UserError
from tespec.models import EventMaxViT, EventResNet, EventSwin, build_backbone
from tespec.models.backbone import ConvLstm, detach, reset, resize_backbone
from tespec.models.event_swin import SIZES, resize_table
from tespec.models.layers import MatrixPool, pad_to, padded_size, replace_modules
from tespec.registry import BACKBONES

SIZE = (64, 96)
STRIDES = (4, 8, 16, 32)
NAMES = ("swin_micro", "resnet_micro", "maxvit_micro", "vit_micro")
CLOSE = {"rtol": 1e-4, "atol": 1e-5}


def backbone(arch="swin_micro", recurrent=True):
    torch.manual_seed(0)
    return build_backbone(arch, recurrent, 10, SIZE).eval()


def counts(height=64, width=96, segments=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(
        0, 4, (2, segments, 20, height, width), generator=generator, dtype=torch.uint8
    )


@pytest.mark.parametrize("recurrent", [True, False])
@pytest.mark.parametrize("arch", NAMES)
def test_a_sequence_equals_its_steps_with_zeros_at_the_right_and_bottom(arch, recurrent):
    model, histograms = backbone(arch, recurrent), counts(50, 70)
    features, end = model(histograms)
    shapes = [
        (2, 3, width, 64 // stride, 96 // stride)
        for width, stride in zip(model.channels, STRIDES, strict=True)
    ]
    assert [feature.shape for feature in features] == shapes
    state = None
    for t, padded in enumerate(nn.functional.pad(histograms, (0, 26, 0, 14)).unbind(1)):
        of_step, state = model.step(padded, state)
        torch.testing.assert_close(of_step, [feature[:, t] for feature in features], **CLOSE)
    torch.testing.assert_close(end, state, **CLOSE)
    last = [feature[:, -1] for feature in features if recurrent]
    # features are hidden states
    torch.testing.assert_close([hidden for hidden, _ in end or ()], last, rtol=0, atol=0)


def test_the_state_matters_and_lanes_do_not_mix():
    model, histograms = backbone(), counts()
    _, state = model(counts(seed=1))
    carried, afresh = model(histograms, state)[0], model(histograms)[0]
    alone, _ = model(histograms[1:], [(hidden[1:], cell[1:]) for hidden, cell in state])
    assert (carried[3] - afresh[3]).abs().max() > 1e-3
    torch.testing.assert_close(carried[3][1:], alone[3], **CLOSE)


@pytest.mark.parametrize("arch", NAMES)
def test_gradients_reach_every_parameter_and_the_state_is_float32_under_autocast(arch):
    model = backbone(arch).train()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        features, state = model(counts())
    assert all(part.dtype == torch.float32 for pair in state for part in pair)
    sum(feature.float().square().mean() for feature in features).backward()
    assert all(torch.isfinite(parameter.grad).all() for parameter in model.parameters())
    # timm initialises the last norm of a residual block to zero, so no gradient passes through it
    # in the first step.
    reached = [
        parameter
        for name, parameter in model.named_parameters()
        if ".conv" not in name and ".bn1" not in name
    ]
    assert all(parameter.grad.abs().sum() > 0 for parameter in reached)


class Plain(EventSwin):
    """Backbone that ignores the rate of stochastic depth."""

    sizes = ("swin_micro",)

    def build(self, drop_path):
        super().build(0.0)


REFUSED = [
    (
        lambda: build_backbone("vgg", True, 10, SIZE),
        "backbone: unknown value 'vgg'; choose from maxvit_base, maxvit_m",
    ),
    (lambda: EventSwin("huge"), "unknown value 'huge'"),
    *(
        (lambda kind=kind: kind(img_size=(60, 96)), "multiples of 32")
        for kind in (EventResNet, EventMaxViT)
    ),
    (lambda: Plain(drop_path=0.1), "drop_path: swin_micro has no stochastic depth"),
]


@pytest.mark.parametrize(("make", "message"), REFUSED)
def test_unknown_names_sizes_and_stochastic_depth_that_is_ignored_are_refused(make, message):
    with pytest.raises(UserError, match=message):
        make()


def test_two_backbones_of_one_name_are_refused(monkeypatch):
    monkeypatch.setitem(BACKBONES.module_dict, "Plain", Plain)
    with pytest.raises(UserError, match=r"Plain\.sizes: 'swin_micro' is also a size of EventSwin"):
        build_backbone("swin_tiny", True, 10, SIZE)


def test_reset_zeroes_the_lanes_that_start_and_detach_cuts_every_part():
    def ones(*shape):
        return torch.ones(3, *shape, requires_grad=True)

    nested = (((ones(2, 4, 5), ones(2, 4, 5)), (ones(4, 2, 3), ones(4, 2, 3))), ones(8, 9))
    (((h, _), (_, c)), image) = reset(nested, torch.tensor([True, False, True]))
    for part in (h, c, image):
        assert [lane.sum().item() for lane in part] == [0, part[1].numel(), 0]
    (((h, _), (_, c)), image) = detach(nested)
    assert not any(part.requires_grad for part in (h, c, image))
    assert reset(torch.tensor([float("nan"), 1.0]), torch.tensor([True, False])).tolist() == [
        0.0,
        1.0,
    ]
    assert reset(None, torch.tensor([True])) is None


def test_outputs_and_gradients_are_those_of_step_by_step_convolutions():
    torch.manual_seed(0)
    lstm = ConvLstm(5)
    maps, *state = torch.randn(4, 2, 3, 6, 5), torch.randn(2, 3, 6, 5), torch.randn(2, 3, 6, 5)
    outputs, *last = lstm(maps, *state)
    h, c = (part.permute(0, 3, 1, 2) for part in state)
    steps = []
    for frame in maps:
        gates = lstm.gates(torch.cat([frame.permute(0, 3, 1, 2), h], dim=1))
        forget, write, output, candidate = gates.chunk(4, dim=1)
        c = forget.sigmoid() * c + write.sigmoid() * candidate.tanh()
        h = output.sigmoid() * c.tanh()
        steps.append(h.permute(0, 2, 3, 1))
    steps = torch.stack(steps)
    torch.testing.assert_close(outputs, steps, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(
        [part.permute(0, 3, 1, 2) for part in last], [h, c], rtol=1e-5, atol=1e-6
    )
    gradients = (
        torch.autograd.grad(output.square().sum(), lstm.parameters()) for output in (outputs, steps)
    )
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-5)


def test_sides_are_padded_to_multiples_of_32_px_and_maps_that_do_not_fit_are_refused():
    assert padded_size(360, 640) == (384, 640)  # 1Mpx halved
    with pytest.raises(ValueError, match="96x33 px do not fit the 96x32 px"):
        pad_to(torch.zeros(1, 96, 33), (96, 32))


def test_histograms_of_other_channels_are_refused():
    backbone = EventSwin("swin_micro", bins=2, img_size=(64, 64))
    with pytest.raises(ValueError, match="3 channels, but this network takes 4"):
        backbone.step(torch.zeros(1, 3, 64, 64))


def test_partitions_of_maxvit_are_rvts():
    for size, partition in (
        ((256, 320), (8, 10)),
        ((384, 640), (6, 10)),
        ((224, 352), (7, 11)),
    ):  # Gen1, 1Mpx, DDD17
        stages = EventMaxViT("maxvit_micro", img_size=size).stages
        assert {
            attention.partition_size for stage in stages for attention in (stage.window, stage.grid)
        } == {partition}
        # `output_is_normed`
        assert not any(name.endswith("window.norm1.weight") for name in stages.state_dict())


def test_windows_of_swin_follow_the_true_padded_size():
    model = EventSwin("swin_micro", img_size=(224, 352))
    shifted = [stage.blocks[1] for stage in model.swin.layers]
    assert [block.shift_size for block in shifted] == [(3, 3), (3, 3), (3, 3), (0, 3)]
    assert {block.window_size for block in shifted} == {(7, 7)}


def test_a_backbone_for_another_size_keeps_what_does_not_depend_on_it():
    model = backbone()
    other = resize_backbone(model, (128, 192))
    before, after = model.state_dict(), other.state_dict()
    changed = {name for name in before if before[name].shape != after[name].shape}
    assert {name.rpartition(".")[2] for name in changed} == {"relative_position_bias_table"}
    assert all(torch.equal(before[name], after[name]) for name in before.keys() - changed)
    back = model.resize(after, other.img_size)
    assert all(back[name].shape == before[name].shape for name in before)
    flat = resize_table(torch.full((5 * 3, 2), 0.7), (3, 2), (7, 7))
    torch.testing.assert_close(flat, torch.full((13 * 13, 2), 0.7))


@pytest.mark.parametrize(("old", "new"), [((7, 7), (3, 5)), ((3, 5), (7, 7)), ((2, 4), (4, 2))])
def test_position_tables_are_resized_as_timm_does_it_also_for_windows_that_are_not_square(old, new):
    from timm.layers.pos_embed_rel import gen_relative_position_index
    from timm.layers.pos_embed_rel import resize_rel_pos_bias_table_simple as resize_by_timm

    rows, columns = (2 * side - 1 for side in old)
    new_rows, new_columns = (2 * side - 1 for side in new)
    table = torch.randn(rows * columns, 2, generator=torch.Generator().manual_seed(0))
    maps = table.T.reshape(2, rows, columns)
    expected = resize_by_timm(maps, new, (2, new_rows, new_columns)).flatten(1).T
    torch.testing.assert_close(resize_table(table, old, new), expected)
    # Biases that depend on the distance in rows alone still do, as read by timm's index.
    ramp = torch.arange(rows).float().repeat_interleave(columns).unsqueeze(1)
    bias = resize_table(ramp, old, new)[gen_relative_position_index(new), 0]
    bias = bias.unflatten(0, new).unflatten(2, new)  # of rows and columns of two tokens
    # of up to 12
    torch.testing.assert_close(bias, bias[:, :1, :, :1].expand_as(bias), rtol=0, atol=5e-5)
    assert bias[0, 0, -1, 0] < bias[0, 0, 0, 0] - 0.5


def test_feed_forward_features_of_swin_are_those_of_timm():
    import timm  # after tespec: see tespec.core.compat

    model = backbone(recurrent=False)
    width, depths, heads = SIZES["swin_micro"]
    reference = timm.create_model(
        "swin_tiny_patch4_window7_224",
        features_only=True,
        embed_dim=width,
        depths=depths,
        num_heads=heads,
        in_chans=20,
        img_size=SIZE,
        drop_path_rate=0.0,
    ).eval()
    tensors = {name.removeprefix("swin."): tensor for name, tensor in model.state_dict().items()}
    reference.load_state_dict(
        {name.replace("layers.", "layers_"): tensor for name, tensor in tensors.items()}
    )
    histograms = counts(segments=1)
    expected = [
        feature.permute(0, 3, 1, 2).unsqueeze(1) for feature in reference(histograms[:, 0].float())
    ]
    torch.testing.assert_close(model(histograms)[0], expected, rtol=1e-4, atol=1e-4)


@given(
    st.integers(1, 13),
    st.integers(1, 13),
    st.one_of(st.none(), st.integers(1, 7)),
    st.integers(1, 7),
)
def test_exact_pooling_is_torchs_forward_and_backward(height, width, rows, columns):
    pool = nn.Sequential(nn.ReLU(), nn.Sequential(nn.AdaptiveAvgPool2d((rows, columns))))
    maps = torch.randn(2, 3, height, width, dtype=torch.float64, requires_grad=True)
    expected = pool(maps)
    replace_modules(pool, nn.AdaptiveAvgPool2d, lambda layer: MatrixPool(layer.output_size))
    assert isinstance(pool[1][0], MatrixPool)
    pooled, weights = pool(maps), torch.randn_like(expected)
    torch.testing.assert_close(pooled, expected, rtol=1e-12, atol=1e-12)
    gradients = (
        torch.autograd.grad((output * weights).sum(), maps) for output in (pooled, expected)
    )
    torch.testing.assert_close(*gradients, rtol=1e-12, atol=1e-12)

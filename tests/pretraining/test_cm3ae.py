"""CM3AE against the published formulas (Event-AHU/CM3AE, models/mae.py)."""

import numpy as np
import pytest
import torch
from loss_cases import SIZE, histograms, own, pairs
from loss_cases import cm3ae as network
from torch.nn.functional import normalize

from baselines import cm3ae
from baselines.cm3ae import draw_masks, event_frame, grouped_contrast
from tespec.datasets.images import GREY_DEVIATION, GREY_MEAN
from tespec.pretraining.mae import Fusion
from tespec.pretraining.views import random_resized_crops

LANES, UNIT = 3, 16


def losses_of(model, given):
    torch.manual_seed(0)  # the same masks
    with torch.no_grad():
        return model.eval().loss(given, None)[0]


def masked_pixels(model, given, number):
    torch.manual_seed(0)
    masks = model._masks(given["histograms"])[number]
    return masks.repeat_interleave(UNIT, 1).repeat_interleave(UNIT, 2)


@pytest.mark.parametrize("visible", [1, 6, 7, 12])
def test_half_of_what_events_show_is_masked_in_the_frame(visible):
    events, frame = draw_masks(
        torch.rand(2, 200, 24, generator=torch.Generator().manual_seed(0)), visible
    )
    assert (~events).sum(1).unique().tolist() == (~frame).sum(1).unique().tolist() == [visible]
    assert (~events & frame).sum(1).min() >= visible // 2
    # The frame's other visible patches are drawn uniformly from the rest.
    both = (~events & ~frame).sum(1).double().mean().item()
    assert both == pytest.approx(visible * (visible - visible // 2) / (24 - visible // 2), abs=0.15)
    assert own("cm3ae").visible(196) == 49  # int(196 * (1 - 0.75))


def test_an_event_frame_says_where_events_of_each_polarity_were():
    counts = torch.zeros(1, 1, 6, 2, 2, dtype=torch.uint8)
    counts[0, 0, 1, 0, 1] = 7  # negative, second bin
    counts[0, 0, 3, 1, 0] = counts[0, 0, 5, 1, 0] = 1  # positive, first and last bin
    assert event_frame(counts)[0, 0].tolist() == [[[0, 255], [0, 0]], [[0, 0], [255, 0]]]


def test_each_loss_sees_what_it_may_see():
    """Masked pixels of the frame are targets, never input.

    Events help to reconstruct the frame in the fused loss alone.
    """
    model, given = network(), pairs(LANES)
    pixels = masked_pixels(model, given, 1)[:, None, None]
    unseen = {"images": torch.where(pixels, pairs(LANES, 1)["images"], given["images"])}
    before = losses_of(model, given)
    for other, changed in (
        (unseen, {"loss_frame", "loss_fused"}),
        (
            {"histograms": histograms(LANES, 1, seed=1)},
            {"loss_events", "loss_fused", "loss_contrast"},
        ),
    ):
        after = losses_of(model, given | other)
        assert {name for name in before if after[name] != before[name]} - {
            "loss",
            "accuracy",
        } == changed


def test_the_loss_is_the_published_sum_of_means_over_masked_pixels():
    model, given = network(), pairs(LANES)
    drawn = torch.randn(LANES, 1, 2, *SIZE, generator=torch.Generator().manual_seed(2))
    embeddings = torch.randn(2, LANES, 16, generator=torch.Generator().manual_seed(3)).double()
    frame_decoder = model.frame_decoder.forward
    model.event_decoder.forward = lambda features: (drawn, embeddings[0].float())
    model.frame_decoder.forward = lambda features: (
        frame_decoder(features)[0],
        embeddings[1].float(),
    )
    found = losses_of(model, given)
    expected = 4 * found["loss_frame"] + 0.5 * (found["loss_events"] + found["loss_fused"])
    assert found["loss"].item() == pytest.approx(
        (expected + 0.1 * found["loss_contrast"]).item(), rel=1e-5
    )
    target = (event_frame(given["histograms"]) / 255 - GREY_MEAN) / GREY_DEVIATION
    squares = (drawn - target)[:, 0].double().square().mean(1)
    assert found["loss_events"].item() == pytest.approx(
        squares[masked_pixels(model, given, 0)].mean().item(), rel=1e-5
    )
    scale = own("cm3ae").logit_scale
    assert scale == pytest.approx(2.659, abs=1e-3)
    cosines = normalize(embeddings[0], dim=1) @ normalize(embeddings[1], dim=1).T
    matched = [(scale * each).log_softmax(1).diag().mean().item() for each in (cosines, cosines.T)]
    assert found["loss_contrast"].item() == pytest.approx(-np.mean(matched), rel=1e-5)


def test_pairs_are_contrasted_within_groups_of_the_published_size():
    events, frames = torch.randn(2, 6, 4, generator=torch.Generator().manual_seed(0))
    scale = torch.tensor(2.0)
    parts = [
        grouped_contrast(*(each[part] for each in (events, frames)), scale, 3)
        for part in (slice(3), slice(3, 6))
    ]
    expected = [torch.stack(values).mean() for values in zip(*parts, strict=True)]
    torch.testing.assert_close([*grouped_contrast(events, frames, scale, 3)], expected)
    assert own("cm3ae").contrast_pairs == 128
    together, _ = grouped_contrast(events, frames, scale, 128)
    assert together > expected[0]  # more negatives


def test_the_embedding_is_a_learned_sum_of_the_decoders_tokens():
    decoder, features = (
        network().frame_decoder,
        [torch.zeros(1)] * 3 + [torch.randn(2, 1, 192, 2, 3)],
    )
    images, embeddings = decoder(features)
    assert (images.shape, embeddings.shape) == ((2, 1, 1, *SIZE), (2, 16))
    tokens = decoder.norm(decoder.blocks(decoder.patch_tokens(features) + decoder.positions))
    weights = decoder.sum.weight[0]
    torch.testing.assert_close(embeddings, (tokens * weights[:, None]).sum(1) + decoder.sum.bias)
    drawn = decoder.to_pixels(tokens)[1, 3 * 6 + 2].view(UNIT, UNIT)  # the patch in row 3, column 2
    torch.testing.assert_close(images[1, 0, 0, 3 * UNIT :, 2 * UNIT : 3 * UNIT], drawn)


def test_the_fusion_is_the_published_one():
    """The norm's output replaces the residual stream, and the MLP starts with a scale of 1e-5.

    Positions are sinusoidal.
    """
    torch.manual_seed(0)
    fusion = Fusion(8, 4, (64, 96)).double()  # 2 x 3 tokens
    # Half of the channels encode the column, half the row, each as sines, then cosines.
    rows, columns = np.divmod(np.arange(6), 3)
    angles = [np.outer(each, 1 / 10000 ** (np.arange(2) / 2)) for each in (columns, rows)]
    places = torch.from_numpy(
        np.hstack([wave(each) for each in angles for wave in (np.sin, np.cos)])
    )
    torch.testing.assert_close(fusion.positions, places, rtol=0, atol=1e-6)
    frame, events = torch.randn(2, 2, 1, 8, 2, 3, dtype=torch.float64)
    block, places = fusion.block, fusion.positions
    tokens = torch.cat([each[:, 0].flatten(2).mT + places for each in (frame, events)], 1)
    normal = block.norm2(tokens + block.attn(block.norm1(tokens)))
    joined = normal + 1e-5 * block.mlp(normal)
    torch.testing.assert_close(fusion(frame, events), joined[:, :6].mT.reshape(2, 1, 8, 2, 3))


def test_events_their_picture_and_the_frame_are_cropped_alike(monkeypatch):
    model, given = network(), pairs(LANES)
    torch.manual_seed(0)
    whole = [given["histograms"], event_frame(given["histograms"]), given["images"]]
    parts = random_resized_crops(torch.cat(whole, 2), (0.2, 1.0)).split(
        [each.shape[2] for each in whole], 2
    )
    histograms, picture, image = parts
    with monkeypatch.context() as patch:
        patch.setattr(cm3ae, "event_frame", lambda _: picture)
        expected, _ = model.eval().loss({"histograms": histograms, "images": image}, None)
    torch.manual_seed(0)
    torch.testing.assert_close(model.train().loss(given, None)[0], expected)

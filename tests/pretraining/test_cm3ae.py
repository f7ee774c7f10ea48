"""CM3AE against the published formulas (Event-AHU/CM3AE, models/mae.py)."""

import torch
from loss_cases import SIZE, histograms, own, pairs
from loss_cases import cm3ae as network

from baselines import cm3ae
from baselines.cm3ae import event_frame, grouped_contrast
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

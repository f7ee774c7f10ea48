"""CM3AE: what is hidden where, what is rebuilt of what, and what each loss can learn from."""

import pytest
import torch
from small_networks import SIZE, autoencoder, histograms

from baselines.cm3ae import draw_masks, event_frame, sine_positions
from tespec.datasets.images import GREY_DEVIATION, GREY_MEAN

LANES, UNIT = 3, 16


def batch(seed=0):
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 256, (LANES, 1, 1, *SIZE), generator=generator, dtype=torch.uint8)
    return {"histograms": histograms(LANES, seed=seed), "images": images}


def losses_of(model, given):
    torch.manual_seed(0)  # the same masks
    with torch.no_grad():
        return model.eval().loss(given, None)[0]


@pytest.mark.parametrize("kept", [1, 6, 7, 12])
def test_half_of_what_events_show_is_hidden_in_the_frame(kept):
    units = 24
    events, frame = draw_masks(torch.rand(2, 200, units, generator=torch.Generator().manual_seed(0)), kept)
    assert (~events).sum(1).unique().tolist() == (~frame).sum(1).unique().tolist() == [kept]
    theirs_alone = (~events & frame).sum(1)
    assert theirs_alone.min() >= kept // 2
    # What else the frame shows is drawn from all other patches alike.
    both = (~events & ~frame).sum(1).double().mean().item()
    others = units - kept // 2
    assert both == pytest.approx(kept * (kept - kept // 2) / others, abs=0.15)


def test_an_event_frame_says_where_events_of_each_polarity_were():
    counts = torch.zeros(1, 1, 6, 2, 2, dtype=torch.uint8)
    counts[0, 0, 1, 0, 1] = 7  # negative, second bin
    counts[0, 0, 3, 1, 0] = counts[0, 0, 5, 1, 0] = 1  # positive, first and last bin
    there = event_frame(counts)[0, 0] * GREY_DEVIATION + GREY_MEAN
    torch.testing.assert_close(there, torch.tensor([[[0.0, 1.0], [0.0, 0.0]], [[0.0, 0.0], [1.0, 0.0]]]))


def test_hidden_pixels_are_wanted_and_not_seen():
    """Other pixels where the frame is hidden change what the frame's drawings cost, and no feature of either."""
    model, given = autoencoder(), batch()
    before = losses_of(model, given)
    torch.manual_seed(0)
    _, hidden = model._masks(given["histograms"])
    pixels = hidden.repeat_interleave(UNIT, 1).repeat_interleave(UNIT, 2)[:, None, None]
    other = given | {"images": torch.where(pixels, batch(1)["images"], given["images"])}
    after = losses_of(model, other)
    for name in ("loss_events", "loss_contrast"):
        assert after[name] == before[name]
    for name in ("loss_frame", "loss_fused"):
        assert after[name] != before[name]


def test_events_help_to_draw_the_frame_in_the_fused_loss_alone():
    model, given = autoencoder(), batch()
    before, after = losses_of(model, given), losses_of(model, given | {"histograms": histograms(LANES, seed=1)})
    assert after["loss_frame"] == before["loss_frame"]
    assert after["loss_fused"] != before["loss_fused"]


def test_the_loss_is_the_weighted_sum_and_each_part_is_a_mean_over_hidden_pixels():
    weights = {"frame_weight": 2.0, "events_weight": 3.0, "fused_weight": 5.0, "contrast_weight": 7.0}
    model, given = autoencoder(**weights), batch()
    found = losses_of(model, given)
    parts = zip(weights.values(), ("loss_frame", "loss_events", "loss_fused", "loss_contrast"), strict=True)
    assert found["loss"].item() == pytest.approx(sum(weight * found[name].item() for weight, name in parts))

    torch.manual_seed(0)
    events_hidden, _ = model._masks(given["histograms"])
    pixels = events_hidden.repeat_interleave(UNIT, 1).repeat_interleave(UNIT, 2)
    model.draw_events.forward = lambda features: torch.zeros(LANES, 1, 2, *SIZE)
    squares = event_frame(given["histograms"]).square().mean((1, 2))
    assert losses_of(model, given)["loss_events"].item() == pytest.approx(squares[pixels].mean().item())


def test_every_parameter_is_trained():
    model = autoencoder().train()
    model.loss(batch(), None)[0]["loss"].backward()
    assert all(each.grad is not None and each.grad.abs().sum() > 0 for each in model.parameters())


def test_positions_differ_by_row_and_by_column():
    places = sine_positions(5, 7, 32)
    assert places.shape == (35, 32)
    distances = torch.cdist(places, places) + 10 * torch.eye(35)
    assert distances.min() > 0.1
    nearest = distances[17].argmin().item()  # row 2, column 3
    assert nearest in (10, 16, 18, 24)

"""TESPEC: losses against the paper's formulas, the target, and the carried state of network and
target.
"""

import dataclasses
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from event_files import in_memory
from loss_cases import own
from torch import nn

from tespec.core.config import pretraining_settings
from tespec.datasets.augment import sample_flip_zoom
from tespec.events import window_histograms
from tespec.events.histogram import Region
from tespec.events.intensity import estimate_high_pass, estimate_intensity
from tespec.models import EventSwin
from tespec.pretraining.masking import build_decoder, random_masks
from tespec.pretraining.tespec import Tespec, normalise_patches
from tespec.training.optimizer import learning_rate, weight_decay

HEIGHT, WIDTH, UNIT = 56, 90, 16  # neither side is a multiple of the unit
ROWS, COLS = 4, 6


def objective(ratio=0.5, **settings):
    target = {
        key: settings.pop(key)
        for key in ("kind", "alpha", "norm_events", "contrast")
        if key in settings
    }
    settings |= {"mask": {"unit": UNIT, "ratio": ratio}, "target": {"norm_events": 3000.0} | target}
    settings = own("tespec", decoder={"type": "AllStagesDecoder"}, **settings)
    return Tespec(settings, EventSwin("swin_micro", True, img_size=(64, 96)))


def losses_of(model, batch, state):
    return model.masked_losses(batch, state, batch["mask"])


def reconstruct(model, batch, state):
    return model.reconstruct(batch, state, batch["mask"])


def masked_batch(segments=3, ratio=0.5, seed=0):
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    return {
        "histograms": torch.randint(
            0, 4, (2, segments, 20, HEIGHT, WIDTH), generator=generator, dtype=torch.uint8
        ),
        "is_first": torch.zeros(2, dtype=torch.bool),
        "mask": random_masks(2, ROWS, COLS, ratio),
    }


@pytest.mark.parametrize(
    ("kind", "patch_norm"), [("intensity", True), ("intensity", False), ("histograms", True)]
)
def test_losses_are_pixel_means_inside_of_the_image(kind, patch_norm):
    more = {
        "kind": kind,
        "patch_norm": patch_norm,
        "patch_eps": 0.05,
        "counts_eps": 0.05,
        "visible_weight": 0.5,
    }
    model, batch = objective(**more), masked_batch()
    (losses, _), (drawn, _) = losses_of(model, batch, None), reconstruct(model, batch, None)
    whole, predicted = drawn.video, drawn.prediction * drawn.deviation + drawn.mean
    target, error = torch.zeros_like(whole), torch.zeros_like(whole)
    masked = torch.zeros(whole.shape, dtype=torch.bool)
    for row, col in np.ndindex(ROWS, COLS):
        place = (..., slice(row * UNIT, (row + 1) * UNIT), slice(col * UNIT, (col + 1) * UNIT))
        masked[place] = batch["mask"][:, row, col].view(2, 1, 1, 1, 1)
        video = whole[place]
        mean = video.mean((2, 3, 4), keepdim=True) if patch_norm else 0.0
        scale = (video.var((2, 3, 4), keepdim=True) + 0.05).sqrt() if patch_norm else 1.0
        target[place] = (video - mean) / scale
        error[place] = ((predicted[place] - video) / scale).square()
    found = [losses[name].item() for name in ("loss_masked", "loss_visible", "loss_zero")]
    wanted = [
        each.mean().item() for each in (error[masked], error[~masked], target[masked].square())
    ]
    assert found == pytest.approx(wanted, rel=1e-4)
    assert losses["loss"].item() == pytest.approx(found[0] + 0.5 * found[1], rel=1e-6)
    torch.testing.assert_close(drawn.target, target, rtol=1e-4, atol=1e-4)
    assert torch.equal(drawn.masked[:, 0, 0], masked[:, 0, 0])


def eq_3(x, y, t, p, i, bins=10, interval=50_000):
    """Stage S_i (2, bins, H, W) of events with times in us, one by one; i counts from 1."""
    stage = np.zeros((2, bins, HEIGHT, WIDTH))
    for column, row, time, polarity in zip(x, y, t, p, strict=True):
        # Integers: floor((t / T - i + 1) * B), with rational numbers
        bin_number = ((time - (i - 1) * interval) * bins) // interval
        if 0 <= bin_number < bins:
            stage[polarity, bin_number, row, column] += 1
    return stage


def int_by_eq_7(image, memory, stage, alpha=5.0, norm_events=5000.0, contrast=1.0, dt=0.005):
    """Int of Eq. 4 by Eq. 7: all pixels decay with the number of events of each bin."""
    for negative, positive in zip(*stage, strict=True):
        n = negative.sum() + positive.sum()
        image = np.exp(-alpha * dt * n / norm_events) * image + contrast * (positive - negative)
    return image, memory


def int_by_eq_6(image, age, stage, alpha=5.0, contrast=1.0, dt=0.005):
    """Int of Eq. 4 by Eq. 6, once per bin: pixels with events decay with the time since their last
    one.
    """
    for negative, positive in zip(*stage, strict=True):
        age = age + dt
        seen = negative + positive > 0
        image = np.where(
            seen, np.exp(-alpha * age) * image + contrast * (positive - negative), image
        )
        age = np.where(seen, 0.0, age)
    return image, age


def eq_8(videos, predictions, mask):
    """Loss over masked patches, normalised each as in MAE, and its gradient by the predictions (T,
    H, W).
    """
    errors = np.zeros(predictions.shape)
    for row, col in zip(*mask.nonzero(), strict=True):
        place = (slice(row * UNIT, (row + 1) * UNIT), slice(col * UNIT, (col + 1) * UNIT))
        for number, video in enumerate(videos):
            target = (video[place] - video[place].mean()) / np.sqrt(video[place].var(ddof=1) + 1e-6)
            errors[number][place] = predictions[number][place] - target
    pixels = np.kron(mask, np.ones((UNIT, UNIT)))[:HEIGHT, :WIDTH].sum()
    return (errors**2).sum() / len(videos) / pixels, 2 * errors / len(videos) / pixels


@pytest.mark.parametrize(
    ("kind", "integrate"), [("intensity", int_by_eq_7), ("high_pass", int_by_eq_6)]
)
def test_the_loss_of_two_steps_follows_from_the_events_by_eqs_3_to_8(kind, integrate):
    generator = np.random.default_rng(0)
    x, y, t, p = (generator.integers(0, most, 20_000) for most in (WIDTH, HEIGHT, 200_000, 2))
    stream = in_memory(x, y, np.sort(t), p, HEIGHT, WIDTH)
    model = objective(kind=kind, norm_events=5000.0)
    model.decoder = nn.Module()
    model.decoder.video = nn.Parameter(torch.randn(1, 2, 1, 64, 96))
    model.decoder.forward = lambda features: model.decoder.video
    state, image, memory = None, np.zeros((HEIGHT, WIDTH)), np.zeros((HEIGHT, WIDTH))
    for step in range(2):
        segments = [2 * step + 1, 2 * step + 2]
        windows = [(50_000 * (i - 1), 50_000 * i) for i in segments]
        batch = {
            "histograms": torch.from_numpy(window_histograms(stream, windows, 10))[None],
            "is_first": torch.zeros(1, dtype=torch.bool),
            "mask": random_masks(1, ROWS, COLS, 0.5),
        }
        losses, state = losses_of(model, batch, state)
        gradient = torch.autograd.grad(losses["loss"], model.decoder.video)[0][0, :, 0]
        videos = []
        for i in segments:
            image, memory = integrate(image, memory, eq_3(x, y, np.sort(t), p, i))
            videos.append(image)
        predictions = model.decoder.video.detach()[0, :, 0, :HEIGHT, :WIDTH].double().numpy()
        loss, wanted = eq_8(videos, predictions, batch["mask"][0].numpy())
        assert losses["loss"].item() == pytest.approx(loss, rel=1e-5)
        difference = gradient[:, :HEIGHT, :WIDTH].numpy() - wanted
        assert np.linalg.norm(difference) < 1e-4 * np.linalg.norm(wanted)
        assert not gradient[:, HEIGHT:].any()


def test_the_learning_rate_is_the_appendixs():
    """Appendix table: peak 2e-4, c1 = 25, c2 = 1,000, linear, 2,000 of 400,000 steps of warm-up."""
    how = pretraining_settings("tespec", "paper").optimisation
    steps = [0, 1, 500, 1000, 1999, 2000, 2001, 201_000, 300_000, 399_999]
    wanted = np.interp(steps, [0, 2000, 399_999], [2e-4 / 25, 2e-4, 2e-4 / 1000])
    assert [learning_rate(how, step) for step in steps] == pytest.approx(wanted.tolist(), rel=1e-9)
    assert {weight_decay(how, step) for step in steps} == {0}


def test_the_decoder_has_about_the_papers_parameters_and_those_that_the_page_says():
    settings = pretraining_settings("tespec", "paper").objective["decoder"]
    with torch.device("meta"):
        decoder = build_decoder(settings, EventSwin("swin_tiny", True, img_size=(384, 640)), 1)
    count = sum(parameter.numel() for parameter in decoder.parameters())
    block = 12 * 488**2 + 13 * 488 + 169 * 8
    assert count == (768 + 1) * 488 + block + (488 + 1) * 32 * 32
    assert count == pytest.approx(3.7e6, rel=0.0125)
    page = (Path(__file__).parents[2] / "docs" / "pretraining.md").read_text()
    assert f"{count:,} parameters" in page


ESTIMATES = {
    "intensity": partial(estimate_intensity, norm_events=3000.0),
    "high_pass": estimate_high_pass,
}


@pytest.mark.parametrize("kind", ESTIMATES)
def test_the_target_is_the_intensity_of_all_events(kind):
    model, batch = objective(kind=kind, alpha=7.0, contrast=0.5), masked_batch()
    drawn, state = reconstruct(model, batch, None)
    wanted = ESTIMATES[kind](batch["histograms"], alpha=7.0, contrast=0.5)
    torch.testing.assert_close((drawn.video.squeeze(2), state[1]), wanted)


def test_the_scale_of_the_intensity_cancels_in_the_loss():
    dim, bright = (
        losses_of(objective(contrast=each, patch_eps=0.05), masked_batch(), None)[0]
        for each in (1.0, 20.0)
    )
    assert dim["loss"].item() == pytest.approx(bright["loss"].item(), rel=1e-4)


def test_masked_events_do_not_reach_the_prediction():
    model, batch = objective(patch_norm=False), masked_batch()
    drawn, _ = reconstruct(model, batch, None)
    for replaced, unchanged in ((drawn.masked, True), (~drawn.masked, False)):
        changed = batch | {"histograms": batch["histograms"].masked_fill(replaced, 9)}
        assert (
            torch.equal(reconstruct(model, changed, None)[0].prediction, drawn.prediction)
            == unchanged
        )


@pytest.mark.parametrize("target", ["intensity", "high_pass", "histograms"])
def test_a_step_equals_its_halves_with_the_state_carried(target):
    model, batch = objective(patch_norm=False, kind=target), masked_batch(segments=6)
    whole, end = reconstruct(model, batch, None)
    first, state = reconstruct(model, batch | {"histograms": batch["histograms"][:, :3]}, None)
    second, state = reconstruct(model, batch | {"histograms": batch["histograms"][:, 3:]}, state)
    for part in ("video", "prediction"):
        joined = torch.cat([getattr(first, part), getattr(second, part)], dim=1)
        torch.testing.assert_close(joined, getattr(whole, part), rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(state[1], end[1], rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("target", ["intensity", "high_pass"])
def test_fresh_lanes_start_anew(target):
    model, batch = objective(patch_norm=False, kind=target), masked_batch()
    _, state = losses_of(model, masked_batch(seed=1), None)
    afresh, _ = reconstruct(model, batch, None)
    carried, _ = reconstruct(model, batch, state)
    mixed, _ = reconstruct(model, batch | {"is_first": torch.tensor([True, False])}, state)
    for part in ("video", "prediction"):
        anew, after, both = (getattr(each, part) for each in (afresh, carried, mixed))
        torch.testing.assert_close(both, torch.stack([anew[0], after[1]]), rtol=1e-5, atol=1e-5)
        assert (after - anew).abs().max() > 1e-3


@pytest.mark.parametrize(("ratio", "scored"), [(0.5, "loss_masked"), (0.0, "loss_all")])
def test_validation_carries_or_zeroes_the_memory_while_the_target_goes_on(ratio, scored):
    model, batch = objective(ratio), masked_batch(ratio=ratio)
    _, state = losses_of(model, masked_batch(ratio=ratio, seed=1), None)
    model.draw_mask = lambda histograms: batch["mask"]
    found, after = model.val_losses(batch, state)
    (carried, end), (zeroed, _), (anew, _) = (
        losses_of(model, batch, each) for each in (state, (None, state[1]), None)
    )
    wanted = {f"{scored}_carried": carried[scored], f"{scored}_zeroed": zeroed[scored]}
    assert found == wanted | {"loss_zero": carried["loss_zero"]}
    assert len({carried[scored].item(), zeroed[scored].item(), anew[scored].item()}) == 3
    torch.testing.assert_close(after, end, rtol=0, atol=0)


def test_an_autoencoders_loss_is_the_plain_error_over_all_pixels():
    model, batch = (
        objective(patch_norm=False, ratio=0.0, visible_weight=0.5),
        masked_batch(ratio=0.0),
    )
    (losses, _), (drawn, _) = losses_of(model, batch, None), reconstruct(model, batch, None)
    error, zero = ((each - drawn.video).square().mean().item() for each in (drawn.prediction, 0))
    found = {name: loss.item() for name, loss in losses.items()}
    assert found == pytest.approx({"loss": error, "loss_all": error, "loss_zero": zero}, rel=1e-5)


@pytest.mark.parametrize("ratio", [0.0, 1.0])
def test_losses_stay_finite_where_nothing_or_everything_is_masked(ratio):
    losses, _ = losses_of(objective(), masked_batch(ratio=ratio), None)
    losses["loss"].backward()
    assert all(torch.isfinite(value) for value in losses.values())


def test_n_of_eq_7_counts_the_events_that_the_network_sees_in_these_shares():
    settings = pretraining_settings("tespec", "paper")
    generator = np.random.default_rng(0)
    x, y, t, p = (generator.integers(0, most, 100_000) for most in (1280, 720, 50_000, 2))
    events, halved = (
        in_memory(x, y, np.sort(t), p, 720, 1280),
        Region(360, 640, 2, settings.downsample.keep),
    )

    def count(**more):
        return window_histograms(events, [(0, 50_000)], settings.bins, **more).sum(dtype=np.int64)

    assert count(region=halved) / count() == pytest.approx(0.25, abs=0.01)
    for inward, share in ((1.0, 1.0), (0.0, 0.83)):
        always = dataclasses.replace(settings.augmentation, zoom=1.0, zoom_in_fraction=inward)
        views = [
            sample_flip_zoom(np.random.default_rng(seed), always, 360, 640) for seed in range(100)
        ]
        seen = np.mean([count(region=halved, maps=view[:2]) for view in views])
        assert seen / count(region=halved) == pytest.approx(share, abs=0.03)


def test_a_constant_patch_is_normalised_to_zero():
    constant, mean, _ = normalise_patches(torch.full((1, 1, 2, 8, 8), 1.5), 8, 1e-6)
    assert (constant.abs().max(), mean.unique().item()) == (0, 1.5)
    one, _, deviation = normalise_patches(torch.full((1, 1, 1, 1, 1), 7.0), 4, 0.01)
    assert (one.item(), deviation.item()) == (0, pytest.approx(0.1))

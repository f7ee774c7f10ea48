"""The picture of Eq. 6 and Eq. 7: what it holds, and that it shows what the paper's figure shows."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tespec.core.errors import UserError
from tespec.core.settings import Downsample
from tespec.datasets.folder import fixed_windows
from tespec.datasets.preview_intensity import busiest_and_quiet, draw_instants, instants, windows_at
from tespec.datasets.recording import Recording
from tespec.events.intensity import estimate_high_pass, estimate_intensity
from tespec.events.spatial import Region

REAL = Path(__file__).parents[1] / "data" / "evt3_640x480_2.08s.raw"


class Histograms:
    """A source that holds histograms."""

    def __init__(self, histograms):
        self.path, self.counts = Path("made.raw"), histograms

    def histograms(self, windows, bins, rule, region):
        return self.counts[[int(start) // 50_000 for start, _ in windows]]


def recording(histograms):
    starts = 50_000 * np.arange(len(histograms))
    region = Region(*histograms.shape[-2:], 1, "all")
    return Recording("made", Histograms(histograms), region, np.stack([starts, starts + 50_000], 1))


def bar_that_passes(segments=12, width=12):
    """A bright bar that moves a pixel each segment: positive events where it arrives, negative where it leaves."""
    histograms = np.zeros((segments, 20, 4, width), np.uint8)
    for segment in range(segments):
        histograms[segment, 14, :, segment % width] = 5
        histograms[segment, 4, :, segment - 1] = 5 if segment else 0
    return histograms


def real():
    return fixed_windows(REAL, REAL, 50.0, Downsample(1, "all"))


def test_both_equations_see_the_same_histograms_from_the_start_on():
    histograms = np.random.default_rng(0).integers(0, 3, (5, 20, 6, 7), np.uint8)
    shown = instants(recording(histograms), [1, 4], alpha=5.0, norm_events=50.0)
    counts = torch.from_numpy(histograms)[None]
    video, _ = estimate_intensity(counts, norm_events=50.0)
    filtered, _ = estimate_high_pass(counts)
    for number, instant in zip((1, 4), shown, strict=True):
        np.testing.assert_array_equal(instant.histogram, histograms[number])
        np.testing.assert_allclose(instant.intensity, video[0, number], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(instant.high_pass, filtered[0, number], rtol=1e-4, atol=1e-5)
    assert [instant.title.split(":")[0] for instant in shown] == ["0.10 s", "0.25 s"]


def test_blur_stays_behind_a_moving_bar_under_eq_6_and_goes_under_eq_7():
    (shown,) = instants(recording(bar_that_passes()), [11], alpha=5.0, norm_events=1.0)
    # What is left of +5 and, a segment of 50 ms later, -5: the paper's (exp(-alpha * dt) - 1) * C, however long ago.
    np.testing.assert_allclose(shown.high_pass[:, :9], 5 * (np.exp(-5 * 0.05) - 1), rtol=1e-5)
    # 40 events of each segment decay what lies a segment further back once more.
    ratios = shown.intensity[:, 1:9] / shown.intensity[:, 2:10]
    np.testing.assert_allclose(ratios, np.exp(-5 * 0.005 * 40), rtol=1e-4)


def test_on_a_real_recording_what_has_moved_on_stays_under_eq_6_and_goes_under_eq_7():
    moving, after = instants(real(), windows_at(real(), [1.35, 2.0]), alpha=5.0, norm_events=500.0)
    # Pixels that the moving object touched and that have been silent since.
    silent = (moving.histogram.sum(0) > 0) & (after.histogram.sum(0) == 0)
    high_pass, intensity = (
        np.abs(getattr(after, name)[silent]).mean() / np.abs(getattr(moving, name)[silent]).mean()
        for name in ("high_pass", "intensity")
    )
    assert silent.sum() > 5_000
    assert high_pass > 0.7
    assert intensity < 0.25


def test_moments_are_windows_that_have_ended():
    made = recording(np.zeros((4, 20, 2, 2), np.uint8))
    assert windows_at(made, [0.05, 0.1, 0.149, 0.2]) == [0, 1, 3]
    for outside in (0.04, 0.21):
        with pytest.raises(UserError, match=r"made.raw: 0.*s is outside of the recording; give times from 0.05 to 0.2"):
            windows_at(made, [outside])


def test_without_moments_the_busiest_and_the_quietest_after_it_are_shown():
    histograms = np.zeros((20, 20, 2, 2), np.uint8)
    histograms[:, 0, 0, 0] = [9] * 10 + [1, 2, 7, 3, 2, 1, 4, 5, 2, 6]
    histograms[3, 0, 0, 0] = 0
    assert busiest_and_quiet(recording(histograms)) == [12, 15]
    assert busiest_and_quiet(recording(histograms[:1])) == [0]
    assert busiest_and_quiet(recording(histograms[:5])) == [4]


def test_a_picture_has_a_column_for_each_moment(tmp_path):
    shown = instants(recording(bar_that_passes(width=24)), [2, 5, 9], alpha=5.0, norm_events=50.0)
    widths = []
    for count in (1, 3):
        draw_instants(shown[:count], tmp_path / f"{count}.png", 50.0, (slice(0, 3), slice(4, 20)))
        with Image.open(tmp_path / f"{count}.png") as picture:
            widths.append(picture.width)
    assert widths[1] > 2.5 * widths[0]

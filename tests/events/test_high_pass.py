"""The intensity filter of Eq. 6, on events and on histograms."""

import math

import numpy as np
import pytest
import torch
from event_cases import HEIGHT, WIDTH, event_arrays, random_events
from hypothesis import given
from hypothesis import strategies as st

from tespec.events.intensity import estimate_high_pass, estimate_intensity, high_pass_intensity

TIMES = np.array([-3_000, 0, 1, 2_500, 2_500, 9_000])
BINS, ROWS, COLUMNS = 4, 3, 5
BIN_US = 5_000
CONSTANTS = {"alpha": 40.0, "contrast": 0.7, "bin_seconds": BIN_US / 1e6}
CLOSE = {"rtol": 2e-5, "atol": 5e-4}  # counts of 255 add up to about 1000, of which float32 holds seven digits


def plain(x, y, t, p, times, alpha, contrast):
    """Eq. 6 word for word, event by event: nothing happens to a pixel but at its own events."""
    video = np.zeros((len(times), HEIGHT, WIDTH))
    for index, time in enumerate(times):
        last = {}
        for i in range(len(t)):
            if t[i] < time:
                place = (index, y[i], x[i])
                video[place] *= math.exp(-alpha * (t[i] - last.get(place, t[i])) * 1e-6)
                video[place] += contrast if p[i] else -contrast
                last[place] = t[i]
    return video


def plain_bins(histograms, state, *, alpha, contrast, bin_seconds):
    """Eq. 6 bin after bin and pixel after pixel, in double precision: the video and the state after it."""
    lanes, segments, channels, height, width = histograms.shape
    video = np.zeros((lanes, segments, height, width))
    end = np.zeros((lanes, 2, height, width)) if state is None else state.double().numpy().copy()
    for lane, row, column in np.ndindex(lanes, height, width):
        value, since = end[lane, :, row, column]
        for segment in range(segments):
            counts = histograms[lane, segment, :, row, column].tolist()
            seconds = bin_seconds if isinstance(bin_seconds, float) else float(bin_seconds[lane, segment])
            for negative, positive in zip(counts[: channels // 2], counts[channels // 2 :], strict=True):
                since += seconds
                if negative or positive:
                    value = math.exp(-alpha * since) * value + contrast * (positive - negative)
                    since = 0.0
            video[lane, segment, row, column] = value
        end[lane, :, row, column] = value, since
    return video, end


@st.composite
def sparse_counts(draw, segments=3):
    """Histograms (2, T, 2*BINS, ROWS, COLUMNS) in which anything from no cell to all hold events."""
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    shape = (2, segments, 2 * BINS, ROWS, COLUMNS)
    filled = generator.random(shape) < draw(st.sampled_from([0.0, 0.02, 0.2, 1.0]))
    return torch.from_numpy(np.where(filled, generator.integers(1, 256, shape), 0).astype(np.uint8))


def some_state(seed=0):
    image, age = torch.randn(2, 2, ROWS, COLUMNS, generator=torch.Generator().manual_seed(seed)).unbind(1)
    return torch.stack([image, 0.1 * age.abs()], 1)


@given(event_arrays(largest=60))
def test_it_equals_eq_6_event_by_event(events):
    found = high_pass_intensity(*events, height=HEIGHT, width=WIDTH, alpha=200.0, contrast=0.3, times=TIMES)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, plain(*events, TIMES, 200.0, 0.3), rtol=1e-5, atol=1e-6)


def test_what_an_object_leaves_behind_persists():
    # The paper's toy example: one positive event as a circle covers a pixel, one negative as it leaves 0.2 s later.
    x, y, t, p = (np.array(values) for values in ([1, 1], [2, 2], [0, 200_000], [1, 0]))
    times = np.array([200_001, 10_000_000, 10**9])
    video = high_pass_intensity(x, y, t, p, height=4, width=4, alpha=5.0, times=times)
    assert video[0, 2, 1] == pytest.approx(math.exp(-5 * 0.2) - 1)
    assert (video == video[0]).all()
    assert np.count_nonzero(video[0]) == 1


def test_without_decay_it_sums_polarities():
    events = random_events(1_000)
    image = high_pass_intensity(*events, height=HEIGHT, width=WIDTH, alpha=0.0, times=np.array([50_000]))[0]
    wanted = np.zeros((HEIGHT, WIDTH))
    np.add.at(wanted, (events.y, events.x), 2.0 * events.p - 1)
    np.testing.assert_array_equal(image, wanted)


def test_times_may_lie_far_before_zero():
    x, y, t, p = random_events(200)
    far = -(10**16)
    near = high_pass_intensity(x, y, t, p, height=HEIGHT, width=WIDTH, alpha=5.0, times=TIMES)
    moved = high_pass_intensity(x, y, t + far, p, height=HEIGHT, width=WIDTH, alpha=5.0, times=TIMES + far)
    np.testing.assert_allclose(moved, near, atol=1e-6)


@pytest.mark.parametrize(
    ("change", "message"),
    [({"x": [WIDTH, 0]}, "x has values"), ({"t": [3, 2]}, "not sorted"), ({"times": [9, 5]}, "not sorted")],
)
def test_mistakes_are_refused(change, message):
    given_arrays = {"x": [0, 1], "y": [0, 1], "t": [1, 2], "p": [0, 1], "times": [5, 9]} | change
    with pytest.raises(ValueError, match=message):
        high_pass_intensity(
            **{name: np.array(values) for name, values in given_arrays.items()}, height=HEIGHT, width=WIDTH, alpha=1.0
        )


# Bytes on a CPU go through compiled loops; everything else through torch.
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.int32])
@pytest.mark.parametrize("carried", [False, True])
@given(histograms=sparse_counts())
def test_on_histograms_it_equals_going_pixel_by_pixel(dtype, carried, histograms):
    state = some_state() if carried else None
    video, end = estimate_high_pass(histograms.to(dtype), state, **CONSTANTS)
    wanted, wanted_end = plain_bins(histograms, state, **CONSTANTS)
    assert video.dtype == end.dtype == torch.float32
    np.testing.assert_allclose(video.numpy(), wanted, **CLOSE)
    np.testing.assert_allclose(end.numpy(), wanted_end, **CLOSE)
    assert torch.equal(end[:, 0], video[:, -1])


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
@given(histograms=sparse_counts())
def test_on_histograms_it_equals_the_filter_of_events_at_the_ends_of_bins(dtype, histograms):
    histograms = histograms % 4
    video, _ = estimate_high_pass(histograms.to(dtype), **CONSTANTS)
    ends = BIN_US * BINS * np.arange(1, histograms.shape[1] + 1)
    for lane, counts in enumerate(histograms.numpy()):
        segment, polarity, k, y, x = np.nonzero(counts.reshape(-1, 2, BINS, ROWS, COLUMNS))
        times = BIN_US * (BINS * segment + k + 1)
        number = counts.reshape(-1, 2, BINS, ROWS, COLUMNS)[segment, polarity, k, y, x]
        order = np.repeat(np.argsort(times, kind="stable"), number[np.argsort(times, kind="stable")])
        events = (x[order], y[order], times[order], polarity[order])
        wanted = high_pass_intensity(
            *events, height=ROWS, width=COLUMNS, alpha=CONSTANTS["alpha"], contrast=0.7, times=ends + 1
        )
        np.testing.assert_allclose(video[lane].numpy(), wanted, **CLOSE)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
@given(histograms=sparse_counts(segments=5), cut=st.integers(1, 4))
def test_a_sequence_cut_in_two_gives_the_same_video(dtype, histograms, cut):
    histograms = histograms.to(dtype)
    whole, end = estimate_high_pass(histograms, **CONSTANTS)
    head, state = estimate_high_pass(histograms[:, :cut], **CONSTANTS)
    tail, last = estimate_high_pass(histograms[:, cut:], state, **CONSTANTS)
    torch.testing.assert_close(torch.cat([head, tail], 1), whole, **CLOSE)
    torch.testing.assert_close(last, end, **CLOSE)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_a_pixel_without_events_stays_the_same_to_the_bit(dtype):
    histograms, state = torch.zeros(2, 3, 2 * BINS, ROWS, COLUMNS, dtype=dtype), some_state()
    histograms[:, :, :, 1, 2] = 3
    video, end = estimate_high_pass(histograms, state, **CONSTANTS)
    still = torch.ones(ROWS, COLUMNS, dtype=torch.bool)
    still[1, 2] = False
    assert all(torch.equal(video[:, segment, still], state[:, 0, still]) for segment in range(3))
    assert not torch.equal(video[:, 0, 1, 2], state[:, 0, 1, 2])
    torch.testing.assert_close(end[:, 1, still], state[:, 1, still] + 3 * BINS * CONSTANTS["bin_seconds"])
    assert not end[:, 1, 1, 2].any()


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_events_that_cancel_in_a_bin_are_events(dtype):
    histograms, state = torch.zeros(1, 1, 2, 1, 1, dtype=dtype), torch.tensor([2.0, 0.3]).view(1, 2, 1, 1)
    histograms[:] = 4
    video, end = estimate_high_pass(histograms, state, alpha=5.0, bin_seconds=0.1)
    assert video.item() == pytest.approx(2 * math.exp(-5 * 0.4))
    assert end[0, 1].item() == 0


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_bins_may_differ_in_length(dtype):
    histograms = torch.randint(0, 2, (2, 3, 2 * BINS, ROWS, COLUMNS), generator=torch.Generator().manual_seed(0))
    constants = CONSTANTS | {"bin_seconds": torch.tensor([[0.005, 0.003, 0.010], [0.001, 0.005, 0.02]])}
    video, _ = estimate_high_pass(histograms.to(dtype), **constants)
    np.testing.assert_allclose(video.numpy(), plain_bins(histograms, None, **constants)[0], **CLOSE)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_a_strong_decay_over_a_long_time_is_zero_and_not_nan(dtype):
    histograms = torch.zeros(1, 2, 2, 1, 1, dtype=dtype)
    histograms[0, :, 1] = 1
    video, _ = estimate_high_pass(histograms, torch.tensor([3e38, 1e30]).view(1, 2, 1, 1), alpha=1e6, bin_seconds=100.0)
    assert video.flatten().tolist() == [1.0, 1.0]


def test_it_is_not_the_uniform_decay():
    histograms = torch.zeros(1, 4, 2 * BINS, 1, 1, dtype=torch.uint8)
    histograms[0, 0, BINS] = 1
    uniform, _ = estimate_intensity(histograms, norm_events=None, alpha=5.0)
    filtered, _ = estimate_high_pass(histograms, alpha=5.0)
    assert filtered.flatten().tolist() == [1.0] * 4
    assert uniform.flatten().tolist() == pytest.approx([math.exp(-0.025 * (BINS * s + BINS - 1)) for s in range(4)])


def test_histograms_and_state_are_left_as_they_were():
    histograms, state = torch.ones(2, 3, 2 * BINS, ROWS, COLUMNS, dtype=torch.uint8), some_state()
    before = histograms.clone(), state.clone()
    video, end = estimate_high_pass(histograms, state, **CONSTANTS)
    end.zero_()
    assert torch.equal(histograms, before[0])
    assert torch.equal(state, before[1])
    assert (video[:, -1] != 0).any()


@pytest.mark.parametrize(
    ("shape", "state"),
    [((3, 20, 6, 7), None), ((2, 3, 5, 6, 7), None), ((2, 3, 4, 6, 7), (2, 6, 7)), ((2, 3, 4, 6, 7), (1, 2, 6, 7))],
)
def test_shapes_that_do_not_fit_are_refused(shape, state):
    with pytest.raises(ValueError, match="shape"):
        estimate_high_pass(torch.zeros(shape), None if state is None else torch.zeros(state))

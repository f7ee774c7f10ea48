"""Inputs of published backbones, each against a plain version of its definition."""

import numpy as np
import pytest
from event_files import PLAIN, in_memory, plain_ecdp, random_events, rows_of

from tespec.core.settings import Augmentation, Binning
from tespec.datasets.augment import apply_maps, sample_flip_zoom
from tespec.events.histogram import Region
from tespec.events.representations import REPRESENTATIONS, represent

SIZE = HEIGHT, WIDTH = 12, 20
FULL = Region(HEIGHT, WIDTH)
CLOSE = {"rtol": 1e-5, "atol": 1e-5}


def crowded(count, seed=0):
    """Events at one hot pixel, elsewhere, and in the corners."""
    events = random_events(count, height=HEIGHT, width=WIDTH, seed=seed)
    events.x[::3], events.y[::3] = 7, 5
    events.x[1], events.y[1] = 0, 0
    events.x[-1], events.y[-1] = WIDTH - 1, HEIGHT - 1
    return events


def stream_of(events):
    return in_memory(*events, height=HEIGHT, width=WIDTH)


def test_every_representation_has_a_plain_version():
    assert set(PLAIN) == set(REPRESENTATIONS)


def many():
    """More than 255 events of a pixel, of eight so that none is hot until 8 bits overflow."""
    events = random_events(2_000, height=HEIGHT, width=WIDTH)
    events.x[:], events.p[:] = np.repeat(range(8), [200, 300] * 4), 1
    events.y[:] = 3
    return events


CASES = {
    "crowded": (crowded(900), 5),
    "other bins": (crowded(900), 3),
    "few": (crowded(47), 6),
    "as many bins": (crowded(12), 10),
    "one": (random_events(1, height=HEIGHT, width=WIDTH), 1),
    "many": (many(), 5),
}


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("case", CASES)
def test_it_is_the_plain_version(name, case):
    events, bins = CASES[case]
    binning = Binning(bins, "edges", name)
    image = represent(stream_of(events), (0, 50_000), binning, FULL)
    assert (image.dtype, image.shape) == (np.float32, (binning.channels, *SIZE))
    np.testing.assert_allclose(image, PLAIN[name](rows_of(events), bins, SIZE), **CLOSE)
    empty = represent(stream_of(events), (60_000, 70_000), binning, FULL)
    assert empty.shape == image.shape
    assert np.isfinite(empty).all()
    assert all(len(np.unique(channel)) == 1 for channel in empty)


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("region", [FULL, Region(6, 10, 2), Region(6, 10, 2, "all"), Region(9, 20)])
def test_flip_zoom_and_downsampling_move_events_before_scaling(name, region):
    """Scaling takes maxima, percentiles and hot pixels of what the network sees."""
    events = crowded(900)
    settings = Augmentation(flip=0.5, zoom=0.8, zoom_in=(1.0, 3.0), zoom_out=(1.0, 2.0))
    rng = np.random.default_rng(3)
    for _ in range(4):
        flip_zoom = sample_flip_zoom(rng, settings, region.height, region.width)
        rows, columns = flip_zoom.rows, flip_zoom.columns
        moved = []  # every event at each pixel that shows it, with its number
        for number, (x, y, t, p) in enumerate(rows_of(events)):
            if region.keep == "nearest" and region.factor > 1 and not (x % 2 and y % 2):
                continue
            cell = y // region.factor, x // region.factor
            for row in np.flatnonzero(rows == cell[0]):
                moved += [
                    (column, row, t, p, number) for column in np.flatnonzero(columns == cell[1])
                ]
        size = (region.height, region.width)
        binning = Binning(5, "edges", name)
        image = represent(stream_of(events), (0, 50_000), binning, region, (rows, columns))
        if name in ("voxels", "ecddp"):  # times and numbers are those of all events
            plain = represent(stream_of(events), (0, 50_000), binning, region)
            expected = apply_maps(plain, flip_zoom, 0)
        else:
            expected = PLAIN[name]([row[:4] for row in moved], 5, size)
        np.testing.assert_allclose(image, expected, **CLOSE)


def test_the_last_events_end_with_the_window_and_may_begin_before_it():
    events = random_events(5_000, height=HEIGHT, width=WIDTH)
    stream = stream_of(events)
    rows = rows_of(events)
    for end in (0, 1, 999, 1_000, 20_000, 20_001, 50_000, 10**6):
        earlier = [row for row in rows if row[2] < end]
        for count in (1, 7, 700, 6_000):
            assert rows_of(stream.latest(end, count)) == earlier[-count:]
    binning = Binning(5, "edges", "ecdp", 700)
    image = represent(stream, (19_999, 20_000), binning, FULL)
    earlier = [row for row in rows if row[2] < 20_000]
    np.testing.assert_allclose(image, plain_ecdp(earlier[-700:], 5, SIZE), **CLOSE)


def test_the_last_events_are_those_before_rectification():
    events = random_events(300, height=HEIGHT, width=WIDTH)
    pixels = np.stack(np.meshgrid(np.arange(WIDTH), np.arange(HEIGHT)), -1).astype(np.int16)
    pixels[:, :5] = -1  # they leave the sensor
    latest = stream_of(events).rectified(pixels).latest(50_000, 100)
    assert rows_of(latest) == [row for row in rows_of(events)[-100:] if row[0] >= 5]

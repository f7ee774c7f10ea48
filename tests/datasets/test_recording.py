from pathlib import Path

import numpy as np
import pytest

from tespec.datasets.recording import Recording
from tespec.datasets.sources import EventSource
from tespec.datasets.windows import windows_side_by_side
from tespec.errors import UserError
from tespec.events import event_histogram, open_events
from tespec.events.spatial import Region


@pytest.fixture(scope="module")
def path(tiny_world):
    return tiny_world / "1mpx" / "train" / "street_000_td.dat"


WHOLE = Region(64, 96)


@pytest.mark.parametrize(
    ("region", "rule"),
    [
        (WHOLE, "edges"),
        (WHOLE, "rvt"),
        (Region(50, 96), "edges"),
        (Region(32, 48, 2, "nearest"), "edges"),
        (Region(32, 48, 2, "all"), "edges"),
    ],
)
def test_histograms_are_those_of_each_window(path, region, rule):
    stream = open_events(path)
    windows = windows_side_by_side(stream.t_first, stream.t_last, 40_000)[3:7]
    histograms = Recording("street", EventSource(path), region, windows).histograms(1, 3, 6, rule)
    assert histograms.shape == (3, 12, region.height, region.width)
    for histogram, (start, end) in zip(histograms, windows[1:].tolist(), strict=True):
        x, y, t, p = region.apply(stream.slice(start, end))
        size = {"height": region.height, "width": region.width}
        expected = event_histogram(x, y, t, p, t_start=start, t_end=end, bins=6, rule=rule, **size)
        np.testing.assert_array_equal(histogram, expected)


def test_files_are_opened_when_events_are_asked_for():
    recording = Recording("gone", EventSource(Path("gone.dat")), Region(4, 4), np.array([[0, 10]]))
    assert len(recording) == 1
    with pytest.raises(UserError, match=r"gone.dat: no such file"):
        recording.histograms(0, 1, 2, "edges")

"""Which moments a preview shows, and what it shows of them."""

from pathlib import Path

import numpy as np
import pytest
import torch

from tespec.core.errors import UserError
from tespec.datasets.check import choose, moment, windows_at
from tespec.datasets.folder import ALL, EventFolder
from tespec.events.intensity import estimate_intensity

REAL = Path(__file__).parents[1] / "data" / "evt3_640x480_2.08s.raw"


@pytest.fixture(scope="module")
def recording():
    return EventFolder(REAL).recordings(ALL)[0]


def test_no_moment_is_shown_twice_while_there_are_others(recording):
    for count in (2, 3, len(recording)):
        assert len({window for _, window in choose([recording], count, "edges")}) == count
    assert len(choose([recording], len(recording) + 2, "edges")) == len(recording) + 2


def test_moments_are_windows_that_have_ended(recording):
    assert windows_at(recording, [0.05, 0.1, 0.149, 2.0]) == [0, 1, 39]
    for outside in (0.04, 2.2):
        with pytest.raises(UserError, match=r"s is outside of the recording; give times from 0.05 to 2.05 s"):
            windows_at(recording, [outside])


def test_the_intensity_is_that_of_the_recording_from_its_start(recording):
    shown = moment(recording, 20, "edges", 500.0)
    counts = torch.from_numpy(recording.histograms(0, 21, 10, "edges"))[None]
    video, _ = estimate_intensity(counts, norm_events=500.0)
    np.testing.assert_allclose(shown.intensity, video[0, -1], rtol=1e-4, atol=1e-5)
    assert shown.title.splitlines()[1].startswith("1.05 s: ")

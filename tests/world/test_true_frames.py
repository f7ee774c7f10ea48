"""The true frame in place of a histogram: the right moment of the right street."""

from __future__ import annotations

import h5py
import numpy as np
import pytest
from PIL import Image

from tespec.core.errors import UserError
from tespec.events.spatial import Region
from tespec.runs.data import Data, settings_of
from tespec.tasks import build_task
from tespec.world.frames import with_frames
from tespec.world.layouts.mvsec import EPOCH_US, IMAGE_STRIDE
from tespec.world.street import FRAME_RATE


def opened(world, name):
    root = world / name
    settings = settings_of(Data(root, "sample"), name, "feedforward")
    return build_task(settings, root).scored, root


def test_ddd17_frames_are_the_images_beside_the_masks(tiny_world):
    (events,), root = opened(tiny_world, "ddd17")
    (recording,) = with_frames([events], root)
    times = recording.label_times
    for label in (0, len(times) - 1):
        window = int(recording.labelled[label])
        shown = recording.histograms(window, 1, 10, "edges")
        assert shown.shape == (1, 20, recording.region.height, recording.region.width)
        assert (shown == shown[:, :1]).all()
        number = round(int(times[label]) / 30_000)
        image = np.asarray(Image.open(root / recording.name / "imgs" / f"img_{number:08d}.png"))
        assert (shown[0, 0] == image[: recording.region.height]).all()


def test_mvsec_frames_are_the_camera_s(tiny_world):
    recordings, root = opened(tiny_world, "mvsec")
    recording = with_frames(recordings, root)[0]
    with h5py.File(root / f"{recording.name}_data.hdf5") as file:
        images = file["davis/left/image_raw"][()]
    label = next(
        label
        for label, time in enumerate(recording.label_times)
        if round((int(time) - EPOCH_US) * FRAME_RATE / 1e6) % IMAGE_STRIDE == 0
    )
    frame = round((int(recording.label_times[label]) - EPOCH_US) * FRAME_RATE / 1e6)
    shown = recording.histograms(int(recording.labelled[label]), 1, 10, "edges")
    assert (shown[0, 0] == images[frame // IMAGE_STRIDE - 1]).all()


@pytest.mark.parametrize("name", ["dsec", "gen1", "1mpx"])
def test_other_layouts_show_something_at_every_label(tiny_world, name):
    recordings, root = opened(tiny_world, name)
    for events, recording in zip(recordings, with_frames(recordings, root), strict=True):
        for window in recording.labelled[[0, -1]].tolist():
            shown = recording.histograms(window, 1, 10, "edges")
            assert shown.shape == events.histograms(window, 1, 10, "edges").shape
            assert shown.std() > 10


def test_a_downsampled_region_shows_the_mean(tiny_world):
    recordings, root = opened(tiny_world, "1mpx")
    recording = with_frames(recordings, root)[0]
    windows = recording.windows[recording.labelled[:1]]
    whole = recording.source.histograms(windows, 1, "edges", Region(64, 96))[0, 0].astype(float)
    half = recording.source.histograms(windows, 1, "edges", Region(32, 48, 2, "all"))[0, 0]
    assert np.abs(half - whole.reshape(32, 2, 48, 2).mean(axis=(1, 3))).max() <= 0.5


def test_other_data_than_the_sample_world_are_refused(tiny_world, tmp_path):
    recordings, _ = opened(tiny_world, "mvsec")
    with pytest.raises(UserError, match="true frames are known of the sample world alone"):
        with_frames(recordings, tmp_path)

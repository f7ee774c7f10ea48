"""The picture of the world."""

from __future__ import annotations

import numpy as np
from PIL import Image
from scipy.ndimage import uniform_filter

from tespec.world.picture import draw_world, moments
from tespec.world.scene import make_camera
from tespec.world.street import Street

CAMERA = make_camera(48, 64)


def detail(image):
    return image - uniform_filter(image, 9)


def test_moments_are_one_driving_and_one_standing():
    driving, standing = moments(Street(3, 8.0), CAMERA)
    assert driving.standing_seconds == 0.0 < driving.frame.ego_speed
    assert standing.frame.ego_speed == 0.0 < standing.standing_seconds
    assert len(driving.recent.t) > 3 * len(standing.recent.t)


def test_standing_both_intensities_remember_the_street():
    _, standing = moments(Street(3, 8.0), CAMERA)
    still = standing.frame.instance == 0
    seen = detail(np.log(standing.frame.image + 0.02))[still]
    for image in (standing.rate_normalised, standing.high_pass):
        assert np.corrcoef(seen, detail(image)[still])[0, 1] > 0.3


def test_picture_is_written_with_a_row_per_moment(tmp_path):
    path = tmp_path / "world.png"
    draw_world(path, ((3, False),), CAMERA)
    with Image.open(path) as picture:
        assert picture.width == 1600
        assert 400 < picture.height < 800
    assert [file.name for file in tmp_path.iterdir()] == ["world.png"]

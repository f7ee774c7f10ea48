"""A picture of the sample world: what the sensor sees and what is true, driving and standing, by day and by night."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from tespec.events.histogram import event_histogram
from tespec.events.intensity import estimate_intensity, high_pass_intensity
from tespec.events.stream import Events
from tespec.pictures.panels import (
    NEGATIVE,
    POLARITIES,
    POSITIVE,
    UNKNOWN,
    add_bar,
    add_legend,
    class_colours,
    draw_label,
    make_panels,
    save_figure,
    show_grey,
)
from tespec.world.layouts.ddd17 import CLASSES, mask
from tespec.world.scene import Camera, make_camera
from tespec.world.street import Frame, Street, record

CAMERA = make_camera(260, 346)
STREETS = ((3, False), (8, True))
SECONDS = 8.0
SEGMENT_US, BINS = 50_000, 10
SHOWN_EVENTS_US = 30_000
DECAY = 5.0
SETTLING = 200  # frames before the first moment that is worth showing
NEAREST, FARTHEST = 2.0, 150.0  # m
WIDTH = 20.0  # inches
COLUMNS = ("grey frame", "events of 30 ms", "classes", "depth", "intensity, Eq. 6", "intensity, Eq. 7")


class Moment(NamedTuple):
    """A frame, the recent events, the intensity images (H, W) of Eq. 6 and Eq. 7 and how long the car has stood."""

    frame: Frame
    recent: Events
    high_pass: npt.NDArray[np.float32]
    rate_normalised: npt.NDArray[np.float32]
    standing_seconds: float


def draw_world(path: Path, streets: tuple[tuple[int, bool], ...] = STREETS, camera: Camera = CAMERA) -> None:
    """Save a PNG with two moments, driving and standing, of each street (its seed, and whether it is night)."""
    rows = [moment for seed, night in streets for moment in moments(Street(seed, SECONDS, night), camera)]
    colours = POLARITIES | class_colours(CLASSES) | {"no depth: sky, or farther than the bar": UNKNOWN}
    size = (camera.height, camera.width)
    figure, panels = make_panels(len(rows), len(COLUMNS), size, WIDTH, bars=3, legend=len(colours))
    for axis, title in zip(panels[0], COLUMNS, strict=True):
        axis.set_title(title)
    for axes, moment in zip(panels, rows, strict=True):
        _draw_row(axes, moment)
    add_legend(figure, colours)
    save_figure(figure, path, dpi=80)


def moments(street: Street, camera: Camera) -> tuple[Moment, Moment]:
    """The fastest moment of a street and the last of its longest stand, each after the images have settled."""
    standing = _frames_standing(street.ego_speed)
    fastest = SETTLING + int(np.argmax(street.ego_speed[SETTLING:]))
    last_standing = SETTLING + int(np.argmax(standing[SETTLING:]))
    found: dict[int, Moment] = {}
    past: list[Events] = []
    for frame, events in record(street, camera):
        past.append(events)
        if frame.index in (fastest, last_standing):
            events = Events(*(np.concatenate(column) for column in zip(*past, strict=True)))
            found[frame.index] = _moment(frame, events, float(standing[frame.index]) / street.frame_rate)
    return found[fastest], found[last_standing]


def _frames_standing(speed: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """For how many frames the car has stood, for each frame."""
    count = np.zeros(len(speed), np.int64)
    for frame in range(1, len(speed)):
        count[frame] = count[frame - 1] + 1 if speed[frame] == 0.0 else 0
    return count


def _moment(frame: Frame, events: Events, standing_seconds: float) -> Moment:
    x, y, t, p = events
    height, width = frame.depth.shape
    state = torch.zeros(1, height, width)
    for start in range(frame.time_us % SEGMENT_US, frame.time_us, SEGMENT_US):
        window = slice(*np.searchsorted(t, (start, start + SEGMENT_US)))
        histogram = event_histogram(
            *(column[window] for column in events),
            t_start=start,
            t_end=start + SEGMENT_US,
            bins=BINS,
            height=height,
            width=width,
        )
        _, state = estimate_intensity(torch.from_numpy(histogram)[None, None], state, alpha=DECAY)
    high_pass = high_pass_intensity(
        x, y, t, p, height=height, width=width, alpha=DECAY, times=np.array([frame.time_us])
    )
    recent = t >= frame.time_us - SHOWN_EVENTS_US
    shown = Events(x[recent], y[recent], t[recent], p[recent])
    return Moment(frame, shown, high_pass[-1], state[0].numpy(), standing_seconds)


def _draw_row(axes: npt.NDArray[np.object_], moment: Moment) -> None:
    grey, events, classes, depth, high_pass, rate_normalised = axes
    frame = moment.frame
    grey.imshow(frame.grey, cmap="gray", vmin=0, vmax=255)
    dots = np.ones((*frame.depth.shape, 3), np.float32)
    dots[moment.recent.y, moment.recent.x] = np.where(moment.recent.p[:, None] == 1, POSITIVE, NEGATIVE)
    events.imshow(dots, interpolation="nearest")
    draw_label(classes, mask(frame.label, len(frame.label)))
    shown = draw_label(depth, np.where(frame.depth < FARTHEST, frame.depth, np.nan))
    assert shown is not None
    shown.set_clim(NEAREST, FARTHEST)
    add_bar(depth, shown, str(shown.get_label()))
    show_grey(high_pass, moment.high_pass)
    show_grey(rate_normalised, moment.rate_normalised)
    stood = moment.standing_seconds
    grey.set_ylabel(f"standing for {stood:.1f} s" if stood > 0 else f"driving at {frame.ego_speed:.1f} m/s")

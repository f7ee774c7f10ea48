"""A picture of some streets: grey frame, events, classes and depth."""

from __future__ import annotations

from pathlib import Path

import numpy as np

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
)
from tespec.sample.ddd17 import CLASSES, mask
from tespec.sample.street import Street

HEIGHT, WIDTH = 260, 346
STREETS = ((3, False), (5, False), (8, True))
FRAMES = 60
SHOWN_FRAMES = 3  # whose events are shown
NEAREST, FARTHEST = 2.0, 95.0  # m
COLUMNS = ("grey frame", "events of 30 ms", "classes", "depth")


def draw_streets(path: Path, streets: tuple[tuple[int, bool], ...] = STREETS) -> None:
    """Save a PNG with a row for each street, given by its seed and whether it is night."""
    colours = POLARITIES | class_colours(CLASSES) | {"no depth: sky, or farther than the bar": UNKNOWN}
    figure, panels = make_panels(len(streets), len(COLUMNS), (HEIGHT, WIDTH), 16.0, bars=1, legend=len(colours))
    for axis, title in zip(panels[0], COLUMNS, strict=True):
        axis.set_title(title)
    for (grey, dots, classes, depth), (seed, night) in zip(panels, streets, strict=True):
        street = Street(seed, FRAMES / 100, night)
        film = list(street.record(street.camera(HEIGHT, WIDTH)))
        frame = film[-1][0]
        events = Events(*map(np.concatenate, zip(*(each for _, each in film[-SHOWN_FRAMES:]), strict=True)))
        shown = np.ones((HEIGHT, WIDTH, 3), np.float32)
        shown[events.y, events.x] = np.where(events.p[:, None] == 1, POSITIVE, NEGATIVE)
        grey.imshow(frame.grey, cmap="gray", vmin=0, vmax=255)
        grey.set_ylabel(f"street {seed}, {frame.ego_speed:.1f} m/s")
        dots.imshow(shown, interpolation="nearest")
        draw_label(classes, mask(frame.label, HEIGHT))
        drawn = draw_label(depth, np.where(frame.depth < FARTHEST, frame.depth, np.nan))
        assert drawn is not None
        drawn.set_clim(NEAREST, FARTHEST)
        add_bar(depth, drawn, str(drawn.get_label()))
    add_legend(figure, colours)
    save_figure(figure, path, dpi=80)

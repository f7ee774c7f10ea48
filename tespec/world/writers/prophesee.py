"""Writes a street as a Prophesee recording: `.dat` events, and boxes in a `.npy` file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tespec.events.readers.prophesee_dat import write_dat
from tespec.events.stream import Events
from tespec.world.sizes import Plan
from tespec.world.street import FRAME_RATE, Frame
from tespec.world.writers.boxes import BOX, GEN1, ONE_MPX, frame_boxes, save_boxes
from tespec.world.writers.speeds import write_speed

LABELS = {"gen1": (GEN1, 4), "1mpx": (ONE_MPX, 60)}  # classes, and labels per second


def write_prophesee(film: Iterator[tuple[Frame, Events]], root: Path, plan: Plan) -> None:
    """Write `<split>/<name>_td.dat` and `<split>/<name>_bbox.npy`.

    Labels are at the official rates, at the frames that are nearest in time.

    Args:
        film: frames and events of `street.record`.
        root: folder of the dataset.
        plan: of the recording.
    """
    classes, rate = LABELS[plan.dataset]
    labelled = {round(number * FRAME_RATE / rate) for number in range(1, int(plan.seconds * rate) + 1)}
    columns, boxes, times, speeds = [], [np.empty(0, BOX)], [], []
    for frame, events in film:
        columns.append(events)
        times.append(frame.time_us)
        speeds.append(frame.ego_speed)
        if frame.index in labelled:
            boxes.append(frame_boxes(frame, classes))
    folder = root / plan.split
    folder.mkdir(exist_ok=True)
    x, y, t, p = (np.concatenate(column) for column in zip(*columns, strict=True))
    write_dat(folder / f"{plan.name}_td.dat", x, y, t, p, plan.sensor.height, plan.sensor.width)
    save_boxes(folder / f"{plan.name}_bbox.npy", np.concatenate(boxes))
    write_speed(root, plan.name, times, speeds)

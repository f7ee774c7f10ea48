"""The true grey frame in place of the histogram: what a model would see if the sensor were a camera."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tespec.core.errors import UserError
from tespec.datasets.description import read_description
from tespec.datasets.recording import LabelledRecording
from tespec.datasets.sources import Source
from tespec.datasets.windows import Windows
from tespec.events import EventStream
from tespec.events.spatial import Region
from tespec.world.contents import Take, takes
from tespec.world.layouts import STARTS
from tespec.world.scene import make_camera
from tespec.world.street import FRAME_RATE, Street, render

Images = NDArray[np.uint8]


@dataclass(frozen=True)
class FrameSource:
    """Frames of a street of the sample world, drawn when they are asked for.

    Attributes:
        events: the source whose place it takes, and which says what the recording is.
        take: of the recording.
    """

    events: Source
    take: Take

    @property
    def path(self) -> Path:
        """That of the events."""
        return self.events.path

    @property
    def files(self) -> tuple[Path, ...]:
        """Those of the events."""
        return self.events.files

    def identity(self) -> list[dict[str, Any]]:
        """That of the events."""
        return self.events.identity()

    @property
    def stream(self) -> EventStream:
        """That of the events."""
        return self.events.stream

    def histograms(self, windows: Windows, bins: int, rule: str, region: Region) -> Images:
        """(N, 2*bins, H, W) uint8: the frame at the end of each window (N, 2) in us, the same in every channel."""
        film = _film(self.take)
        frames = np.stack([_reduced(film.at(int(end)), region) for end in windows[:, 1]])
        return np.repeat(frames[:, None], 2 * bins, axis=1)


class _Film:
    """Frames of a recording by time, each drawn once."""

    def __init__(self, take: Take) -> None:
        self._take = take
        self._street = Street(take.seed, take.seconds, take.night)
        self._camera = make_camera(take.sensor.height, take.sensor.width, take.sensor.label_rows)
        self._drawn: dict[int, Images] = {}

    def at(self, time_us: int) -> Images:
        """The frame (H, W) nearest to a time of the recording's clock.

        Raises:
            UserError: the recording does not last as long.
        """
        number = round((time_us - STARTS[self._take.dataset]) * FRAME_RATE / 1_000_000)
        if not 0 <= number < self._street.frames:
            raise UserError(self._take.name, f"has no frame at {time_us} us", "make the sample world again")
        if number not in self._drawn:
            self._drawn[number] = render(self._street, self._camera, number).grey
        return self._drawn[number]


@lru_cache(maxsize=64)
def _film(take: Take) -> _Film:
    return _Film(take)


def _reduced(frame: Images, region: Region) -> Images:
    """The region of a frame; of `factor` x `factor` pixels their mean."""
    size = region.factor
    part = frame[: region.height * size, : region.width * size]
    if size == 1:
        return part
    blocks = part.reshape(region.height, size, region.width, size).mean(axis=(1, 3))
    reduced: Images = (blocks + 0.5).astype(np.uint8)
    return reduced


def with_frames(recordings: Sequence[LabelledRecording], root: Path) -> list[LabelledRecording]:
    """Recordings of the sample world's data set in `root` that show frames in place of histograms.

    Raises:
        UserError: they are no recordings of the sample world.
    """
    world = read_description(root).world
    if not world:
        raise UserError(root, "true frames are known of the sample world alone", "give data of the sample world")
    planned = {take.name: take for take in takes(str(world["size"]), int(world["seed"]), root.name)}
    missing = [recording.name for recording in recordings if recording.name not in planned]
    if missing:
        raise UserError(root, f"{', '.join(missing)}: no recording of this world", "make the sample world again")
    return [replace(each, source=FrameSource(each.source, planned[each.name])) for each in recordings]

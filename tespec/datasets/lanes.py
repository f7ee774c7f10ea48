"""Who plays what at step k: batch slot i plays lane i, an endless seeded playlist of recordings cut into chunks.

Everything here is a pure function of its arguments, so that neither worker processes nor interruptions change what is
seen, and step k is reached without replaying the steps before it.
"""

from __future__ import annotations

from collections.abc import Sequence, Sized
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class _Playlist(NamedTuple):
    """A lap of a lane.

    Attributes:
        order: of the recordings.
        ends: at which chunk of the lap each of them ends, in this order.
        phases: at which window the first chunk of each recording begins, by recording.
    """

    order: NDArray[np.int64]
    ends: NDArray[np.int64]
    phases: NDArray[np.int64]


class Slot(NamedTuple):
    """What one lane plays at one step.

    Attributes:
        recording: index of the recording.
        first: index of the chunk's first window.
        play: number of the recording pass within the lane; augmentation is drawn once for each.
        fresh: whether the state starts afresh.
    """

    recording: int
    first: int
    play: int
    fresh: bool


@dataclass(frozen=True)
class Lanes:
    """Playlists of a batch.

    Attributes:
        lengths: number of windows of each recording. Recordings shorter than a chunk are never played. A pass of a
            recording plays as many whole chunks as it holds; at which of the windows left over the first one begins
            changes from lap to lap, so that within as many laps as a chunk has windows each window is played.
        segments: windows per chunk.
        count: number of lanes, the batch size.
        seed: the run's seed.
        random_share: share of the lanes, rounded to whole lanes, that play random chunks with a fresh state at each
            step instead of streams (RVT's mixed sampling).
        ends: of each recording the windows, rising, at which random chunks end; None: any. The chunk for a window that
            comes before the end of the first whole chunk is that first one, which holds it.
    """

    lengths: tuple[int, ...]
    segments: int
    count: int
    seed: int
    random_share: float = 0.0
    ends: tuple[NDArray[np.int64], ...] | None = None

    @property
    def playable(self) -> bool:
        """Whether any recording holds a whole chunk."""
        whole = max(self.lengths, default=0) >= self.segments
        return whole and (not self.random_lanes or bool(self._random_chunks.any()))

    @property
    def never_carries(self) -> bool:
        """Whether lanes play streams, and none of them has a second chunk to carry a state to."""
        return self.random_lanes < self.count and max(self.lengths, default=0) < 2 * self.segments

    @property
    def random_lanes(self) -> int:
        """Number of lanes that play random chunks: the first ones."""
        return round(self.random_share * self.count)

    def slot(self, lane: int, step: int) -> Slot:
        """What `lane` plays at `step`."""
        if lane < self.random_lanes:
            return self._random_slot(lane, step)
        total = self._total
        # Lanes start spread over the playlist, so that they differ even where there is a single recording.
        start = int((lane + self.generator("start", lane).random()) * total / self.count)
        lap, position = divmod(start + step, total)
        order, ends, phases = self._playlist(lane, lap)
        index = int(np.searchsorted(ends, position, side="right"))
        recording = int(order[index])
        chunk = position - int(ends[index] - self._chunks[recording])
        first = int(phases[recording]) + chunk * self.segments
        return Slot(recording, first, lap * len(order) + index, chunk == 0 or step == 0)

    @cached_property
    def _chunks(self) -> NDArray[np.int64]:
        """Whole chunks of each recording."""
        return np.array(self.lengths, np.int64) // self.segments

    @cached_property
    def _total(self) -> int:
        """Chunks of a lap."""
        return int(self._chunks.sum())

    @cached_property
    def _playlists(self) -> dict[int, tuple[int, _Playlist]]:
        """Lap and playlist of what each lane played last, so that steps do not cost more with more recordings."""
        return {}

    def _playlist(self, lane: int, lap: int) -> _Playlist:
        known = self._playlists.get(lane)
        if known is None or known[0] != lap:
            order = self.generator("order", lane, lap).permutation(len(self._chunks))
            phases = np.array(self.lengths, np.int64) % self.segments + 1
            first = self.generator("phase", lane).integers(phases)
            known = lap, _Playlist(order, self._chunks[order].cumsum(), (first + lap) % phases)
            self._playlists[lane] = known
        return known[1]

    def _random_slot(self, lane: int, step: int) -> Slot:
        generator = self.generator("random", lane, step)
        counts, ends = self._random_chunks, self._random_ends
        position = int(generator.integers(int(ends[-1])))
        recording = int(np.searchsorted(ends, position, side="right"))
        first = position - int(ends[recording] - counts[recording])
        if self._random_firsts is not None:
            first = int(self._random_firsts[recording][first])
        return Slot(recording, first, step, True)

    @cached_property
    def _random_ends(self) -> NDArray[np.int64]:
        """At which of all random chunks those of each recording end."""
        return self._random_chunks.cumsum()

    @cached_property
    def _random_chunks(self) -> NDArray[np.int64]:
        """Number of random chunks that each recording has."""
        if self._random_firsts is not None:
            return np.array([len(each) for each in self._random_firsts], np.int64)
        return np.maximum(np.array(self.lengths, np.int64) - self.segments + 1, 0)

    @cached_property
    def _random_firsts(self) -> list[NDArray[np.int64]] | None:
        """At which windows the random chunks of each recording begin; None: at any."""
        if self.ends is None:
            return None
        return [
            np.unique(np.maximum(ends - self.segments + 1, 0)) if length >= self.segments else np.empty(0, np.int64)
            for length, ends in zip(self.lengths, self.ends, strict=True)
        ]

    def generator(self, purpose: str, *numbers: int) -> np.random.Generator:
        """Random numbers for one purpose, a pure function of the seed, the purpose and the numbers."""
        return np.random.default_rng([self.seed, *purpose.encode(), *numbers])


class Shuffled:
    """What is shown at each position of an endless row: each lap shows all of it once, in an order of its own.

    Args:
        count: of what is shown.
        seed: the run's seed.
    """

    def __init__(self, count: int, seed: int) -> None:
        self._count, self._seed = count, seed
        # An order is as long as the data: it is drawn once for a lap, not for each of its positions.
        self._lap, self._order = -1, np.empty(0, np.int64)

    def __getitem__(self, position: int) -> int:
        lap, place = divmod(position, self._count)
        if lap != self._lap:
            self._lap = lap
            self._order = np.random.default_rng([self._seed, *b"order", lap]).permutation(self._count)
        return int(self._order[place])


def serpentine(lengths: Sequence[int], lanes: int) -> list[list[int]]:
    """Recordings dealt to lanes by falling length, there and back, so that lanes end at about the same time."""
    dealt: list[list[int]] = [[] for _ in range(lanes)]
    for place, recording in enumerate(np.argsort(lengths, kind="stable")[::-1]):
        turn, offset = divmod(place, lanes)
        dealt[offset if turn % 2 == 0 else lanes - 1 - offset].append(int(recording))
    return [lane for lane in dealt if lane]


def lengths_of(recordings: Sequence[Sized]) -> tuple[int, ...]:
    """Number of windows of each recording."""
    return tuple(len(recording) for recording in recordings)

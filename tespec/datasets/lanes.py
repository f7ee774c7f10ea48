"""Which chunk of which recording each batch slot plays at step k.

Batch slot i plays lane i: an endless seeded playlist of recordings cut into chunks of consecutive windows. Everything
is a pure function of the arguments: neither worker processes nor interruptions change it, and no step replays others.
"""

from __future__ import annotations

from collections.abc import Sequence, Sized
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Slot(NamedTuple):
    """What one lane plays at one step.

    Attributes:
        recording: index of the recording.
        first: index of the chunk's first window.
        pass_index: number of the pass over a recording within the lane; augmentation is sampled once per pass.
        fresh: whether the state is reset.
    """

    recording: int
    first: int
    pass_index: int
    fresh: bool


class _Playlist(NamedTuple):
    order: NDArray[np.int64]  # of the recordings
    ends: NDArray[np.int64]  # chunk of the epoch at which each of them ends, in this order
    phases: NDArray[np.int64]  # first window of the first chunk, by recording


@dataclass(frozen=True)
class Lanes:
    """Playlists of a batch.

    A pass over a recording plays as many whole chunks as the recording holds, none of a recording shorter than a chunk.
    The first chunk begins at another of the windows left over in each epoch: every window is played within as many
    epochs as a chunk has windows.

    Attributes:
        lengths: number of windows of each recording.
        segments: windows per chunk.
        count: number of lanes, the batch size.
        seed: of the run.
        random_share: share of the lanes, rounded to whole lanes, that play a random chunk with a reset state at each
            step instead of streams (RVT's mixed sampling).
        ends: of each recording the windows, rising, at which random chunks end; None: any. A chunk that would begin
            before the recording is its first one.
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
        return bool(self._chunks.any()) and (not self.random_lanes or any(map(len, self._random_firsts)))

    @property
    def has_no_continuation(self) -> bool:
        """Whether lanes play streams, and no recording has a second chunk to carry a state to."""
        return self.random_lanes < self.count and max(self.lengths, default=0) < 2 * self.segments

    @property
    def random_lanes(self) -> int:
        """Number of lanes that play random chunks: the first ones."""
        return round(self.random_share * self.count)

    def slot(self, lane: int, step: int) -> Slot:
        """What `lane` plays at `step`."""
        if lane < self.random_lanes:
            position = int(self.generator("random", lane, step).integers(int(self._random_ends[-1])))
            recording = int(np.searchsorted(self._random_ends, position, side="right"))
            firsts = self._random_firsts[recording]
            return Slot(recording, int(firsts[position - int(self._random_ends[recording])]), step, True)
        total = int(self._chunks.sum())
        # Lanes start spread over the playlist, so that they differ even where there is a single recording.
        start = int((lane + self.generator("start", lane).random()) * total / self.count)
        epoch, position = divmod(start + step, total)
        order, ends, phases = self._playlist(lane, epoch)
        index = int(np.searchsorted(ends, position, side="right"))
        recording = int(order[index])
        chunk = position - int(ends[index] - self._chunks[recording])
        first = int(phases[recording]) + chunk * self.segments
        return Slot(recording, first, epoch * len(order) + index, chunk == 0 or step == 0)

    @cached_property
    def _chunks(self) -> NDArray[np.int64]:
        """Whole chunks of each recording."""
        return np.array(self.lengths, np.int64) // self.segments

    @cached_property
    def _playlists(self) -> dict[int, tuple[int, _Playlist]]:
        """Epoch and playlist of what each lane played last: steps do not cost more with more recordings."""
        return {}

    def _playlist(self, lane: int, epoch: int) -> _Playlist:
        known = self._playlists.get(lane)
        if known is None or known[0] != epoch:
            order = self.generator("order", lane, epoch).permutation(len(self._chunks))
            phases = np.array(self.lengths, np.int64) % self.segments + 1
            first = self.generator("phase", lane).integers(phases)
            known = epoch, _Playlist(order, self._chunks[order].cumsum(), (first + epoch) % phases)
            self._playlists[lane] = known
        return known[1]

    @cached_property
    def _random_firsts(self) -> list[NDArray[np.int64]]:
        """At which windows the random chunks of each recording begin."""
        ends = self.ends or [np.arange(length) for length in self.lengths]
        return [
            np.unique(np.maximum(each - self.segments + 1, 0)) if length >= self.segments else np.empty(0, np.int64)
            for length, each in zip(self.lengths, ends, strict=True)
        ]

    @cached_property
    def _random_ends(self) -> NDArray[np.int64]:
        """At which of all random chunks those of each recording end."""
        return np.cumsum([len(firsts) for firsts in self._random_firsts])

    def generator(self, purpose: str, *numbers: int) -> np.random.Generator:
        """Random numbers for one purpose, a pure function of the seed, the purpose and the numbers."""
        return np.random.default_rng([self.seed, *purpose.encode(), *numbers])


class Shuffled:
    """What is shown at each position of an endless row: each epoch shows all `count` items once, in its own order."""

    def __init__(self, count: int, seed: int) -> None:
        self._count, self._seed = count, seed
        # An order is as long as the data: it is drawn once for an epoch, not for each of its positions.
        self._epoch, self._order = -1, np.empty(0, np.int64)

    def __getitem__(self, position: int) -> int:
        epoch, place = divmod(position, self._count)
        if epoch != self._epoch:
            self._epoch = epoch
            self._order = np.random.default_rng([self._seed, *b"order", epoch]).permutation(self._count)
        return int(self._order[place])


def balance_lanes(lengths: Sequence[int], lanes: int) -> list[list[int]]:
    """Deal recordings to lanes by falling length, forth and back, so that lanes end at about the same time."""
    dealt: list[list[int]] = [[] for _ in range(lanes)]
    for place, recording in enumerate(np.argsort(lengths, kind="stable")[::-1]):
        turn, offset = divmod(place, lanes)
        dealt[offset if turn % 2 == 0 else lanes - 1 - offset].append(int(recording))
    return [lane for lane in dealt if lane]


def lengths_of(recordings: Sequence[Sized]) -> tuple[int, ...]:
    """Number of windows of each recording."""
    return tuple(len(recording) for recording in recordings)

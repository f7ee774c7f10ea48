"""Playlists: which chunk of which recording each lane of a batch plays at a step."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]
# recordings in order, cumulative chunks, first window by recording
Playlist = tuple[Indices, Indices, Indices]
# index and number of the shards of a batch: one per rank and gradient accumulation step
Shard = tuple[int, int]
WHOLE: Shard = (0, 1)


class Slot(NamedTuple):
    """Chunk that a lane plays at a step."""

    recording: int  # index
    first: int  # index of the chunk's first window
    # of the pass over a recording within the lane; augmentation is sampled once per pass
    pass_index: int
    fresh: bool  # whether the state is reset


@dataclass(frozen=True)
class Lanes:
    """Playlists of a batch: slot i plays lane i, an endless seeded playlist of chunks of consecutive windows.

    A pass over a recording plays as many complete chunks as fit; recordings shorter than a chunk
    are never played. The offset of the first chunk changes with each epoch, so that every window is
    played within as many epochs as a chunk has windows.
    """

    lengths: tuple[int, ...]  # number of windows of each recording
    segments: int  # windows per chunk
    count: int  # number of lanes, the batch size
    seed: int
    # Share of the lanes, rounded to complete lanes, that play a random chunk with a reset state at
    # each step instead of streams (RVT's mixed sampling).
    random_share: float = 0.0
    # Windows of each recording, rising, at which random chunks end; None: any. A chunk that would
    # begin before the recording begins with it instead.
    ends: tuple[Indices, ...] | None = None
    # Cache of each lane's current playlist, so that the cost of a step does not grow with the
    # number of recordings.
    _known: dict[int, tuple[int, Playlist]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @property
    def playable(self) -> bool:
        """Whether any recording holds a complete chunk."""
        return bool(self._chunks.any()) and (not self.random_lanes or len(self._random_chunks) > 0)

    @property
    def has_no_continuation(self) -> bool:
        """Whether lanes play streams, but no recording has a second chunk to carry a state to."""
        return self.random_lanes < self.count and max(self.lengths, default=0) < 2 * self.segments

    @property
    def random_lanes(self) -> int:
        """Number of lanes that play random chunks."""
        return round(self.random_share * self.count)

    def is_random(self, lane: int) -> bool:
        """Whether a lane plays random chunks; they are spread evenly, so shards of two or more have both kinds."""
        return (lane + 1) * self.random_lanes // self.count > lane * self.random_lanes // self.count

    def slot(self, lane: int, step: int) -> Slot:
        """Return the chunk that `lane` plays at `step`."""
        if self.is_random(lane):
            position = int(self.generator("random", lane, step).integers(len(self._random_chunks)))
            recording, first = self._random_chunks[position].tolist()
            return Slot(recording, first, step, True)
        total = int(self._chunks.sum())
        # Lanes start spread over the playlist, so that they differ even with a single recording.
        start = int((lane + self.generator("start", lane).random()) * total / self.count)
        epoch, position = divmod(start + step, total)
        order, ends, phases = self._playlist(lane, epoch)
        index = int(np.searchsorted(ends, position, side="right"))
        recording = int(order[index])
        chunk = position - int(ends[index] - self._chunks[recording])
        first = int(phases[recording]) + chunk * self.segments
        return Slot(recording, first, epoch * len(order) + index, chunk == 0 or step == 0)

    @cached_property
    def _chunks(self) -> Indices:
        return np.array(self.lengths, np.int64) // self.segments

    def _playlist(self, lane: int, epoch: int) -> Playlist:
        if lane not in self._known or self._known[lane][0] != epoch:
            order = self.generator("order", lane, epoch).permutation(len(self._chunks))
            phases = np.array(self.lengths, np.int64) % self.segments + 1
            first = (self.generator("phase", lane).integers(phases) + epoch) % phases
            self._known[lane] = epoch, (order, self._chunks[order].cumsum(), first)
        return self._known[lane][1]

    @cached_property
    def _random_chunks(self) -> Indices:
        """Recording and first window (N, 2) of each possible random chunk."""
        found = [np.empty((0, 2), np.int64)]
        for number, length in enumerate(self.lengths):
            ends = np.arange(length) if self.ends is None else self.ends[number]
            firsts = (
                np.unique(np.maximum(ends - self.segments + 1, 0))
                if length >= self.segments
                else ends[:0]
            )
            found.append(np.column_stack([np.full_like(firsts, number), firsts]))
        return np.concatenate(found)

    def generator(self, purpose: str, *numbers: int) -> np.random.Generator:
        """Random generator for one purpose, a pure function of the seed, the purpose and the numbers."""
        return np.random.default_rng([self.seed, *purpose.encode(), *numbers])


def shuffled(positions: Sequence[int], count: int, seed: int) -> list[int]:
    """Items at positions of an endless sequence; each epoch shows all `count` items once, in a different order."""
    return [int(_order(count, seed, position // count)[position % count]) for position in positions]


@lru_cache(maxsize=2)
def _order(count: int, seed: int, epoch: int) -> Indices:
    """Order of an epoch; it is as long as the data, so it is drawn once and not for each position."""
    return np.random.default_rng([seed, *b"order", epoch]).permutation(count)


def balance_lanes(lengths: Sequence[int], lanes: int) -> list[list[int]]:
    """Assign recordings to lanes by decreasing length, back and forth, so that lanes end at about the same time."""
    assigned: list[list[int]] = [[] for _ in range(lanes)]
    for rank, recording in enumerate(np.argsort(lengths, kind="stable")[::-1]):
        turn, offset = divmod(rank, lanes)
        assigned[offset if turn % 2 == 0 else lanes - 1 - offset].append(int(recording))
    return [lane for lane in assigned if lane]


def lanes_of(count: int, shard: Shard) -> range:
    """Lanes of a batch with `count` lanes that a shard plays; the shards together play each lane once."""
    number, shards = shard
    return range(number * count // shards, (number + 1) * count // shards)

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
FULL_BATCH: Shard = (0, 1)


class Slot(NamedTuple):
    """Chunk that a lane plays at a step."""

    recording: int  # index
    first: int  # index of the chunk's first window
    # of the pass over a recording within the lane; augmentation is sampled once per pass
    pass_index: int
    is_first: bool  # whether the state is reset


@dataclass(frozen=True)
class Lanes:
    """Playlists of a batch: lane i is an endless seeded playlist of chunks of consecutive windows.

    A pass over a recording plays as many complete chunks as fit; recordings shorter than a chunk
    are never played. The offset of the first chunk changes with each epoch, so that every window is
    played within as many epochs as a chunk has windows.

    Args:
        lengths: number of windows of each recording.
        segments: windows per chunk.
        count: number of lanes, the batch size.
        seed: seed of the playlists.
        random_fraction: fraction of the lanes, rounded to complete lanes, that play a random chunk
            with a reset state at each step instead of streams (RVT's mixed sampling).
        ends: windows of each recording, rising, at which random chunks end; None: any. A chunk that
            would begin before the recording begins with it instead.
    """

    lengths: tuple[int, ...]
    segments: int
    count: int
    seed: int
    random_fraction: float = 0.0
    ends: tuple[Indices, ...] | None = None
    # Cache of each lane's current playlist, so that the cost of a step does not grow with the
    # number of recordings.
    _playlists: dict[int, tuple[int, Playlist]] = field(
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
        return round(self.random_fraction * self.count)

    def is_random(self, lane: int) -> bool:
        """Whether a lane plays random chunks; such lanes are spread evenly over the shards."""
        return (lane + 1) * self.random_lanes // self.count > lane * self.random_lanes // self.count

    def slot(self, lane: int, step: int) -> Slot:
        """Return the chunk that a lane plays at a step.

        Args:
            lane: index of the lane.
            step: index of the training step.
        """
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
        if lane not in self._playlists or self._playlists[lane][0] != epoch:
            order = self.generator("order", lane, epoch).permutation(len(self._chunks))
            phases = np.array(self.lengths, np.int64) % self.segments + 1
            first = (self.generator("phase", lane).integers(phases) + epoch) % phases
            self._playlists[lane] = epoch, (order, self._chunks[order].cumsum(), first)
        return self._playlists[lane][1]

    @cached_property
    def _random_chunks(self) -> Indices:
        """Recording and first window (N, 2) of each possible random chunk."""
        chunks = [np.empty((0, 2), np.int64)]
        for recording, length in enumerate(self.lengths):
            if length >= self.segments:
                ends = np.arange(length) if self.ends is None else self.ends[recording]
                firsts = np.unique(np.maximum(ends - self.segments + 1, 0))
                chunks.append(np.column_stack([np.full_like(firsts, recording), firsts]))
        return np.concatenate(chunks)

    def generator(self, purpose: str, *numbers: int) -> np.random.Generator:
        """Make a random generator, a pure function of the seed and the arguments.

        Args:
            purpose: name of the random choice.
            *numbers: indices, such as lane and step.
        """
        return np.random.default_rng([self.seed, *purpose.encode(), *numbers])


def shuffled(positions: Sequence[int], count: int, seed: int) -> list[int]:
    """Shuffle items in an endless sequence; each epoch shows every item once, in another order.

    Args:
        positions: positions in the sequence.
        count: number of items.
        seed: seed of the order.

    Returns:
        Index of the item at each position.
    """
    return [int(_order(count, seed, position // count)[position % count]) for position in positions]


@lru_cache(maxsize=2)
def _order(count: int, seed: int, epoch: int) -> Indices:
    """Order of an epoch, which is as long as the data and therefore cached."""
    return np.random.default_rng([seed, *b"order", epoch]).permutation(count)


def balance_lanes(lengths: Sequence[int], lanes: int) -> list[list[int]]:
    """Assign recordings to lanes that end at about the same time.

    Recordings are assigned by decreasing length, back and forth over the lanes.

    Args:
        lengths: number of windows of each recording.
        lanes: number of lanes.

    Returns:
        Indices of the recordings of each lane, without empty lanes.
    """
    assigned: list[list[int]] = [[] for _ in range(lanes)]
    for rank, recording in enumerate(np.argsort(lengths, kind="stable")[::-1]):
        turn, offset = divmod(rank, lanes)
        assigned[offset if turn % 2 == 0 else lanes - 1 - offset].append(int(recording))
    return [lane for lane in assigned if lane]


def lanes_of(count: int, shard: Shard) -> range:
    """Select the lanes of a shard; the shards together play each lane once.

    Args:
        count: number of lanes of the batch.
        shard: index and number of the shards.
    """
    index, shards = shard
    return range(index * count // shards, (index + 1) * count // shards)

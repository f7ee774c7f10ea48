"""Which chunk of which recording each batch slot plays at step k.

Batch slot i plays lane i: an endless seeded playlist of recordings cut into chunks of consecutive windows. Everything
is a pure function of the arguments: neither worker processes nor interruptions change it, and no step replays others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int64]


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
    ends: tuple[Numbers, ...] | None = None
    # Of what each lane played last: steps do not cost more with more recordings.
    _known: dict[int, tuple[int, Any]] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def playable(self) -> bool:
        """Whether any recording holds a whole chunk."""
        return bool(self._chunks.any()) and (not self.random_lanes or len(self._random_chunks) > 0)

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
            position = int(self.generator("random", lane, step).integers(len(self._random_chunks)))
            recording, first = self._random_chunks[position].tolist()
            return Slot(recording, first, step, True)
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
    def _chunks(self) -> Numbers:
        """Whole chunks of each recording."""
        return np.array(self.lengths, np.int64) // self.segments

    def _playlist(self, lane: int, epoch: int) -> tuple[Numbers, Numbers, Numbers]:
        """Order of the recordings in an epoch, chunk at which each ends, and first window by recording."""
        if self._known.get(lane, (None,))[0] != epoch:
            order = self.generator("order", lane, epoch).permutation(len(self._chunks))
            phases = np.array(self.lengths, np.int64) % self.segments + 1
            first = (self.generator("phase", lane).integers(phases) + epoch) % phases
            self._known[lane] = epoch, (order, self._chunks[order].cumsum(), first)
        playlist: tuple[Numbers, Numbers, Numbers] = self._known[lane][1]
        return playlist

    @cached_property
    def _random_chunks(self) -> Numbers:
        """(N, 2) recording and first window of each random chunk."""
        found = [np.empty((0, 2), np.int64)]
        for number, length in enumerate(self.lengths):
            ends = np.arange(length) if self.ends is None else self.ends[number]
            firsts = np.unique(np.maximum(ends - self.segments + 1, 0)) if length >= self.segments else ends[:0]
            found.append(np.column_stack([np.full_like(firsts, number), firsts]))
        return np.concatenate(found)

    def generator(self, purpose: str, *numbers: int) -> np.random.Generator:
        """Random numbers for one purpose, a pure function of the seed, the purpose and the numbers."""
        return np.random.default_rng([self.seed, *purpose.encode(), *numbers])


def shuffled(positions: Sequence[int], count: int, seed: int) -> list[int]:
    """What is shown at positions of an endless row: each epoch shows all `count` items once, in an order of its own."""
    return [int(_order(count, seed, position // count)[position % count]) for position in positions]


@lru_cache(maxsize=2)
def _order(count: int, seed: int, epoch: int) -> Numbers:
    """Order of an epoch; as long as the data, so it is drawn once and not for each position."""
    return np.random.default_rng([seed, *b"order", epoch]).permutation(count)


def balance_lanes(lengths: Sequence[int], lanes: int) -> list[list[int]]:
    """Deal recordings to lanes by falling length, forth and back, so that lanes end at about the same time."""
    dealt: list[list[int]] = [[] for _ in range(lanes)]
    for place, recording in enumerate(np.argsort(lengths, kind="stable")[::-1]):
        turn, offset = divmod(place, lanes)
        dealt[offset if turn % 2 == 0 else lanes - 1 - offset].append(int(recording))
    return [lane for lane in dealt if lane]

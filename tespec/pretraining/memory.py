"""What memory is worth: the loss on recordings held out, against the time since the network's state was zeroed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tespec.comparison.pretrained import KNOWING_NOTHING
from tespec.core.progress import progress
from tespec.datasets.labels import STANDING
from tespec.datasets.recording import Recording
from tespec.pretraining.held_out import Chunk, HeldOut

SECONDS = 3.0  # that a state is carried on for after it was zeroed
FRAMES = 16  # that are computed at once
ALL, MOVING, STILL = "all", "moving", "standing"

Speeds = Callable[[Recording], "NDArray[np.float32] | None"]


@runtime_checkable
class Remembering(Protocol):
    """A network that says what it loses in each segment, and whose memory alone can be zeroed.

    Attributes:
        looks_ahead: further segments of a chunk that only the loss sees.
    """

    looks_ahead: int

    def segment_losses(self, batch: dict[str, Tensor], state: Any) -> tuple[Tensor, Tensor, Any]:
        """Loss (B, T) of each lane and segment, that of one who knows nothing, alike, and the state after them.

        Args:
            batch: as of `loss`, with `looks_ahead` segments of histograms more.
            state: what the call before returned, None at the start.
        """
        ...

    def forget(self, state: Any, lanes: Tensor) -> Any:
        """The state with the memory of some lanes, (B,) bool, zeroed; what belongs to a target goes on."""
        ...


class Played(NamedTuple):
    """A chunk as several lanes saw it, whose states were zeroed at different chunks before it.

    Attributes:
        chunk: what was played.
        number: of the chunk in its recording.
        ages: (A,) chunks since each lane's state was zeroed, or since the start of the recording.
        losses: (A, T) of each lane and segment.
        knowing_nothing: (A, T) those of one who knows nothing, such as predicting zero.
    """

    chunk: Chunk
    number: int
    ages: NDArray[np.int64]
    losses: Tensor
    knowing_nothing: Tensor


@torch.no_grad()
def play_zeroed(model: Remembering, held_out: HeldOut, lanes: int, frames: int = FRAMES) -> Iterator[Played]:
    """Play every chunk on `lanes` lanes, each of which has its state zeroed at every `lanes`-th chunk.

    At chunk c it is lane c modulo `lanes` that is zeroed, so that from chunk `lanes` - 1 of a recording on every age
    from 0 to `lanes` - 1 chunks is seen once at each chunk. Of what is computed `frames` windows, or the chunk of one
    lane, are in memory at once; results do not depend on it.
    """
    at_once = max(1, frames // held_out.settings.segments)
    parts = [range(first, min(first + at_once, lanes)) for first in range(0, lanes, at_once)]
    states: list[Any] = [None] * len(parts)
    number, ages = 0, np.zeros(lanes, np.int64)
    for chunk in held_out:
        if chunk.batch["fresh"].item():
            states, number, ages = [None] * len(parts), 0, np.zeros(lanes, np.int64)
        ages[number % lanes] = 0
        found = []
        for index, part in enumerate(parts):
            batch = {name: each.expand(len(part), *each.shape[1:]) for name, each in chunk.batch.items()}
            if states[index] is not None:
                zeroed = torch.tensor([lane == number % lanes for lane in part], device=chunk.batch["fresh"].device)
                states[index] = model.forget(states[index], zeroed)
            losses, knowing_nothing, states[index] = model.segment_losses(batch, states[index])
            found.append((losses, knowing_nothing))
        yield Played(chunk, number, ages.copy(), *(torch.cat(each).double().cpu() for each in zip(*found, strict=True)))
        number, ages = number + 1, ages + 1


def losses_since_zeroed(model: Any, held_out: HeldOut, speeds: Speeds) -> list[dict[str, float]]:
    """Mean loss against the time since the state was zeroed, for moving and for standing moments.

    All times are measured on the same moments: those of a recording that lie `SECONDS` or more behind its start. The
    target's own state goes on, so that targets are the same.

    Args:
        model: a `Remembering` network.
        held_out: recordings; those shorter than `SECONDS` take no part.
        speeds: speed of the camera in m/s at the end of each window of a recording, None where it is not known.

    Returns:
        points with "seconds", from the zeroing to the end of the segment, and for each group of moments ("moving" and
        "standing", or "all" where no speed is known) the mean loss, `<group>_knowing_nothing`, that of one who knows
        nothing, and `<group>_count`, the number of segments; none where no recording is long enough.
    """
    model.eval()
    settings = held_out.settings
    lanes = -(-round(1000 * SECONDS) // round(settings.window_ms * settings.segments))
    sums: dict[str, NDArray[np.float64]] = {}
    moving: dict[str, NDArray[np.float32] | None] = {}
    with progress("memory on held-out recordings", "chunks") as advance:
        for done, played in enumerate(play_zeroed(model, held_out, lanes), start=1):
            advance(done, len(held_out), "")
            if played.number < lanes - 1:
                continue
            recording, first = played.chunk.recording, played.chunk.first
            if recording.name not in moving:
                moving[recording.name] = speeds(recording)
            known = moving[recording.name]
            order = np.argsort(played.ages)
            seen = np.stack([played.losses.numpy(), played.knowing_nothing.numpy(), np.ones(played.losses.shape)])
            seen = seen[:, order]
            for segment in range(settings.segments):
                group = ALL if known is None else STILL if known[first + segment] < STANDING else MOVING
                table = sums.setdefault(group, np.zeros((3, lanes, settings.segments)))
                table[:, :, segment] += seen[:, :, segment]
    return _points(sums, settings.window_ms / 1000)


def _points(sums: dict[str, NDArray[np.float64]], seconds: float) -> list[dict[str, float]]:
    """One point for each segment since the zeroing; a group that was never seen there is not in it."""
    flat = {group: table.reshape(3, -1) for group, table in sorted(sums.items())}
    count = max((table.shape[1] for table in flat.values()), default=0)
    points = []
    for index in range(min(count, round(SECONDS / seconds))):
        point = {"seconds": round(seconds * (index + 1), 6)}
        for group, (loss, knowing_nothing, seen) in ((name, table[:, index]) for name, table in flat.items()):
            if seen:
                point |= {
                    group: loss / seen,
                    f"{group}{KNOWING_NOTHING}": knowing_nothing / seen,
                    f"{group}_count": seen,
                }
        points.append(point)
    return points

"""Run a network over recordings, for evaluation, probes, pictures and `tespec.stream`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tespec.core.progress import progress
from tespec.core.settings import HistogramSpec
from tespec.datasets.batches import PlayBatches
from tespec.datasets.lanes import FULL_BATCH, Shard
from tespec.datasets.recording import Recording
from tespec.models.backbone import reset
from tespec.training.loading import load_batches


class Predictor(NamedTuple):
    """A network with everything that determines its predictions on a recording."""

    # From histograms (B, T, C, H, W), a state and the index (L, 2) int64, lane and segment, of
    # windows: outputs of these windows and the next state. The state is None at the start.
    predict: Callable[[Tensor, Any, Tensor], tuple[Any, Any]]
    read: Callable[[Any], Sequence[Any]]  # splits the outputs by window
    spec: HistogramSpec
    device: torch.device  # of the network
    half: torch.dtype | None = None  # of autocast; None: float32


class WindowOutput(NamedTuple):
    """Output of a network at the end of one window."""

    recording: Any
    # of the window among the chosen ones of its recording: by default, the index of the label
    position: int
    output: Any  # as `Predictor.read` returns it
    label: Any  # the label at the end of the window; None if windows were chosen


@torch.no_grad()
def play(
    player: Predictor,
    recordings: Sequence[Recording],
    *,
    windows: Sequence[NDArray[np.int64]] | None = None,
    lanes: int = 1,
    shard: Shard = FULL_BATCH,
    workers: int = 0,
    label: str = "",
) -> Iterator[WindowOutput]:
    """Yield the network's output for each chosen window once, in the order of `PlayBatches`.

    With one lane, that is the order of the recordings and of the windows in them. The state follows
    the reset rule of the network's `HistogramSpec`, so an output is the same whichever other
    windows are chosen, up to rounding.

    Args:
        player: the network.
        recordings: recordings whose histograms have the same size.
        windows: rising indices (K,) of the chosen windows of each recording; default: those that
            end at a label.
        lanes: number of recordings, or of segments if the state is reset for each window, that are
            computed together.
        shard: index and number of the parts into which the windows are divided, one per rank.
        workers: number of processes that load the data; 0: this one.
        label: title of the progress bar; "": none is shown.
    """
    device = player.device
    batches = PlayBatches(player.spec, recordings, lanes, shard, windows)
    loaded = load_batches(
        batches, 0, len(batches), workers, pin=device.type == "cuda" and workers != 0
    )
    state = None
    with progress(label, "steps") as advance:
        for step, batch in enumerate(loaded, start=1):
            histograms = batch.histograms.to(device, non_blocking=True)  # (B, T, C, H, W)
            index = batch.label_position.to(device, non_blocking=True)  # (L, 2)
            state = reset(state, batch.is_first.to(device, non_blocking=True))
            with torch.autocast(device.type, player.half, enabled=player.half is not None):
                outputs, state = player.predict(histograms, state, index)
            read = player.read(outputs) if batch.frames else []
            frames = zip(batch.frames, read, batch.labels, strict=True)
            for (number, position), output, truth in frames:
                yield WindowOutput(recordings[number], position, output, truth)
            advance(step, len(batches), "")

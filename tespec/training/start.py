"""The settings of a cell that follow from what its backbone starts from."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tespec.config import pretraining_settings
from tespec.method import Method
from tespec.settings import Finetuning
from tespec.weights.origin import Origin, origin_of


def with_start(
    settings: Finetuning, method: Method, checkpoint: Path | None, *, sample: bool, changes: Sequence[str] = ()
) -> Finetuning:
    """A cell's settings once it is known which weights it starts from: they decide the peak learning rate.

    The weights decide, not the method: what counts is the data that they were pre-trained on.

    Args:
        settings: of the task.
        method: starts the backbone.
        checkpoint: its weights; None where it has none, or where they are made on the sample world.
        sample: whether the cell's data is the sample world.
        changes: `KEY=VALUE` settings of a pre-training on the sample world.

    Raises:
        UserError: `changes` that the pre-training cannot have.
    """
    if not settings.peak_lr_after:
        return settings
    origin = Origin()
    if checkpoint is not None:
        origin = origin_of(checkpoint)
    elif method.recipe is not None and sample:
        origin = Origin(pretraining_settings(method.recipe, settings.profile, changes, method.network).dataset, True)
    return settings.after_pretraining_on(origin.data) if origin.sample == sample else settings

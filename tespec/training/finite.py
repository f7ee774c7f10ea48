"""Losses and gradients that are not finite: found on the device, before the optimizer touches a weight."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from tespec.errors import UserError

NONE_YET = -1
STOP, SKIP = "stop", "skip"


class NotFiniteError(UserError):
    """Training cannot go on: the loss or a gradient of `step` is infinite or no number."""

    def __init__(self, step: int, recordings: Sequence[str], kept: str) -> None:
        on = f" on {', '.join(recordings)}" if recordings else ""
        super().__init__(
            f"step {step}",
            f"the loss or a gradient is not finite{on}; no weight was changed by it, {kept}",
            "lower optimisation.peak_lr, or pass such steps over with --set optimisation.non_finite=skip",
        )
        self.step, self.recordings = step, tuple(recordings)


class Watch:
    """Remembers the first step whose numbers went wrong, without asking the device.

    From that step on `halted` is 1, and optimizers that know `found_inf` leave weights and moments alone.

    Attributes:
        halted: float32 scalar on the device.
        first: int64 scalar on the device, the first such step, -1 while there is none.
    """

    def __init__(self, device: torch.device) -> None:
        self.halted = torch.zeros((), device=device)
        self.first = torch.full((), NONE_YET, dtype=torch.int64, device=device)

    def see(self, loss: Tensor, parameters: Iterable[nn.Parameter], step: int) -> Tensor:
        """Look at a loss and its gradients; gives a float32 scalar, 1 where one of them is not finite."""
        found = not_finite(loss, parameters)
        wrong = (found > 0) & (self.first == NONE_YET)
        self.first = torch.where(wrong, torch.full_like(self.first, step), self.first)
        self.halted = torch.maximum(self.halted, found)
        return found

    def step(self) -> int | None:
        """The first step that went wrong, None where there is none; waits for the device."""
        first = int(self.first.item())
        return None if first == NONE_YET else first


def not_finite(loss: Tensor, parameters: Iterable[nn.Parameter]) -> Tensor:
    """1.0 where the loss or a gradient is infinite or no number, else 0.0, as a float32 scalar on their device."""
    gradients = [each.grad for each in parameters if each.grad is not None]
    if loss.device.type == "cpu" and gradients and _sums_are_finite(loss, gradients):
        return torch.zeros(())
    sums = [loss.detach().float()]
    if gradients:
        # The largest magnitude of each, since a sum of squares overflows long before a number does.
        sums += [each.float() for each in torch._foreach_norm(gradients, float("inf"))]
    return (~torch.isfinite(torch.stack(sums)).all()).float()


def _sums_are_finite(loss: Tensor, gradients: Sequence[Tensor]) -> bool:
    """Whether the sums of all are finite, and so all of their numbers; on a CPU quicker than their magnitudes."""
    return bool(torch.isfinite(torch.stack([loss.detach().float(), *(each.sum().float() for each in gradients)])).all())

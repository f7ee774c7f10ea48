"""The training loop: one optimizer step per batch, recurrent state carried from step to step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, cast, runtime_checkable

import tespec.compat  # noqa: F401  # before mmengine

import torch
from mmengine.hooks import Hook
from mmengine.optim import AmpOptimWrapper, OptimWrapper
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from tespec.errors import UserError
from tespec.settings import Optimisation
from tespec.training.device import with_precision
from tespec.training.schedule import learning_rate
from tespec.training.seeding import derive, seed_everything

OPTIMIZERS = {"Adam": torch.optim.Adam, "AdamW": torch.optim.AdamW}
AUTOCAST = {"bf16": ("bfloat16", 1.0), "fp16": ("float16", "dynamic")}  # type, and scale of the loss


class Trainable(Protocol):
    """A network that turns a batch and a state into losses and the next state."""

    def loss(self, batch: dict[str, Tensor], state: Any) -> tuple[dict[str, Tensor], Any]:
        """Losses by name, "loss" being the one that is minimised, and the detached state after the batch."""
        ...


@runtime_checkable
class Following(Protocol):
    """A network with parts that are not trained and follow those that are."""

    def after_step(self, share: float) -> None:
        """Let them follow, after each optimizer step; `share` of the training is done."""
        ...


class Loop:
    """Trains `model` on the batches of `steps`, whose item k is the batch of step k.

    Hooks are mmengine's: `before_run(loop)`, `after_train_iter(loop, step, batch, losses)` and `after_run(loop)`, the
    last one however the training ends. Dropout and the like draw from generators seeded by (seed, step), so a run
    resumed at step k draws what an uninterrupted one draws.

    Attributes:
        step: number of optimizer steps done.
        state: recurrent state after them, one entry per lane.
    """

    def __init__(
        self,
        model: nn.Module,
        steps: Dataset[dict[str, Tensor]],
        settings: Optimisation,
        *,
        seed: int,
        device: torch.device,
        hooks: Sequence[Hook] = (),
        workers: int = 0,
    ) -> None:
        self.model = model.to(device)
        self.settings = with_precision(settings, device)
        self.step = 0
        self.state: Any = None
        self._steps = steps
        self._seed = seed
        self._device = device
        self._hooks = hooks
        self._workers = workers
        self._wrapper = _optim_wrapper(model, self.settings)

    def run(self) -> None:
        """Train until the last step of the settings.

        Raises:
            UserError: a loss that is not finite.
        """
        self._call("before_run")
        try:
            self._run()
        finally:
            self._call("after_run")

    def _run(self) -> None:
        self.model.train()
        loader = DataLoader(
            self._steps,
            batch_size=None,
            sampler=range(self.step, self.settings.steps),
            num_workers=self._workers,
            pin_memory=self._device.type == "cuda",
        )
        for batch in loader:
            losses = self.train_step({key: value.to(self._device, non_blocking=True) for key, value in batch.items()})
            self.step += 1
            self._call("after_train_iter", self.step - 1, batch, losses)

    def train_step(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """One optimizer step on a batch that is on the device; gives the losses."""
        seed_everything(derive(self._seed, "step", self.step))
        for group in self._wrapper.param_groups:
            group["lr"] = learning_rate(self.settings, self.step)
        with self._wrapper.optim_context(self.model):
            losses, self.state = cast("Trainable", self.model).loss(batch, self.state)
        if not torch.isfinite(losses["loss"]):
            raise UserError(f"step {self.step}", "the loss is not finite", "lower optimisation.peak_lr and resume")
        self._wrapper.update_params(losses["loss"])
        if isinstance(self.model, Following):
            self.model.after_step((self.step + 1) / self.settings.steps)
        return {name: value.detach() for name, value in losses.items()}

    def _call(self, point: str, *arguments: Any) -> None:
        for hook in self._hooks:
            getattr(hook, point)(self, *arguments)

    def state_dict(self) -> dict[str, Any]:
        """Everything that determines the steps to come."""
        return {
            "step": self.step,
            "model": self.model.state_dict(),
            "optimizer": self._wrapper.state_dict(),
            "state": _to(self.state, torch.device("cpu")),
        }

    def load_state_dict(self, content: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken."""
        self.step = content["step"]
        self.model.load_state_dict(content["model"])
        self._wrapper.load_state_dict(content["optimizer"])
        self.state = _to(content["state"], self._device)


def _optim_wrapper(model: nn.Module, settings: Optimisation) -> OptimWrapper:
    if settings.optimizer not in OPTIMIZERS:
        raise UserError(
            "optimisation.optimizer",
            f"unknown value {settings.optimizer!r}",
            f"choose from {', '.join(OPTIMIZERS)}",
        )
    optimizer = OPTIMIZERS[settings.optimizer](
        model.parameters(), lr=settings.peak_lr, weight_decay=settings.weight_decay
    )
    clip = {"type": "value", "clip_value": settings.clip_value}
    if settings.precision == "fp32":
        return OptimWrapper(optimizer, clip_grad=clip)
    name, scale = AUTOCAST[settings.precision]
    return AmpOptimWrapper(loss_scale=scale, dtype=name, optimizer=optimizer, clip_grad=clip)


def _to(state: Any, device: torch.device) -> Any:
    """Nested tuples and dicts of tensors on another device."""
    if isinstance(state, Tensor):
        return state.to(device)
    if isinstance(state, dict):
        return {key: _to(value, device) for key, value in state.items()}
    if isinstance(state, (tuple, list)):
        return type(state)(_to(value, device) for value in state)
    return state

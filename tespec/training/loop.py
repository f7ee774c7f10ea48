"""The training loop: one optimizer step per batch, recurrent state carried from step to step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import islice
from typing import Any, Protocol, runtime_checkable

import tespec.core.compat  # noqa: F401  # before mmengine

import torch
from mmengine.hooks import Hook
from mmengine.optim import AmpOptimWrapper
from torch import Tensor, distributed, nn
from torch.utils.data import Dataset

from tespec.core.distributed import (
    all_gather,
    batch_part,
    broadcast_tensors,
    gather_rows,
    nested,
    rank,
    scatter_rows,
    world_size,
)
from tespec.core.errors import UserError
from tespec.core.settings import Optimisation
from tespec.training.device import derive, seed_everything, with_precision
from tespec.training.loading import Batch, Batches, MicroBatches, on_device
from tespec.training.optimizer import build_optimizer, clip, learning_rate, weight_decay
from tespec.training.phases import begin, phase_at, phases_of
from tespec.training.replicas import replicated, require_gradients

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

    From that step on `halted` is 1, and optimizers that know `found_inf` leave weights and moments as they are.

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


LOOK_EVERY = 16  # backward passes; each look waits for the device


@runtime_checkable
class Following(Protocol):
    """A network with parts that are not trained and follow those that are."""

    def after_step(self, share: float) -> None:
        """Let them follow, after each optimizer step; `share` of the training is done."""
        ...


class Loop:
    """Trains `model` on the batches of `steps`, whose item k is the batch of step k.

    Each rank trains on its micro-batches of a batch (see `MicroBatches`); gradients are averaged over all of them
    during the last backward pass of a step (see `replicated`).

    Hooks are mmengine's: `before_run(loop)`, `after_train_iter(loop, step, batch, losses)` and `after_run(loop)`, the
    last one however the training ends. Dropout and the like draw from generators seeded by (seed, step), so a run
    resumed at step k draws what an uninterrupted one draws.

    A step whose loss or gradients are not finite changes no weight: the optimizer is told on the device. Whether there
    was one is asked where `looks` says so, and before a checkpoint.

    A network may be trained in phases (`tespec.training.phases`): the optimizer passes over what a phase does not
    train, neither its weights nor its moments change.

    Attributes:
        device: where it trains.
        step: number of optimizer steps done.
        states: recurrent state after them, of each micro-batch.
        skipped: how many of them were passed over, by the setting `non_finite`.
    """

    def __init__(
        self,
        model: nn.Module,
        steps: Dataset[Batch] | MicroBatches,
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
        self.skipped = 0
        self._steps = steps if isinstance(steps, MicroBatches) else MicroBatches([steps])
        self.states: list[Any] = [None] * self._steps.accumulate
        self._seed = seed
        self.device = device
        self._hooks = hooks
        self._workers = workers
        self._wrapper = build_optimizer(model, self.settings, self._steps.accumulate)
        self._trained = [each for each in model.parameters() if each.requires_grad]
        self._phases = phases_of(model, self.settings)
        self._begin(0)
        self._watch = Watch(device)

    @property
    def in_last_phase(self) -> bool:
        """Whether what is trained now is trained to the end."""
        return self._phase == len(self._phases) - 1

    def _begin(self, phase: int) -> None:
        begin(self.model, phase)
        self._phase = phase
        # Ranks exchange the gradients of what is trained when replicas are made.
        self._replica = replicated(self.model)

    def run(self) -> None:
        """Train until the last step of the settings.

        Raises:
            NotFiniteError: a loss or a gradient is not finite, and the settings say stop.
            UserError: data cannot be read any more, or a process that prepares batches died.
        """
        self._call("before_run")
        try:
            self._run()
        finally:
            self._call("after_run")

    def _run(self) -> None:
        self.model.train()
        pin = self.device.type == "cuda"
        first, last = (step * self._steps.accumulate for step in (self.step, self.settings.steps))
        batches = Batches(self._steps, first, last, self._workers, pin=pin)
        try:
            self._train(batches)
        except (RuntimeError, OSError, EOFError) as error:
            batches.require_workers(error, self.step)
            raise

    def _train(self, batches: Batches) -> None:
        waiting = on_device(batches, self.device, self._steps.arrived)
        while batches_of_step := list(islice(waiting, self._steps.accumulate)):
            losses = self.train_step(*batches_of_step)
            self.step += 1
            if self.looks:
                self.require_finite()
            self._call("after_train_iter", self.step - 1, batches_of_step[0], losses)

    @property
    def looks(self) -> bool:
        """Whether whatever waits for the device, or for the other ranks, is done after this step.

        On a CPU that costs nothing and is every step; elsewhere it is the last one, and one for each `LOOK_EVERY`
        backward passes.
        """
        every = max(1, LOOK_EVERY // self._steps.accumulate)
        return self.device.type == "cpu" or self.step % every == 0 or self.step == self.settings.steps

    def train_step(self, *batches: Batch) -> dict[str, Tensor]:
        """One optimizer step on this rank's micro-batches, which are on the device; gives the losses."""
        number, within = phase_at(self._phases, self.step)
        if number != self._phase:
            self._begin(number)
        phase = self._phases[number]
        rate, decay = learning_rate(phase, within), weight_decay(phase, within)
        for group in self._wrapper.optimizer.param_groups:
            group["lr"] = rate * group["lr_share"]
            group["weight_decay"] = decay if group["decays"] else 0.0
        skipping = self.settings.non_finite == SKIP
        kept = [each.clone() for each in self.model.buffers()] if skipping else []
        found, states = [], []
        for number, batch in enumerate(batches):
            losses, state = self._backward(batch, number)
            found.append(losses)
            states.append(state)
        require_gradients(self.model)
        losses = mean_losses(found)
        scaler = self._wrapper.loss_scaler if isinstance(self._wrapper, AmpOptimWrapper) else None
        # Scaled gradients may overflow: the scaler then passes the step over and scales less.
        wrong = self._watch.see(losses["loss"], () if scaler else self._trained, self.step)
        if skipping and wrong.item():
            self._pass_over(kept)
            return losses
        if scaler:
            scaler.unscale_(self._wrapper.optimizer)
        elif self.device.type != "meta":  # where no optimizer is fused
            self._wrapper.optimizer.found_inf = self._watch.halted
        clip(self._trained, phase.clip)
        self._wrapper.step()
        self._wrapper.zero_grad()
        self.states = states
        if isinstance(self.model, Following):
            self.model.after_step((self.step + 1) / self.settings.steps)
        return losses

    def _backward(self, batch: Batch, number: int) -> tuple[dict[str, Tensor], Any]:
        """Losses of a micro-batch, whose gradients are added, and the state after it."""
        part = (rank() * self._steps.accumulate + number, world_size() * self._steps.accumulate)
        # The first part draws what a single process draws; others draw of their own, unless the model shares draws out.
        own = () if part[0] == 0 or getattr(self.model, "draws_alike", False) else ("part", part[0])
        seed_everything(derive(self._seed, "step", self.step, *own))
        with batch_part(part):
            with self._wrapper.optim_context(self._replica), self._autocast():
                losses, state = self._replica(batch, self.states[number])
            # What is computed again for the backward pass draws its part of the batch again.
            self._wrapper.backward(self._wrapper.scale_loss(losses["loss"]))
        return losses, state

    def _pass_over(self, buffers: Sequence[Tensor]) -> None:
        """Leave everything as it was before the step."""
        with torch.no_grad():
            for each, before in zip(self.model.buffers(), buffers, strict=True):
                each.copy_(before)
        self._wrapper.zero_grad()
        self._watch = Watch(self.device)
        self.skipped += 1

    def require_finite(self) -> None:
        """Make sure that no step so far went wrong.

        Raises:
            NotFiniteError: one did.
        """
        wrong = self._watch.step()
        if wrong is not None:
            played = sorted({name for names in all_gather(self._steps.names(wrong)) for name in names})
            raise NotFiniteError(wrong, played, "see the run's folder for checkpoints")

    def _autocast(self) -> AbstractContextManager[Any]:
        if self.settings.precision != "bf16":
            return nullcontext()
        return torch.autocast(self.device.type, dtype=torch.bfloat16)

    def _call(self, point: str, *arguments: Any) -> None:
        for hook in self._hooks:
            getattr(hook, point)(self, *arguments)

    def state_dict(self) -> dict[str, Any]:
        """Everything that determines the steps to come; each rank calls it, and on rank 0 it is that of all of them."""
        own = self.states[0] if len(self.states) == 1 else _joined(self.states)
        return {
            "step": self.step,
            "skipped": self.skipped,
            "model": self.model.state_dict(),
            "optimizer": self._wrapper.state_dict(),
            "state": gather_rows(own),
        }

    def load_state_dict(self, content: Mapping[str, Any]) -> None:
        """Go on where `state_dict` was taken, by however many ranks and gradient accumulation steps.

        Each rank calls it; the content is that of rank 0, from which the others get theirs tensor by tensor.
        """
        whole = dict(content)
        own, accumulate = scatter_rows(whole.pop("state", None), self.device), self._steps.accumulate
        whole = broadcast_tensors(whole, self.device)
        self.step, self.skipped = whole["step"], whole["skipped"]
        self.model.load_state_dict(whole["model"])
        self._wrapper.load_state_dict(whole["optimizer"])
        # Of a training that was done already no further step would say which phase it ended in.
        if (number := phase_at(self._phases, self.step)[0]) != self._phase:
            self._begin(number)
        self.states = [own] if accumulate == 1 else [_part(own, part, accumulate) for part in range(accumulate)]


@torch.no_grad()
def mean_losses(found: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Mean of each loss over the micro-batches of all ranks."""
    if len(found) == 1 and world_size() == 1:
        return {name: value.detach() for name, value in found[0].items()}
    names = list(found[0])
    table = torch.stack([torch.stack([losses[name].detach().float() for name in names]) for losses in found]).mean(0)
    if world_size() > 1:
        distributed.all_reduce(table)
        table /= world_size()
    return dict(zip(names, table.unbind(), strict=True))


def _part(state: Any, part: int, parts: int) -> Any:
    """One of the equal parts of a state's lanes."""
    return nested(state, lambda tensor: tensor.chunk(parts)[part].clone())


def _joined(states: Sequence[Any]) -> Any:
    """States of one structure, their tensors one behind the other along the lanes."""
    first = states[0]
    if isinstance(first, Tensor):
        return torch.cat(list(states))
    if isinstance(first, dict):
        return {key: _joined([state[key] for state in states]) for key in first}
    if isinstance(first, (tuple, list)):
        return type(first)(_joined(part) for part in zip(*states, strict=True))
    return first

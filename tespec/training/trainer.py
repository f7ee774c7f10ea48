"""Training loop; start reading at `Trainer.run` and `Trainer.train_step`."""

import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import chain, islice
from typing import Any

import tespec.core.compat  # noqa: F401  # before mmengine

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import get_total_norm
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only
from torch.utils.data import Dataset

from tespec.core.distributed import all_gather, all_reduce_sum, rank, rank_computes, world_size
from tespec.core.errors import UserError, require
from tespec.core.progress import progress
from tespec.core.settings import Optimisation
from tespec.models.layers import without_tf32
from tespec.training.ddp import convert_sync_batchnorm, may_lack_gradients, require_gradients
from tespec.training.device import derive_seed, seed_everything, with_precision
from tespec.training.loading import Batch, MicroBatches, load_batches
from tespec.training.optimizer import build_optimizer, clip, learning_rate, weight_decay

NONE_YET = -1
SYNC_EVERY = 16  # backward passes; each synchronisation waits for the device
HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}


def not_finite(loss: Tensor, parameters: Iterable[nn.Parameter]) -> Tensor:
    """Test the loss and the gradients for infinities and NaN.

    Args:
        loss: scalar.
        parameters: those whose gradients are tested.

    Returns:
        1.0 if any value is not finite, else 0.0: a float32 scalar on the loss's device.
    """
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    # Maximum norm: a sum of squares overflows long before its terms do.
    norm = get_total_norm(gradients, float("inf")).to(loss.device)
    return (~torch.isfinite(torch.stack([loss.detach().float(), norm.float()])).all()).float()


class Trainer:
    """Training loop of one rank.

    Each rank trains on its micro-batches of a batch (see `MicroBatches`). Their gradients are
    averaged, weighed by the number of elements of each loss (for instance pixels or boxes, see
    `tespec.core.distributed.global_mean`), and averaged over the ranks in the last backward pass of
    a step. All randomness comes from generators seeded by (seed, step), so a run resumed at step
    k draws the same numbers as an uninterrupted one. A step with a non-finite loss or gradient
    changes no weight.

    The model has `loss(batch, state)`, which returns the losses by name ("loss" is minimised) and
    the detached state. Two methods are optional; they get the fraction of the training that is
    done: `before_step(progress)` is called before gradients are clipped, for example to drop some,
    and `after_step(progress)` after each optimizer step, for example for an EMA. Then
    `after_train_iter(trainer, step, batch, losses)` of each hook is called.

    Args:
        model: network with a `loss` method.
        steps: data set whose item k is the batch of step k, or the micro-batches of this rank.
        settings: optimizer, schedule, clipping, precision and number of steps.
        seed: seed of the run.
        device: device of this rank.
        hooks: objects with `after_train_iter`, such as mmengine's hooks.
        workers: as in `load_batches`.
    """

    def __init__(
        self,
        model: nn.Module,
        steps: Dataset[Batch] | MicroBatches,
        settings: Optimisation,
        *,
        seed: int,
        device: torch.device,
        hooks: Sequence[Any] = (),
        workers: int | None = 0,
    ) -> None:
        self.model = model.to(device)
        self.settings = with_precision(settings, device)
        self.device = device
        self.step = 0  # number of optimizer steps done
        self._steps = steps if isinstance(steps, MicroBatches) else MicroBatches([steps])
        self.accumulate = self._steps.accumulate
        self.states: list[Any] = [None] * self.accumulate  # after these steps, by micro-batch
        self.optimizer: Any = build_optimizer(model, self.settings)
        self.scaler = torch.amp.GradScaler("cuda", enabled=self.settings.precision == "fp16")
        # The first non-finite step, on the device so that no step has to wait for it.
        self._first_diverged = torch.full((), NONE_YET, dtype=torch.int64, device=device)
        self._seed = seed
        self._hooks = hooks
        self._workers = workers
        self._trained = [weight for weight in model.parameters() if weight.requires_grad]
        self._replica: Any = wrap_ddp(model)

    def run(
        self, name: str = "training", frames: int = 1, step_seconds_at_peak: float = 0.0
    ) -> None:
        """Train until the last step of the settings.

        Args:
            name: of the training, on its progress lines.
            frames: per step over all ranks, for the rate on progress lines.
            step_seconds_at_peak: duration of a step at the device's peak throughput, for the
                fraction of peak on progress lines; 0 if unknown.
        """
        self.model.train()
        first_step = self.step
        first = first_step * self.accumulate
        end = self.settings.steps * self.accumulate
        pin = self.device.type == "cuda"
        batches = load_batches(self._steps, first, end, self._workers, pin=pin)
        note = ""
        start = time.monotonic()
        with progress(name, "steps", self.step) as advance:
            while loaded := list(islice(batches, self.accumulate)):
                # New mappings, since a data set may keep its batches; copies overlap with
                # computation.
                micro_batches = [
                    {
                        key: values.to(self.device, non_blocking=True)
                        for key, values in batch.items()
                    }
                    for batch in loaded
                ]
                losses = self.train_step(*micro_batches)
                self.step += 1
                if self.is_sync_step:
                    self.require_finite()
                    rate = (self.step - first_step) / (time.monotonic() - start)  # steps/s
                    mfu = rate * step_seconds_at_peak
                    of_peak = f", {100 * mfu:.0f} % of peak" if mfu else ""
                    loss = losses["loss"].item()
                    note = f"{rate * frames:.0f} frames/s{of_peak}, loss {loss:.4f}"
                advance(self.step, self.settings.steps, note)
                for hook in self._hooks:
                    hook.after_train_iter(self, self.step - 1, micro_batches[0], losses)

    def train_step(self, *batches: Batch) -> dict[str, Tensor]:
        """Do one optimizer step on this rank's micro-batches, on the device; return the losses."""
        rate = learning_rate(self.settings, self.step)
        decay = weight_decay(self.settings, self.step)
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group["lr_share"]
            group["weight_decay"] = decay if group["decays"] else 0.0
        losses: dict[str, Tensor] = {}
        elements = torch.zeros((), dtype=torch.float64, device=self.device)
        for index, batch in enumerate(batches):
            elements, losses = self._backward(batch, index, elements, losses)
        require_gradients(self.model)
        means = all_reduce_sum(torch.stack([value.float() for value in losses.values()]))
        losses = dict(zip(losses, (means / world_size()).unbind(), strict=True))
        # Scaled gradients may overflow: the scaler then skips the step and lowers its scale.
        diverged = not_finite(losses["loss"], () if self.scaler.is_enabled() else self._trained)
        is_first = (diverged > 0) & (self._first_diverged == NONE_YET)
        self._first_diverged = self._first_diverged.masked_fill(is_first, self.step)
        if self.scaler.is_enabled():
            self.scaler.unscale_(self.optimizer)
        elif self.device.type != "meta":  # which has no fused optimizer
            # After a non-finite step, a fused optimizer leaves weights and moments unchanged.
            self.optimizer.found_inf = (self._first_diverged != NONE_YET).float()
        if before_step := getattr(self.model, "before_step", None):
            before_step(self.step / self.settings.steps)
        clip(self._trained, self.settings.clip)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        if after_step := getattr(self.model, "after_step", None):
            after_step((self.step + 1) / self.settings.steps)
        return losses

    def _backward(
        self, batch: Batch, index: int, elements_before: Tensor, means: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Add a micro-batch to a step's mean gradient and losses, and keep the state after it.

        Args:
            batch: the micro-batch.
            index: its index among this rank's.
            elements_before: number of elements in the micro-batches before it, a float64 scalar.
            means: mean losses of the micro-batches before it.

        Returns:
            Number of elements and mean losses, weighed by elements, including this micro-batch.
        """
        part = rank() * self.accumulate + index
        parts = world_size() * self.accumulate
        # Part 0 draws the same numbers as a single process; others have their own seed, unless the
        # model has the same random numbers on all.
        has_step_seed = part == 0 or getattr(self.model, "shared_rng", False)
        names = () if has_step_seed else ("part", part)
        seed_everything(derive_seed(self._seed, "step", self.step, *names))
        half = HALF.get(self.settings.precision)
        is_last = index == self.accumulate - 1  # its backward pass averages over the ranks
        counts: list[Tensor] = []
        # The backward pass is inside the block: stages that it recomputes must draw for the same
        # part of the batch.
        with (
            rank_computes(part=(part, parts), counts=counts),
            nullcontext() if is_last or world_size() == 1 else self._replica.no_sync(),
        ):
            with torch.autocast(self.device.type, dtype=half) if half else nullcontext():
                losses, self.states[index] = self._replica(batch, self.states[index])
            # A loss without `global_mean` counts as one element; a mean over none is a sum divided
            # by 1.
            elements = counts[0] if counts else torch.ones_like(elements_before)
            total = elements_before + elements
            weight = (elements.clamp(min=1) / total.clamp(min=1)).float()
            weight_before = (elements_before.clamp(min=1) / total.clamp(min=1)).float()
            if index:
                gradients = [p.grad for p in self._trained if p.grad is not None]
                torch._foreach_mul_(gradients, weight_before)
            # The losses' backward pass is in float32 too; TF32 makes no difference to layers in
            # half precision.
            with without_tf32() if half else nullcontext():
                self.scaler.scale(losses["loss"] * weight).backward()
        means = {
            name: weight * value.detach() + weight_before * means.get(name, 0.0)
            for name, value in losses.items()
        }
        return total, means

    @property
    def is_sync_step(self) -> bool:
        """Whether this step waits for the device and the other ranks, as a checkpoint does.

        On a CPU this costs nothing, so every step does. Elsewhere the last step does, and one per
        `SYNC_EVERY` backward passes.
        """
        if self.device.type == "cpu" or self.step == self.settings.steps:
            return True
        return self.step % max(1, SYNC_EVERY // self.accumulate) == 0

    def require_finite(self) -> None:
        """Raise a `UserError` if a step so far was non-finite."""
        step = int(self._first_diverged.item())
        if step == NONE_YET:
            return
        recordings = sorted(set(chain.from_iterable(all_gather(self._steps.names(step)))))
        where = f" on {', '.join(recordings)}" if recordings else ""
        raise UserError(
            f"step {step}",
            f"the loss or a gradient is not finite{where}; the weights are unchanged, and older "
            "checkpoints are kept",
            "lower optimisation.peak_lr",
        )

    def state_dict(self) -> dict[str, Any]:
        """Everything that determines the next steps; a collective operation of all ranks."""
        states = all_gather(tree_map_only(Tensor, Tensor.cpu, self.states))
        return {
            "step": self.step,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
            # of all lanes, for any number of parts when it is loaded
            "state": tree_map(_joined_lanes, *chain.from_iterable(states)),
        }

    def load_state_dict(self, content: Mapping[str, Any]) -> None:
        """Resume from a `state_dict`, with any number of ranks and gradient accumulation steps."""
        self.step = content["step"]
        self.model.load_state_dict(content["model"])
        self.optimizer.load_state_dict(content["optimizer"])
        self.scaler.load_state_dict(content["scaler"])
        first = rank() * self.accumulate
        parts = world_size() * self.accumulate
        state = content["state"]
        self.states = [
            tree_map_only(Tensor, partial(self._part_of_lanes, part, parts), state)
            for part in range(first, first + self.accumulate)
        ]

    def _part_of_lanes(self, part: int, parts: int, values: Tensor) -> Tensor:
        return values.chunk(parts)[part].to(self.device, copy=True)


def _joined_lanes(first: Any, *others: Any) -> Any:
    return torch.cat([first, *others]) if isinstance(first, Tensor) else first


class LossModule(nn.Module):
    """A network's loss as a module that DDP can wrap."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.network = network

    def forward(self, batch: dict[str, Tensor], state: Any) -> tuple[dict[str, Tensor], Any]:
        """Compute the loss of a micro-batch.

        Args:
            batch: tensors by name.
            state: state after the micro-batch before it, None for the first one.

        Returns:
            Losses by name, and the state after the micro-batch.

        Raises:
            UserError: the network's `loss` returns other things.
        """
        returned = self.network.loss(batch, state)
        where = f"{type(self.network).__name__}.loss"
        match returned:
            case (dict(losses), after):
                pass
            case _:
                what = "does not return losses by name and a state"
                raise UserError(where, what, 'return {"loss": loss, ...}, state')
        for name, value in {"loss": None, **losses}.items():
            require(
                isinstance(value, Tensor) and value.dim() == 0,
                where,
                f'returns no scalar tensor "{name}"',
                "return the mean over the batch under this name",
            )
        tensors = [leaf for leaf in tree_leaves(after) if isinstance(leaf, Tensor)]
        require(
            not any(tensor.requires_grad for tensor in tensors),
            where,
            "returns a state with gradients",
            "return detach(state), of tespec.models.backbone",
        )
        require(
            all(tensor.dim() for tensor in tensors),
            where,
            "returns a state with a tensor without an axis of lanes",
            "give it one value for each lane of the batch",
        )
        return losses, after


def wrap_ddp(network: nn.Module) -> nn.Module:
    """Wrap the loss of a network; several ranks average its gradients in the backward pass.

    The network's batch normalisation layers are synchronised in place; parameters, buffers and
    their names stay. Each trained parameter must get a gradient in every step on every rank. In
    a network that cannot guarantee this (`may_lack_gradients`), a gradient missing on one rank
    counts as zero, and every step waits for the device.

    Raises:
        UserError: an attribute of a module's class hides one of its layers.
    """
    for module in network.modules():
        for name, _ in module.named_children():
            if hasattr(type(module), name):
                what = "is also an attribute of its class, which hides the layer"
                raise UserError(f"{type(module).__name__}.{name}", what, "rename it")
    loss_module = LossModule(convert_sync_batchnorm(network))
    if world_size() == 1:
        return loss_module
    with warnings.catch_warnings():
        # torch 2.13 renames `broadcast_buffers`.
        warnings.simplefilter("ignore", FutureWarning)
        return DistributedDataParallel(
            loss_module,
            broadcast_buffers=False,  # every rank already has the statistics of the global batch
            gradient_as_bucket_view=True,
            find_unused_parameters=may_lack_gradients(network),
        )

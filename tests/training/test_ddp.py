"""Training on multiple ranks: gradients and batch statistics equal those of one."""

import copy
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from functools import partial
from itertools import product

import pytest
import torch
from loss_cases import CASES
from torch import distributed, multiprocessing, nn
from torch.utils._python_dispatch import TorchDispatchMode

from tespec.core.config import finetuning_settings
from tespec.core.distributed import global_mean, object_group, rank_computes
from tespec.core.errors import UserError
from tespec.tasks.segmentation import dice_loss
from tespec.training import ddp
from tespec.training import trainer as training
from tespec.training.ddp import SyncedBatchNorm, convert_sync_batchnorm
from tespec.training.loading import MicroBatches
from tespec.training.trainer import Trainer

CPU = torch.device("cpu")


class Exchanges(TorchDispatchMode):
    """Count this rank's collectives within the context by torch's name."""

    def __init__(self):
        super().__init__()
        self.calls = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "c10d":
            self.calls[func._schema.name.removeprefix("c10d::")] += 1
        return func(*args, **(kwargs or {}))


RANKS, STEPS = 2, 3
CELL = finetuning_settings("ddd17", "recurrent", "sample")
SETTINGS = replace(CELL.optimisation, steps=STEPS, warmup_steps=1, peak_lr=0.05)
CHANNELS = 4
# Shape of the input of each batch normalisation, and whether it has weights.
NORMS = {
    "maps": ((5, CHANNELS, 3, 2), True),
    "rows": ((9, CHANNELS), True),
    "plain": ((6, CHANNELS, 2), False),
    "far from zero": ((8, CHANNELS, 4, 4), True),
}
FRACTIONS = (0.5, 0.7, 1.0)  # of the batch on rank 0; the last one leaves rank 1 without labels


def batch_of(name):
    shape, affine = NORMS[name]
    generator = torch.Generator().manual_seed(1)
    values, weights = torch.randn(2, *shape, generator=generator)
    values = 3 * values + (1000 if name == "far from zero" else 1)
    norm = (nn.BatchNorm2d if len(shape) == 4 else nn.BatchNorm1d)(
        CHANNELS, affine=affine, momentum=0.3
    )
    if affine:
        nn.init.uniform_(norm.weight, 0.5, 2, generator=generator)
        nn.init.uniform_(norm.bias, -1, 1, generator=generator)
    return norm, values, weights


def normalised(norm, values, weights):
    values = values.clone().requires_grad_()
    out = norm(values)
    (out * weights).sum().backward()
    gradients = [parameter.grad for parameter in norm.parameters()]
    return {
        "out": out.detach(),
        "values": values.grad,
        "parameters": gradients,
        "buffers": dict(norm.named_buffers()),
    }


def normalise(rank):
    results = {}
    for name, fraction in product(NORMS, FRACTIONS):
        norm, values, weights = batch_of(name)
        (norm,) = convert_sync_batchnorm(nn.Sequential(norm))
        assert type(norm) is SyncedBatchNorm
        count = int(fraction * len(values))
        values = values.tensor_split([count])[rank]
        weights = weights.tensor_split([count])[rank]
        if without := not len(values):
            # A placeholder sample must not change any gradient.
            values = torch.full((1, *values.shape[1:]), 1e38)
            weights = torch.zeros(1, *weights.shape[1:])
        with Exchanges() as exchanges, rank_computes(unlabelled=without):
            results[name, fraction] = normalised(norm, values, weights)
        assert exchanges.calls == {"allgather_": 1, "allreduce_": 1}  # forward and backward
        if without:
            assert all(
                torch.isfinite(values).all()
                for values in (results[name, fraction]["out"], *norm.buffers())
            )
            assert not results[name, fraction]["values"].any()
            results[name, fraction] |= {"out": values[:0], "values": values[:0]}
    return results


def test_batch_statistics_are_those_of_the_full_batch(of_ranks):
    same = partial(torch.testing.assert_close, check_dtype=False)
    for name, fraction in of_ranks[0]["normalised"]:
        parts = [results["normalised"][name, fraction] for results in of_ranks]
        norm, values, weights = batch_of(name)
        full = normalised(norm.double(), values.double(), weights.double())
        close = 1e-4 if name == "far from zero" else 1e-6
        for key in ("out", "values"):
            same(torch.cat([part[key] for part in parts]), full[key], rtol=close, atol=close)
        totals = [sum(ranks) for ranks in zip(*(p["parameters"] for p in parts), strict=True)]
        same(totals, full["parameters"], rtol=close, atol=10 * close)
        same(parts[0]["buffers"], parts[1]["buffers"], rtol=0, atol=0)
        same(parts[0]["buffers"], full["buffers"], rtol=1e-6, atol=1e-6)


def test_a_single_process_computes_what_torch_computes():
    for name in NORMS:
        norm, *batch = batch_of(name)
        torch.testing.assert_close(
            normalised(convert_sync_batchnorm(norm), *batch),
            normalised(*batch_of(name)),
            rtol=0,
            atol=0,
        )


def test_a_micro_batch_without_labels_moves_no_statistics():
    norm = convert_sync_batchnorm(nn.BatchNorm2d(CHANNELS))
    with rank_computes(unlabelled=True):
        norm(torch.randn(2, CHANNELS, 4, 4))
    assert norm.num_batches_tracked == 0
    assert not norm.running_mean.any()


def test_a_batch_normalisation_that_does_more_keeps_its_class(monkeypatch):
    from timm.layers import BatchNormAct2d  # after tespec.core.compat

    assert (
        type(convert_sync_batchnorm(nn.Sequential(BatchNormAct2d(CHANNELS)))[0]) is BatchNormAct2d
    )
    monkeypatch.setattr(ddp, "world_size", lambda: 2)
    with pytest.raises(UserError, match="BatchNormAct2d: is not synchronised between ranks"):
        convert_sync_batchnorm(BatchNormAct2d(CHANNELS))
    convert_sync_batchnorm(BatchNormAct2d(CHANNELS).requires_grad_(False))  # of a frozen teacher


@pytest.mark.parametrize("shape", [(1, CHANNELS), (1, CHANNELS, 1, 1)])
def test_one_value_per_channel_has_variance_zero(shape):
    norm, values = batch_of("rows")[0], torch.arange(1.0, 1 + CHANNELS).view(shape)
    result = normalised(convert_sync_batchnorm(norm), values, torch.ones(shape))
    # its mean is the value itself
    torch.testing.assert_close(result["out"].flatten(), norm.bias, rtol=0, atol=1e-3)
    assert not result["values"].any()
    torch.testing.assert_close(norm.running_mean, 0.3 * values.flatten())
    torch.testing.assert_close(norm.running_var, torch.full((CHANNELS,), 0.7))


def test_a_micro_batch_with_one_label_trains_a_head_that_pools_to_one_pixel():
    model, batch = CASES["segmentation"]()
    batch |= {name: batch[name][:1] for name in ("label_position", "labels")}
    Trainer(model, [batch] * STEPS, SETTINGS, seed=0, device=CPU).run()
    assert all(torch.isfinite(tensor).all() for tensor in model.state_dict().values())


class Net(nn.Module):
    """Model with a sum as its state; if `sometimes`, `extra` acts on some rows only."""

    def __init__(self, sometimes=False, unused_parameters=False):
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.extra = nn.Parameter(torch.ones(2))
        self.sometimes = sometimes
        self.unused_parameters = unused_parameters

    def loss(self, batch, state):
        total = batch["x"] + (0 if state is None else state["sum"][0])
        served = (
            batch["x"][:, 0] < 0 if self.sometimes else torch.ones(len(total), dtype=torch.bool)
        )
        loss = self.linear(total[~served]).square().sum()
        if served.any():
            loss = loss + (self.linear(total[served]) * self.extra).square().sum()
        return {"loss": loss / len(total)}, {"sum": (total.detach(),)}


class Rows(torch.utils.data.Dataset):
    """Data set of one part of each batch of four rows."""

    def __init__(self, part, parts):
        self.part, self.parts = part, parts

    def __getitem__(self, step):
        rows = torch.sin(torch.arange(12.0) + step).view(4, 3)
        rows[:, 0] = torch.tensor([1, 1, -1, -1])
        return {"x": rows.chunk(self.parts)[self.part]}


def loop_of(network, accumulate, rank=0, ranks=1):
    torch.manual_seed(rank)  # training replaces the other ranks' weights by those of rank 0
    parts = [Rows(rank * accumulate + number, ranks * accumulate) for number in range(accumulate)]
    return Trainer(network(), MicroBatches(parts), SETTINGS, seed=0, device=CPU)


def state_after(loop):
    loop.run()
    return copy.deepcopy(loop.state_dict())


class Counted(nn.Module):
    """Mean over the marked elements: none, one, three and nine in the rows of a batch."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(9, 9)

    def loss(self, batch, state):
        errors = self.linear(batch["x"]).square() * batch["marked"]
        return {"loss": global_mean(errors.sum(), batch["marked"].sum())}, None


def gradients_of(accumulate, rank=0, ranks=1):
    """Gradients and losses of one step on micro-batches of four rows."""
    torch.manual_seed(0)
    marked = torch.arange(9) < torch.tensor([0, 1, 3, 9]).view(4, 1)
    full = {"x": torch.sin(torch.arange(36.0)).view(4, 9), "marked": marked}
    parts = (
        {
            name: rows.chunk(ranks * accumulate)[rank * accumulate + number]
            for name, rows in full.items()
        }
        for number in range(accumulate)
    )
    micro_batches = [*parts]
    trainer = Trainer(Counted(), MicroBatches(micro_batches), SETTINGS, seed=0, device=CPU)
    gradients = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            training,
            "clip",
            lambda trained, how: gradients.extend(parameter.grad.clone() for parameter in trained),
        )
        losses = trainer.train_step(*micro_batches)
    return gradients, losses


WAYS = {"plain": (Net, 1), "in turns": (Net, 2), "unused": (partial(Net, True, True), 1)}


def train(rank):
    states = {}
    for way, (network, accumulate) in WAYS.items():
        loop = loop_of(network, accumulate, rank, RANKS)
        trained = state_after(loop)
        resumed = loop_of(network, 1, rank, RANKS)
        resumed.load_state_dict(trained)
        states[way] = trained | {"resumed": resumed.state_dict(), "local": resumed.states}
    return states


def forget(rank):
    loop = loop_of(partial(Net, True), 1, rank, RANKS)
    try:
        loop.train_step(Rows(rank, RANKS)[0])
    except (UserError, RuntimeError) as error:
        return str(error)


def dice_batch():
    """Logits, labels of four frames, and numbers of frames on rank 0, all or some."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(4, 3, 6, 5, generator=generator)
    labels = torch.randint(0, 3, (4, 6, 5), generator=generator)
    labels[0, :4] = labels[3, 2:] = 255  # so that the frames of a rank weigh differently
    return logits, labels, (1, 2, 4)


def dice(rank):
    logits, labels, counts = dice_batch()
    losses = {}
    for count in counts:
        frames = slice(None, count) if rank == 0 else slice(count, None)
        local, truth = logits[frames].clone(), labels[frames]
        if not len(local):  # a placeholder frame, as tasks have it
            local, truth = torch.ones(1, *logits.shape[1:]), torch.full((1, *labels.shape[1:]), 255)
        loss = dice_loss(local.requires_grad_(), truth)
        loss.backward()
        losses[count] = loss.item(), local.grad
    return losses


def test_dice_is_that_of_all_frames_of_all_ranks(of_ranks):
    logits, labels, counts = dice_batch()
    loss = dice_loss(logits.requires_grad_(), labels)
    loss.backward()
    for count in counts:
        losses = [results["dice"][count] for results in of_ranks]
        assert [value for value, _ in losses] == pytest.approx([loss.item()] * RANKS, rel=1e-6)
        gradients = torch.cat([gradient for _, gradient in losses])
        assert not gradients[4:].any()
        # Training averages the gradients of the ranks.
        torch.testing.assert_close(gradients[:4] / RANKS, logits.grad, rtol=1e-5, atol=1e-8)


def work(rank, folder):
    """Entry point of a rank: join the process group, run all parts, and save the results."""
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", f"file://{folder}/meet", timedelta(seconds=120), rank=rank, world_size=RANKS
    )
    with object_group():
        results = {"normalised": normalise(rank), "dice": dice(rank), "trained": train(rank)}
        results["gradients"] = {
            accumulate: gradients_of(accumulate, rank, RANKS) for accumulate in (1, 2)
        }
        results["forgotten"] = forget(rank)  # last, since it ends the collectives
    torch.save(results, f"{folder}/{rank}.pt")
    distributed.destroy_process_group()


@pytest.fixture(scope="module")
def of_ranks(tmp_path_factory):
    """Results of each rank, computed once: starting the ranks takes longer than their work."""
    folder = tmp_path_factory.mktemp("ranks")
    # Forked processes need no imports, but no gradients are computed in them if there is a GPU.
    method = "spawn" if torch.cuda.is_available() else "fork"
    multiprocessing.start_processes(work, (str(folder),), nprocs=RANKS, start_method=method)
    return [torch.load(folder / f"{rank}.pt") for rank in range(RANKS)]


def test_several_ranks_train_what_one_trains(of_ranks):
    first, second = (results["trained"] for results in of_ranks)
    for way, (network, accumulate) in WAYS.items():
        one = state_after(loop_of(network, accumulate))
        for part in (first[way], second[way]):
            torch.testing.assert_close(part["model"], one["model"], rtol=1e-5, atol=1e-6)
            # Every rank resumes from the same checkpoint, with its own rows of the state.
            for key in ("model", "optimizer"):
                torch.testing.assert_close(part["resumed"][key], first[way][key], rtol=0, atol=0)
        torch.testing.assert_close(first[way]["state"], one["state"])
        rows = torch.cat([part[way]["local"][0]["sum"][0] for part in (first, second)])
        assert torch.equal(rows, first[way]["state"]["sum"][0])


def test_micro_batches_of_several_ranks_have_the_gradient_of_the_full_batch(of_ranks):
    expected = gradients_of(1)
    for accumulate, results in product((1, 2), of_ranks):
        torch.testing.assert_close(results["gradients"][accumulate], expected)
    torch.testing.assert_close(gradients_of(4), expected)


def test_a_parameter_without_a_gradient_on_one_rank_is_named(of_ranks):
    first, second = (results["forgotten"] for results in of_ranks)
    assert first.startswith(
        "Net: extra got no gradient in a step of rank 0; set unused_parameters = True in its class"
    )
    assert second != first  # rank 1 waits for rank 0, and the launcher notices the end of rank 0

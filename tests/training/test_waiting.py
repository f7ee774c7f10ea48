"""No training step of ours waits for its device: forward pass, backward pass and optimizer of every objective and task.

Counted twice. On the CPU, which stands for the device, by the operations that read a number from it or whose result has
as many rows as were found. And on the meta device, which holds no numbers, so that nothing can be read from it at all;
there copies between the CPU and the device are seen as well.
"""

from dataclasses import replace

import pytest
import torch
from loss_cases import CASES
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tespec.core.config import pretraining_settings
from tespec.datasets.images import as_input
from tespec.events.on_device import as_seen, count_words
from tespec.events.spatial import Region
from tespec.training.trainer import Trainer

READS = {"_local_scalar_dense", "nonzero", "is_nonzero", "item", "masked_select", "_unique2", "unique_dim", "bincount"}
INDEXED = {"index", "index_put", "index_put_", "_index_put_impl_"}
COPIES = {"_to_copy", "copy_"}
META = torch.device("meta")
SETTINGS = replace(pretraining_settings("tespec", "sample").optimisation, steps=10)


class Waits(TorchDispatchMode):
    """Names of the operations that wait for `device`, as they come."""

    def __init__(self, device):
        super().__init__()
        self.device, self.found = device, []

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        out = operation(*args, **kwargs)
        name = operation.overloadpacket.__name__
        masked = name in INDEXED and any(_is_mask(each) for each in tree_leaves(args[1]))
        if (masked or name in READS) and args[0].device == self.device:
            self.found.append(name)
        if name in COPIES and _travels(out, args) and not _goes_on(name, args, kwargs):
            self.found.append(name)
        return out


def _is_mask(index):
    return isinstance(index, torch.Tensor) and index.dtype in (torch.bool, torch.uint8)


def _travels(out, args):
    return len({each.device.type for each in (out, *args) if isinstance(each, torch.Tensor)}) > 1


def _goes_on(name, args, kwargs):
    """Whether a copy is one of those that nothing waits for."""
    return kwargs.get("non_blocking", False) or (name == "copy_" and len(args) > 2 and args[2])


def trained(case, device, steps=2):
    model, batch = CASES[case]()
    loop = Trainer(model, [batch], SETTINGS, seed=0, device=device)
    loop.model.train()
    batch = {name: value.to(device) for name, value in batch.items()}
    if device.type == "cpu" and "histograms" in batch:
        # Of another type the intensity is computed as on other devices, and not by the CPU's own kernel.
        batch["histograms"] = batch["histograms"].short()
    with Waits(device) as waits:
        for loop.step in range(steps):
            losses = loop.train_step(batch)
    return loop, losses, waits.found


SEEN = ("tespec", "ecddp", "detection")


MARKED = [pytest.param(each, marks=() if each in SEEN else pytest.mark.slow) for each in CASES]


@pytest.mark.parametrize("case", MARKED)
def test_a_step_reads_nothing_from_its_device(case):
    _, losses, found = trained(case, torch.device("cpu"))
    assert found == []
    assert torch.isfinite(losses["loss"])


@pytest.mark.parametrize("case", MARKED)
def test_a_whole_step_runs_on_the_meta_device(case):
    loop, losses, found = trained(case, META)
    assert found == []
    assert losses["loss"].device == META
    assert all(each.device == META for each in loop.model.state_dict().values())
    assert all(each.device == META for each in tree_leaves(loop.states) if isinstance(each, torch.Tensor))
    trained_on = [each for each in loop.model.parameters() if each.requires_grad]
    assert len(loop.optimizer.state) == len(trained_on)


def test_images_become_what_a_network_sees_without_waiting():
    pixels = torch.zeros(2, 2, 3, 8, 8, dtype=torch.uint8, device=META)
    with Waits(META) as waits:
        assert as_input(pixels, torch.zeros(2, 2, 2, device=META)).shape == pixels.shape
    assert waits.found == []


def test_histograms_are_counted_on_the_device_without_waiting():
    words, counts = torch.zeros(6, dtype=torch.int32, device=META), torch.zeros(1, 3, 5, dtype=torch.int64, device=META)
    maps = torch.zeros(1, 8, dtype=torch.int64, device=META)
    with Waits(META) as waits:
        assert as_seen(count_words(words, counts, Region(8, 8)), maps, maps).shape == (1, 3, 10, 8, 8)
    assert waits.found == []


def test_what_waits_is_counted():
    values = torch.arange(3.0)
    with Waits(torch.device("cpu")) as waits:
        values.sum().item()
        assert len(values[values > 1]) == 1
        values.nonzero()
        values.clone()[torch.tensor([0, 2])] = 1.0
        values.clone()[values > 1] = 1.0
        torch.empty(3, device=META).copy_(values)
        values.to(META)
        values.to(META, non_blocking=True)
    reads = ["_local_scalar_dense", "index", "nonzero", "index_put_"]
    assert waits.found == [*reads, "copy_", "_to_copy"]

"""Stochastic depth: what it leaves out, for whom, and when it does not."""

import pytest
import torch

from baselines.imagenet import Imagenet
from tespec.core.config import own_facts, pretraining_settings
from tespec.core.distributed import batch_part
from tespec.models import build_backbone
from tespec.models.execution import Execution, execute
from tespec.models.layers import DropPath
from tespec.pretraining.method import own_settings
from tespec.pretraining.momentum import momentum_copy
from tespec.training.loading import MicroBatches
from tespec.training.trainer import Trainer

SIZE = (64, 96)
# Residual branches of each architecture that can be left out, in order: rates rise by equal steps over the blocks.
BRANCHES = {"micro": 2 * 8 - 2, "resnet-micro": 4 - 1, "maxvit-micro": 2 * 8 - 2}


def backbone(arch, rate, recurrent=False):
    torch.manual_seed(0)
    model = build_backbone(arch, recurrent, 2, SIZE, drop_path=rate)
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            torch.nn.init.ones_(module.weight)  # residual branches of a fresh ResNet are zero
    return model


def frames(lanes=4, segments=1):
    return torch.randint(0, 4, (lanes, segments, 4, *SIZE), generator=torch.Generator().manual_seed(1))


def test_a_branch_is_left_out_or_scaled_up_sample_by_sample():
    torch.manual_seed(0)
    branch = torch.randn(4000, 3, 2)
    out = DropPath(0.25)(branch)
    dropped = (out == 0).flatten(1).all(1)
    torch.testing.assert_close(out[~dropped], branch[~dropped] / 0.75)
    assert dropped.float().mean().item() == pytest.approx(0.25, abs=0.05)
    assert out.bfloat16().dtype == DropPath(0.25)(branch.bfloat16()).dtype


def test_parts_that_draw_alike_drop_what_the_whole_batch_drops():
    branch = torch.ones(12, 5)
    drop = DropPath(0.5)
    torch.manual_seed(3)
    whole = drop(branch)
    parts = []
    for part in range(3):
        torch.manual_seed(3)
        with batch_part((part, 3)):
            parts.append(drop(branch[:4]))
    assert torch.equal(torch.cat(parts), whole)
    assert 0 < int((whole == 0).all(1).sum()) < 12


@pytest.mark.parametrize("arch", BRANCHES)
def test_rates_rise_block_by_block_to_the_one_that_is_set(arch):
    rates = [module.drop_prob for module in backbone(arch, 0.2).modules() if isinstance(module, DropPath)]
    assert len(rates) == BRANCHES[arch]
    assert rates == sorted(rates)
    assert rates[-1] == pytest.approx(0.2)
    assert not [module for module in backbone(arch, 0.0).modules() if isinstance(module, DropPath) and module.drop_prob]


@pytest.mark.parametrize("arch", BRANCHES)
def test_nothing_is_dropped_outside_of_training(arch):
    with_rate, without = backbone(arch, 0.9), backbone(arch, 0.0)
    assert with_rate.state_dict().keys() == without.state_dict().keys()
    for here, there in zip(with_rate.eval()(frames())[0], without.eval()(frames())[0], strict=True):
        assert torch.equal(here, there)
    trained = [with_rate.train()(frames())[0][-1] for _ in range(2)]
    assert not torch.equal(*trained)


def test_a_teacher_drops_nothing():
    student = backbone("micro", 0.9).train()
    teacher = momentum_copy(student)
    assert torch.equal(*[teacher(frames())[0][-1] for _ in range(2)])
    assert not torch.equal(*[student(frames())[0][-1] for _ in range(2)])


class Images(torch.utils.data.Dataset):
    """Two images of a batch of four, for each step."""

    def __init__(self, half):
        self.half = half

    def __getitem__(self, step):
        views = torch.randn(4, 1, 4, *SIZE, generator=torch.Generator().manual_seed(step))
        own = slice(2 * self.half, 2 * self.half + 2)
        return {"views": views[own], "labels": torch.arange(4)[own] % 3}


def trained(accumulate, recompute):
    model = Imagenet(own_settings(own_facts("imagenet", "sample")), backbone("micro", 0.5), 3)
    execute(model, Execution(recompute=recompute))
    settings = pretraining_settings(
        "imagenet", "sample", ["optimisation.steps=4", "optimisation.warmup_steps=1"]
    ).optimisation
    steps = MicroBatches([Images(half) for half in range(2)]) if accumulate == 2 else Whole()
    loop = Trainer(model, steps, settings, seed=5, device=CPU)
    loop.run()
    return [each.detach().clone() for each in model.parameters()]


class Whole(torch.utils.data.Dataset):
    def __getitem__(self, step):
        halves = [Images(half)[step] for half in range(2)]
        return {name: torch.cat([half[name] for half in halves]) for name in halves[0]}


CPU = torch.device("cpu")


def test_stages_computed_again_drop_the_same():
    for kept, again in zip(trained(2, recompute=False), trained(2, recompute=True), strict=True):
        assert torch.equal(kept, again)


def test_a_batch_in_turns_drops_what_the_whole_batch_drops(monkeypatch):
    drawn = []
    original = DropPath.forward

    def spy(module, branch):
        out = original(module, branch)
        drawn.append((out == 0).flatten(1).all(1))
        return out

    monkeypatch.setattr(DropPath, "forward", spy)
    trained(1, recompute=False)
    whole, drawn = drawn, []
    trained(2, recompute=False)
    branches = BRANCHES["micro"]
    # Step by step: one batch of four, or the branches of the first turn before those of the second.
    for step in range(4):
        for branch in range(branches):
            first, second = (drawn[(2 * step + turn) * branches + branch] for turn in range(2))
            assert torch.equal(torch.cat([first, second]), whole[step * branches + branch])

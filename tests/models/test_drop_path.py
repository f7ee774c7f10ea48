"""Stochastic depth: what it leaves out, for whom, and when it does not."""

import pytest
import torch

from tespec.core.distributed import batch_part
from tespec.models import build_backbone
from tespec.models.layers import DropPath
from tespec.pretraining.momentum import momentum_copy

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

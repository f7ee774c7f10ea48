"""Momentum teachers, and Sinkhorn assignment across processes; the methods' own tests cover their losses."""

from datetime import timedelta

import pytest
import torch
from loss_cases import CASES
from torch import distributed, multiprocessing
from torch.nn.functional import normalize

from tespec.pretraining.contrast import ema_update_, momentum_copy, sinkhorn

SAMPLES, PROTOTYPES, TEMPERATURE = 40, 12, 0.04
ROUNDS = 3  # as in SwAV (facebookresearch/swav, main_swav.py, sinkhorn_iterations)
VECTORS = normalize(torch.randn(SAMPLES + PROTOTYPES, 6, generator=torch.Generator().manual_seed(0)), dim=1)
COSINES = VECTORS[:SAMPLES] @ VECTORS[SAMPLES:].T
BORDERS = [(0, 27, 40), (0, 0, 40)]  # bounds of two processes' shares: unequal, and one empty


def by_the_book(logits, temperature):
    """Alg. 1 of SwAV in float64: normalise columns to 1 / K, rows to 1 / B."""
    shares = (logits.double() / temperature).exp()
    shares /= shares.sum()
    for _ in range(ROUNDS):
        shares /= shares.sum(0, keepdim=True) * shares.shape[1]
        shares /= shares.sum(1, keepdim=True) * shares.shape[0]
    return shares * shares.shape[0]


@pytest.mark.parametrize("temperature", [0.04, 0.07, 1.0])
def test_assignments_are_those_of_the_book(temperature):
    found = sinkhorn(COSINES, temperature)
    torch.testing.assert_close(found.double(), by_the_book(COSINES, temperature), rtol=1e-4, atol=1e-7)
    torch.testing.assert_close(found.sum(1), torch.ones(SAMPLES))


def balance(rank, folder):
    distributed.init_process_group("gloo", f"file://{folder}/meet", timedelta(seconds=120), rank=rank, world_size=2)
    sent = []
    for name in ("all_reduce", "all_gather", "broadcast"):
        original = getattr(distributed, name)

        def spy(values, *args, original=original, **kwargs):
            sent.append(sum(each.numel() for each in (values if isinstance(values, list) else [values])))
            return original(values, *args, **kwargs)

        setattr(distributed, name, spy)
    found = [sinkhorn(COSINES[borders[rank] : borders[rank + 1]], TEMPERATURE) for borders in BORDERS]
    torch.save((found, sent), f"{folder}/{rank}.pt")
    distributed.destroy_process_group()


def test_processes_balance_what_one_balances_and_exchange_sums_alone(tmp_path):
    multiprocessing.spawn(balance, (str(tmp_path),), nprocs=2)
    parts = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]
    for found in zip(*(assigned for assigned, _ in parts), strict=True):
        torch.testing.assert_close(torch.cat(found), sinkhorn(COSINES, TEMPERATURE), rtol=1e-4, atol=1e-7)
    assert [sent for _, sent in parts] == [len(BORDERS) * [1, *ROUNDS * [PROTOTYPES]]] * 2


def test_a_teacher_takes_over_running_statistics():
    student = torch.nn.BatchNorm1d(2)
    teacher = momentum_copy(student)
    student.running_mean.fill_(5.0)
    ema_update_(teacher, student, 0.75, 0.0)
    assert teacher.running_mean.tolist() == [5.0, 5.0]


@pytest.mark.parametrize(
    ("name", "start", "networks"),
    [
        ("ecddp", 0.992, {"student": "teacher"}),
        ("ecdp", 0.99, {"backbone": "slow_backbone", "event_head": "slow_head"}),
        ("moby", 0.99, {"backbone": "slow_backbone", "norm": "slow_norm", "projector": "slow_projector"}),
    ],
)
@torch.no_grad()
def test_momentum_rises_to_one_by_half_a_cosine(name, start, networks):
    """Published start values: ECDDP .992, ECDP (moco_m) .99, MoBY .99."""
    model, _ = CASES[name]()
    for fast, slow in networks.items():
        pairs = [*zip(model.get_submodule(fast).parameters(), model.get_submodule(slow).parameters(), strict=True)]
        assert not any(other.requires_grad for _, other in pairs)
        for share, momentum in ((0.0, start), (0.5, (1 + start) / 2), (1.0, 1.0)):
            for one, other in pairs:
                one.copy_(other + 1)
            model.after_step(share)
            for one, other in pairs:
                torch.testing.assert_close(one - other, torch.full_like(one, momentum), atol=1e-5, rtol=0)

"""Sinkhorn's balancing over processes, and which patches ECDDP balances."""

from datetime import timedelta

import pytest
import torch
from torch import distributed, multiprocessing
from torch.nn.functional import normalize

from tespec.datasets.batches import draw_mask
from tespec.models import build_backbone
from tespec.pretraining.contrast import SINKHORN_ROUNDS, sinkhorn
from tespec.pretraining.dense_distillation import DenseDistillation

SAMPLES, PROTOTYPES, TEMPERATURE = 40, 12, 0.04
SIZE = (64, 96)


def cosines(samples=SAMPLES, prototypes=PROTOTYPES):
    generator = torch.Generator().manual_seed(0)
    features, directions = (torch.randn(count, 6, generator=generator) for count in (samples, prototypes))
    return normalize(features, dim=1) @ normalize(directions, dim=1).T


def by_the_book(logits, temperature):
    """SwAV, Alg. 1, in float64: columns to 1 / K, rows to 1 / B."""
    shares = (logits.double() / temperature).exp()
    shares /= shares.sum()
    for _ in range(SINKHORN_ROUNDS):
        shares /= shares.sum(0, keepdim=True) * shares.shape[1]
        shares /= shares.sum(1, keepdim=True) * shares.shape[0]
    return shares * shares.shape[0]


@pytest.mark.parametrize("temperature", [0.04, 0.07, 1.0])
def test_assignments_are_those_of_the_book(temperature):
    found = sinkhorn(cosines(), temperature)
    torch.testing.assert_close(found.double(), by_the_book(cosines(), temperature), rtol=1e-4, atol=1e-7)
    torch.testing.assert_close(found.sum(1), torch.ones(SAMPLES))


BORDERS = [(0, 27, 40), (0, 0, 40)]  # of the shares of two processes: unequal, and one without any


def balance(rank, folder):
    distributed.init_process_group("gloo", f"file://{folder}/meet", timedelta(seconds=120), rank=rank, world_size=2)
    sent = []
    for name in ("all_reduce", "all_gather", "broadcast"):
        original = getattr(distributed, name)

        def spy(values, *args, original=original, **kwargs):
            sent.append(sum(each.numel() for each in (values if isinstance(values, list) else [values])))
            return original(values, *args, **kwargs)

        setattr(distributed, name, spy)
    found = [sinkhorn(cosines()[borders[rank] : borders[rank + 1]], TEMPERATURE) for borders in BORDERS]
    torch.save((found, sent), f"{folder}/{rank}.pt")
    distributed.destroy_process_group()


def test_processes_balance_what_one_balances_and_exchange_sums_alone(tmp_path):
    multiprocessing.spawn(balance, (str(tmp_path),), nprocs=2)
    parts = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]
    for found in zip(*(assigned for assigned, _ in parts), strict=True):
        torch.testing.assert_close(torch.cat(found), sinkhorn(cosines(), TEMPERATURE), rtol=1e-4, atol=1e-7)
    assert [sent for _, sent in parts] == [len(BORDERS) * [1, *SINKHORN_ROUNDS * [PROTOTYPES]]] * 2


def model(local_views):
    torch.manual_seed(0)
    backbone = build_backbone("micro", False, 10, SIZE)
    return DenseDistillation(backbone, 32, 16, 24, 3, local_views, mask_ratio=0.5, momentum=0.9)


@pytest.mark.parametrize("local_views", [1, 8])
def test_prototypes_are_named_and_balanced_at_hidden_patches_alone(local_views, monkeypatch):
    network, lanes = model(local_views), 3
    rows = {}
    for name in ("student", "teacher"):
        for head in ("patches", "images"):
            module = getattr(getattr(network, name), head)
            module.register_forward_hook(
                lambda _, given, out, key=(name, head): rows.setdefault(key, []).append(out.numel() // out.shape[-1])
            )
    balanced = []

    def spy(logits, temperature):
        balanced.append(len(logits))
        return sinkhorn(logits, temperature)

    masks = []

    def draw(*args):
        masks.append(draw_mask(*args))
        return masks[-1]

    monkeypatch.setattr("tespec.pretraining.dense_distillation.sinkhorn", spy)
    monkeypatch.setattr("tespec.pretraining.dense_distillation.draw_mask", draw)
    histograms = torch.randint(0, 4, (lanes, 1, 20, *SIZE), dtype=torch.uint8)
    network.loss({"histograms": histograms}, None)
    hidden = int(torch.stack(masks).sum())
    assert 0 < hidden < torch.stack(masks).numel()
    assert rows["student", "patches"] == rows["teacher", "patches"] == [hidden]
    assert sum(rows["student", "images"]) == (2 + local_views) * lanes
    assert sum(rows["teacher", "images"]) == 2 * lanes
    assert balanced[0] == hidden
    assert balanced[-1] == 2 * lanes

"""What the ledger's rows are made of: verdicts, limits, exponents, and the plain network."""

from __future__ import annotations

import pytest
import torch

from benchmarks.measure.ledger import duration, line, si
from benchmarks.measure.networks import PlainNetwork
from benchmarks.measure.rows import Limits, Row, alternate, at_least, at_most, spread
from benchmarks.measure.training import exponent
from tespec.models import EventSwin


def test_a_target_says_by_how_much_it_is_missed() -> None:
    faster, shorter = at_least("ratio", 8, ">= 8x"), at_most("seconds", 2, "< 2 s")
    assert [faster.verdict(value) for value in (8, 6)] == [">= 8x: met", ">= 8x: missed by 25%"]
    assert [shorter.verdict(value) for value in (2, 3)] == ["< 2 s: met", "< 2 s: missed by 50%"]


def test_a_row_is_judged_by_what_was_measured() -> None:
    row = Row("prepare", "from .dat", "cpu", seconds=1.0, work=50e6, figures={"resident_bytes": 2e9})
    assert row.verdicts() == [">= 40 M events/s: met", "< 1 GB resident: missed by 100%"]
    assert Row("prepare", "from .dat", "cuda", note="none").verdicts() == []


def test_the_limit_is_the_longer_of_moving_and_computing() -> None:
    limits = Limits(bandwidth=10.0, flops=100.0, dtype="float32")
    assert limits.seconds(moved=20, computed=100) == 2
    assert limits.seconds(moved=20, computed=1000) == 10
    assert Row("a", "b", "cpu", seconds=5.0, moved=20).over_limit(limits) == 2.5
    assert Row("a", "b", "cpu", seconds=5.0).over_limit(limits) is None
    assert Row("a", "b", "cpu", seconds=5.0, moved=20).over_limit(None) is None


def test_lines_show_missed_targets_in_capitals_where_asked() -> None:
    row = Row("histogram", "window", "cpu", seconds=1e-3, peer_seconds=4e-3, work=1e6, unit="events")
    shown = line(row, None)
    assert ">= 8X PUT_: MISSED BY 50%" in shown
    assert ">= 250 M events/s: met" in shown
    assert "4.00" in shown.splitlines()[0]
    assert line(row, None, judged=False).count("\n") == 0


def test_numbers_are_readable() -> None:
    assert [duration(value) for value in (2e-6, 3e-3, 4.0)] == ["2.00 us", "3.00 ms", "4.00 s"]
    assert [si(value) for value in (1.5e9, 2e6, 3e3, 4.0, 0.05)] == ["1.5 G", "2 M", "3 k", "4 ", "0.05 "]


@pytest.mark.parametrize("power", [0.0, 1.0, 2.0])
def test_exponents_are_those_of_the_last_points(power: float) -> None:
    work = [1.0, 10.0, 100.0, 1000.0]
    assert exponent(work, [77.0, *(each**power for each in work[1:])]) == pytest.approx(power)


def test_ways_take_turns() -> None:
    order: list[str] = []
    ways = [lambda: order.append("a"), lambda: order.append("b")]
    taken = alternate(ways, torch.device("cpu"), runs=5, budget=0.0)
    assert order == ["a", "b"] * 3
    assert [len(times) for times in taken] == [3, 3]
    assert spread([1.0, 1.0, 1.0]) == 0


def test_the_plain_network_computes_what_the_backbone_computes() -> None:
    torch.manual_seed(0)
    backbone = EventSwin(arch="micro", img_size=(64, 96))
    counts = torch.randint(0, 4, (2, 3, 20, 64, 96), dtype=torch.uint8)
    with torch.no_grad():
        features, plain = backbone(counts)[0], PlainNetwork(backbone)(counts)
    for ours, theirs in zip(features, plain, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)

from __future__ import annotations

from collections.abc import Callable

import pytest

from tespec.comparison.pretrained import healthy
from tespec.comparison.records import Record


@pytest.mark.parametrize(
    ("ranks", "accepted", "reason"),
    [
        ((9.0, 12.0, 15.0, 20.0), True, "rank is 20.0, and does not fall (9.0 12.0 15.0 20.0)"),
        ((9.0, 20.0, 19.0, 18.5), True, "does not fall"),  # within the noise
        ((9.0, 20.0, 19.0, 17.5), False, "falls from 20.0 to 17.5"),
        ((2.0, 4.0, 6.0, 8.0), False, "rank is 8.0, not above 8"),
        ((), False, "does not hold the last stage's rank"),
    ],
)
@pytest.mark.parametrize("has_curve", [True, False])
def test_healthy_is_a_rank_that_is_high_and_does_not_fall(
    record: Callable[..., Record], ranks: tuple[float, ...], accepted: bool, reason: str, has_curve: bool
) -> None:
    metrics = {"loss": 0.8, "feature_rank": 3.0} | ({"last_stage_rank": ranks[-1]} if ranks else {})
    curve = [{"step": 10.0 * step, "rank": rank} for step, rank in enumerate(ranks, start=1)]
    found = healthy(record(kind="pretraining", metrics=metrics, curves={"last_stage": curve} if has_curve else {}))
    if has_curve or not ranks or ranks[-1] <= 8:
        assert found[0] is accepted
        assert reason in found[1]
    else:
        assert found == (False, "its record does not hold the last stage's rank over the training")

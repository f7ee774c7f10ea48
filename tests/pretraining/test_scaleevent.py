"""ScaleEvent: losses against the authors' code, and active tokens."""

import pytest
import torch
from loss_cases import CASES

from baselines.scaleevent import ScaleEvent, active_tokens


def test_the_loss_weighs_them_1_10_and_4_and_only_events_learn():
    model, batch = CASES["scaleevent"]()
    named, _ = model.loss(batch, None)
    weighed = named["loss_plain"] + 10 * named["loss_intra"] + 4 * named["loss_cross"]
    assert named["loss"].item() == pytest.approx(weighed.item())
    named["loss"].backward()
    assert all(parameter.grad is None for parameter in model.teacher.parameters())
    model.train()
    model.loss(batch, None)
    assert not model.teacher.network.training


def test_a_token_counts_from_64_events_on():
    histograms = torch.zeros(1, 20, 32, 32, dtype=torch.uint8)
    histograms[0, 3, :8, :8] = 1  # 64 in the first token
    histograms[0, 4, 16:24, 16:24] = 1
    histograms[0, 4, 16, 16] = 0  # 63 in the last
    assert active_tokens(histograms, ScaleEvent.recipe.objective.activation).flatten().tolist() == [
        1,
        0,
        0,
        0,
    ]

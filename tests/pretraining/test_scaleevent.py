"""ScaleEvent: losses against the authors' code, and active tokens."""

import pytest
import torch
from loss_cases import CASES
from torch.nn.functional import cosine_similarity

from baselines.scaleevent import ScaleEvent, active_tokens, distances


def test_losses_are_those_of_the_authors_code():
    """scale_event/pretrain/criterion.py, DistillLoss_With_CrossGram, in float64."""
    generator = torch.Generator().manual_seed(0)
    events, images = (
        torch.randn(2, 5, 4, generator=generator, dtype=torch.float64) for _ in range(2)
    )
    active = torch.tensor([[1, 1, 0, 1, 1], [1, 0, 1, 1, 1]], dtype=torch.float64).unsqueeze(2)
    intra = cross = 0.0
    for k, q in zip(events * active, images * active, strict=True):
        pairs = ((q, q), (k, k), (q, k))
        wanted, to_events, to_image = (
            cosine_similarity(a[:, None], b, dim=2).clamp(min=0) for a, b in pairs
        )
        intra += (to_events - wanted)[wanted > 0.1].square().sum().item() / 50
        cross += (to_image - wanted)[wanted > 0.1].square().sum().item() / 50
    plain = ((events - images) * active).abs().mean().item()
    found = distances(events, images, active, 0.1)
    assert [each.item() for each in found] == pytest.approx([plain, intra, cross], rel=1e-6)


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

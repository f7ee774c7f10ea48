from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from tespec.models.layers import MatrixPool, with_exact_pools

SIDES = st.integers(1, 13)


@given(SIDES, SIDES, st.integers(1, 7), st.integers(1, 7))
def test_it_is_torchs_pooling_forward_and_backward(height: int, width: int, rows: int, columns: int) -> None:
    maps = torch.randn(2, 3, height, width, dtype=torch.float64, requires_grad=True)
    again = maps.detach().clone().requires_grad_()
    wanted, found = nn.AdaptiveAvgPool2d((rows, columns))(maps), MatrixPool((rows, columns))(again)
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)
    weights = torch.randn_like(wanted)
    (wanted * weights).sum().backward()
    (found * weights).sum().backward()
    torch.testing.assert_close(again.grad, maps.grad, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("size", [2, (None, 3), (3, None)])
def test_sizes_are_given_as_torch_takes_them(size) -> None:
    maps = torch.randn(1, 2, 5, 7)
    torch.testing.assert_close(MatrixPool(size)(maps), nn.AdaptiveAvgPool2d(size)(maps), rtol=1e-6, atol=1e-6)


def test_every_pooling_of_a_model_is_replaced_and_its_weights_stay() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Conv2d(2, 2, 1)))
    maps, names = torch.randn(1, 1, 9, 8), list(model.state_dict())
    before = model(maps)
    with_exact_pools(model)
    assert not any(isinstance(each, nn.AdaptiveAvgPool2d) for each in model.modules())
    assert list(model.state_dict()) == names
    torch.testing.assert_close(model(maps), before, rtol=1e-6, atol=1e-6)

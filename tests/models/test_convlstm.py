import torch

from tespec.models.backbone import ConvLstm


def plain_step(lstm, x, hidden, cell):
    """One step with a convolution over (map, hidden), channels first."""
    gates = lstm.gates(torch.cat([x, hidden], dim=1))
    forget, write, output, candidate = gates.chunk(4, dim=1)
    cell = forget.sigmoid() * cell + write.sigmoid() * candidate.tanh()
    return output.sigmoid() * cell.tanh(), cell


def test_equals_step_by_step_convolutions():
    torch.manual_seed(0)
    lstm = ConvLstm(5)
    maps, hidden, cell = torch.randn(4, 2, 3, 6, 5), torch.randn(2, 3, 6, 5), torch.randn(2, 3, 6, 5)
    outputs, last_hidden, last_cell = lstm(maps, hidden, cell)
    h, c = hidden.permute(0, 3, 1, 2), cell.permute(0, 3, 1, 2)
    for t in range(4):
        h, c = plain_step(lstm, maps[t].permute(0, 3, 1, 2), h, c)
        torch.testing.assert_close(outputs[t].permute(0, 3, 1, 2), h, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(last_hidden.permute(0, 3, 1, 2), h, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(last_cell.permute(0, 3, 1, 2), c, rtol=1e-5, atol=1e-6)


def test_weight_is_one_convolution_of_the_released_shape():
    assert {name: tuple(value.shape) for name, value in ConvLstm(96).state_dict().items()} == {
        "gates.weight": (384, 192, 1, 1),
        "gates.bias": (384,),
    }


def test_cell_stays_float32_under_autocast():
    lstm = ConvLstm(4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        _, hidden, cell = lstm(torch.randn(2, 1, 3, 3, 4), torch.zeros(1, 3, 3, 4), torch.zeros(1, 3, 3, 4))
    assert (hidden.dtype, cell.dtype) == (torch.float32, torch.float32)

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tespec.models.backbone import ConvLstm


def plain_step(lstm, x, hidden, cell):
    """One step with a convolution over (map, hidden), channels first."""
    forget, write, output, candidate = lstm.gates(torch.cat([x, hidden], dim=1)).chunk(4, dim=1)
    cell = forget.sigmoid() * cell + write.sigmoid() * candidate.tanh()
    return output.sigmoid() * cell.tanh(), cell


def test_outputs_and_gradients_are_those_of_step_by_step_convolutions():
    torch.manual_seed(0)
    lstm = ConvLstm(5)
    maps, hidden, cell = torch.randn(4, 2, 3, 6, 5), torch.randn(2, 3, 6, 5), torch.randn(2, 3, 6, 5)
    outputs, *last = lstm(maps, hidden, cell)
    h, c = hidden.permute(0, 3, 1, 2), cell.permute(0, 3, 1, 2)
    steps = []
    for t in range(4):
        h, c = plain_step(lstm, maps[t].permute(0, 3, 1, 2), h, c)
        steps.append(h.permute(0, 2, 3, 1))
    torch.testing.assert_close(outputs, torch.stack(steps), rtol=1e-5, atol=1e-6)
    for found, wanted in zip(last, (h, c), strict=True):
        torch.testing.assert_close(found.permute(0, 3, 1, 2), wanted, rtol=1e-5, atol=1e-6)
    ways = [torch.autograd.grad(each.square().sum(), lstm.parameters()) for each in (outputs, torch.stack(steps))]
    for found, wanted in zip(*ways, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


def test_weight_is_one_convolution_of_the_released_shape():
    assert {name: tuple(value.shape) for name, value in ConvLstm(96).state_dict().items()} == {
        "gates.weight": (384, 192, 1, 1),
        "gates.bias": (384,),
    }


def test_under_autocast_the_cell_stays_float32_and_weights_are_cast_once_for_all_segments():
    lstm, casts = ConvLstm(4), []

    class Casts(TorchDispatchMode):
        def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
            if operation is torch.ops.aten._to_copy.default and args[0].shape == (16, 4):
                casts.append(args[0].dtype)
            return operation(*args, **(kwargs or {}))

    with Casts(), torch.autocast("cpu", dtype=torch.bfloat16):
        outputs, hidden, cell = lstm(torch.randn(5, 1, 3, 3, 4), torch.zeros(1, 3, 3, 4), torch.zeros(1, 3, 3, 4))
    assert len(casts) == 2  # the weights of the map, and those of the hidden state
    assert (hidden.dtype, cell.dtype) == (torch.float32, torch.float32)
    outputs.sum().backward()
    assert torch.isfinite(lstm.gates.weight.grad).all()

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tespec.models.backbone import ConvLstm, _Cell, cell_backward, cell_forward


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


def plain_cell(sums, cell):
    """As autograd differentiates it, operation by operation."""
    channels = cell.shape[-1]
    forget, write, output = sums[..., : 3 * channels].sigmoid().chunk(3, dim=-1)
    cell = forget * cell + write * sums[..., 3 * channels :].tanh()
    return output * cell.tanh(), cell


def test_the_gradient_of_a_cell_is_that_of_its_operations():
    generator = torch.Generator().manual_seed(0)
    sums, cell = (torch.randn(2, 3, 4 * width, generator=generator, dtype=torch.float64) for width in (4, 1))
    sums.requires_grad_(), cell.requires_grad_()
    assert torch.autograd.gradcheck(lambda *given: _Cell.apply(*given, cell_forward, cell_backward), (sums, cell))
    single = [each.detach().float().requires_grad_() for each in (sums, cell)]
    found = _Cell.apply(*single, cell_forward, cell_backward)
    wanted = plain_cell(*single)
    weights = [torch.randn(each.shape, generator=generator) for each in wanted]
    ways = [
        torch.autograd.grad(sum((each * weight).sum() for each, weight in zip(pair, weights, strict=True)), single)
        for pair in (found, wanted)
    ]
    assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))
    assert all(torch.equal(one, other) for one, other in zip(*ways, strict=True))


def test_under_autocast_the_weights_are_cast_once_for_all_segments():
    lstm, casts = ConvLstm(4), []

    class Casts(TorchDispatchMode):
        def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
            if operation is torch.ops.aten._to_copy.default and args[0].shape == (16, 4):
                casts.append(args[0].dtype)
            return operation(*args, **(kwargs or {}))

    with Casts(), torch.autocast("cpu", dtype=torch.bfloat16):
        outputs, _, _ = lstm(torch.randn(5, 1, 3, 3, 4), torch.zeros(1, 3, 3, 4), torch.zeros(1, 3, 3, 4))
    assert len(casts) == 2  # the weights of the map, and those of the hidden state
    outputs.sum().backward()
    assert torch.isfinite(lstm.gates.weight.grad).all()

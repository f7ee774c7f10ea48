import pytest
import torch

from tespec.core.errors import UserError
from tespec.models import build_backbone
from tespec.models.execution import Execution, execute

SIZE = (64, 96)


def gradients(execution, name="micro", recurrent=True):
    torch.manual_seed(0)
    backbone = build_backbone(name, recurrent, 2, SIZE)
    execute(backbone, execution)
    histograms = torch.poisson(torch.full((2, 3, 4, *SIZE), 0.2)).to(torch.uint8)
    features, _ = backbone(histograms)
    sum(feature.square().mean() for feature in features).backward()
    return [feature.detach() for feature in features], [each.grad for each in backbone.parameters()]


@pytest.mark.parametrize(("name", "recurrent"), [("micro", True), ("micro", False), ("maxvit-micro", True)])
def test_computed_again_to_the_bit(name, recurrent):
    ways = (gradients(Execution(recompute=again), name, recurrent) for again in (False, True))
    for kept, again in zip(*ways, strict=True):
        assert all(torch.equal(one, other) for one, other in zip(kept, again, strict=True))


def test_computing_again_keeps_less():
    kept = {}
    for recompute in (False, True):
        backbone = build_backbone("micro", False, 2, SIZE)
        execute(backbone, Execution(recompute=recompute))
        sizes = {}

        def note(tensor, sizes=sizes):
            sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            features, _ = backbone(torch.ones(2, 3, 4, *SIZE))
        kept[recompute] = sum(sizes.values())
        assert features
    assert kept[True] < 0.3 * kept[False]


def test_fused_attention_differs_by_rounding():
    for plain, fused in zip(gradients(Execution()), gradients(Execution(fused_attention=True)), strict=True):
        for one, other in zip(plain, fused, strict=True):
            torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["micro", "resnet-micro"])
def test_channels_last_differ_by_rounding(name):
    ways = (gradients(Execution(channels_last=last), name, False) for last in (False, True))
    for plain, last in zip(*ways, strict=True):
        for one, other in zip(plain, last, strict=True):
            torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-5)


def test_what_is_left_open_is_on_where_a_run_is_to_be_fast():
    attention, convolution = "swin.layers.0.blocks.0.attn", "swin.patch_embed.proj"
    for execution, fast, fused, last in (
        (Execution(), False, False, False),
        (Execution(), True, True, True),
        (Execution(fused_attention=False, channels_last=False), True, False, False),
    ):
        backbone = build_backbone("micro", False, 2, SIZE)
        execute(backbone, execution, fast)
        assert backbone.get_submodule(attention).fused_attn == fused
        weight = backbone.get_submodule(convolution).weight
        assert weight.is_contiguous(memory_format=torch.channels_last) == last
        assert execution.facts(fast) == {name: True for name in ("fused_attention", "channels_last") if fused}
    execute(build_backbone("resnet-micro", False, 2, SIZE), Execution(), fast=True)


@pytest.mark.slow
def test_compiled_stages_differ_by_rounding():
    for plain, compiled in zip(gradients(Execution()), gradients(Execution(compiled=True)), strict=True):
        for one, other in zip(plain, compiled, strict=True):
            torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-5)


def test_what_does_not_go_together_is_refused():
    network = build_backbone("resnet-micro", False, 2, SIZE)
    with pytest.raises(UserError, match="--recompute: the backbone's batch normalisation would see every batch twice"):
        execute(network, Execution(recompute=True))
    with pytest.raises(UserError, match=r"--fused-attention: .* has no attention of this kind"):
        execute(network, Execution(fused_attention=True))

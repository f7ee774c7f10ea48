import pytest
import torch

from tespec.core.errors import UserError
from tespec.models import build_backbone
from tespec.models.backbone import execute

SIZE = (64, 96)
COMPILED = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # torch's compiler raises and hides warnings


def gradients(name="micro", recurrent=True, drop_path=0.0, **execution):
    torch.manual_seed(0)
    backbone = build_backbone(name, recurrent, 2, SIZE, drop_path=drop_path)
    execute(backbone, **execution)
    histograms = torch.poisson(torch.full((2, 3, 4, *SIZE), 0.2)).to(torch.uint8)
    features, _ = backbone(histograms)
    sum(feature.square().mean() for feature in features).backward()
    return [feature.detach() for feature in features], [each.grad for each in backbone.parameters()]


@pytest.mark.parametrize("drop_path", [0.0, 0.5])
@pytest.mark.parametrize(("name", "recurrent"), [("micro", True), ("micro", False), ("maxvit-micro", True)])
def test_computed_again_to_the_bit(name, recurrent, drop_path):
    ways = (gradients(name, recurrent, drop_path, recompute=again) for again in (False, True))
    for kept, again in zip(*ways, strict=True):
        assert all(torch.equal(one, other) for one, other in zip(kept, again, strict=True))


def test_computing_again_keeps_less():
    kept = {}
    for recompute in (False, True):
        backbone = build_backbone("micro", False, 2, SIZE)
        execute(backbone, recompute=recompute)
        sizes = {}

        def note(tensor, sizes=sizes):
            sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            features, _ = backbone(torch.ones(2, 3, 4, *SIZE))
        kept[recompute] = sum(sizes.values())
        assert features
    assert kept[True] < 0.3 * kept[False]


@pytest.mark.parametrize(
    ("name", "way"),
    [("micro", "fast"), ("resnet-micro", "fast"), pytest.param("micro", "compiled", marks=COMPILED)],
)
def test_other_ways_differ_by_rounding(name, way):
    recurrent = name == "micro"
    ways = gradients(name, recurrent), gradients(name, recurrent, **{way: True})
    for plain, other in zip(*ways, strict=True):
        for one, two in zip(plain, other, strict=True):
            torch.testing.assert_close(two, one, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("fast", [False, True])
def test_a_fast_run_has_fused_attention_and_channels_last(fast):
    backbone = build_backbone("micro", False, 2, SIZE)
    execute(backbone, fast=fast)
    assert backbone.get_submodule("swin.layers.0.blocks.0.attn").fused_attn == fast
    weight = backbone.get_submodule("swin.patch_embed.proj").weight
    assert weight.is_contiguous(memory_format=torch.channels_last) == fast


def test_batch_normalisation_is_not_computed_again():
    network = build_backbone("resnet-micro", False, 2, SIZE)
    with pytest.raises(UserError, match="--recompute: the backbone's batch normalisation would see every batch twice"):
        execute(network, recompute=True)

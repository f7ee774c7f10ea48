"""Execution modes of a backbone (recomputed, fast, compiled), and stochastic depth."""

import pytest
import torch
from loss_cases import own

from baselines.imagenet import Imagenet
from tespec.core.config import pretraining_settings
from tespec.core.errors import UserError
from tespec.models import build_backbone
from tespec.models.backbone import execute, lstm_cell
from tespec.models.layers import DropPath
from tespec.pretraining.contrast import momentum_copy
from tespec.training.loading import MicroBatches
from tespec.training.trainer import Trainer

SIZE = (64, 96)
# torch's compiler raises and hides warnings
COMPILED = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


def gradients(name="swin_micro", recurrent=True, drop_path=0.0, **execution):
    torch.manual_seed(0)
    backbone = build_backbone(name, recurrent, 2, SIZE, drop_path=drop_path)
    execute(backbone, **execution)
    features, _ = backbone(torch.poisson(torch.full((2, 3, 4, *SIZE), 0.2)).to(torch.uint8))
    sum(feature.square().mean() for feature in features).backward()
    grads = [parameter.grad for parameter in backbone.parameters()]
    return [feature.detach() for feature in features], grads


@pytest.mark.parametrize("drop_path", [0.0, 0.5])
@pytest.mark.parametrize(
    ("name", "recurrent"),
    [("swin_micro", True), ("swin_micro", False), ("maxvit_micro", True), ("vit_micro", True)],
)
def test_computed_again_to_the_bit(name, recurrent, drop_path):
    stored, recomputed = (
        gradients(name, recurrent, drop_path, recompute=recompute) for recompute in (False, True)
    )
    torch.testing.assert_close(recomputed, stored, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("name", "way"),
    [
        ("swin_micro", "fast"),
        ("resnet_micro", "fast"),
        ("vit_micro", "fast"),
        pytest.param("swin_micro", "compiled", marks=COMPILED),
    ],
)
def test_other_ways_differ_by_rounding(name, way):
    plain, other = (
        gradients(name, recurrent=name == "swin_micro", **execution)
        for execution in ({}, {way: True})
    )
    torch.testing.assert_close(other, plain, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("fast", [False, True])
def test_a_fast_run_has_fused_attention_and_channels_last(fast):
    backbone = build_backbone("swin_micro", False, 2, SIZE)
    execute(backbone, fast=fast)
    assert backbone.get_submodule("swin.layers.0.blocks.0.attn").fused_attn == fast
    weight = backbone.get_submodule("swin.patch_embed.proj").weight
    assert weight.is_contiguous(memory_format=torch.channels_last) == fast


def test_batch_normalisation_is_not_computed_again():
    network = build_backbone("resnet_micro", False, 2, SIZE)
    with pytest.raises(
        UserError,
        match="--recompute: the backbone's batch normalisation would see every batch twice",
    ):
        execute(network, recompute=True)


# Number of residual branches that can be dropped in each architecture; rates rise linearly over the
# blocks.
BRANCHES = {
    "swin_micro": 2 * 8 - 2,
    "resnet_micro": 4 - 1,
    "maxvit_micro": 2 * 8 - 2,
    "vit_micro": 2 * 4 - 2,
}
FRAMES = torch.randint(0, 4, (4, 1, 4, *SIZE), generator=torch.Generator().manual_seed(1))


def backbone(arch, rate):
    torch.manual_seed(0)
    model = build_backbone(arch, False, 2, SIZE, drop_path=rate)
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            # residual branches of a newly initialised ResNet are zero
            torch.nn.init.ones_(module.weight)
    return model


def test_a_branch_is_left_out_or_scaled_up_sample_by_sample():
    torch.manual_seed(0)
    branch = torch.randn(4000, 3, 2)
    out = DropPath(0.25)(branch)
    dropped = (out == 0).flatten(1).all(1)
    torch.testing.assert_close(out[~dropped], branch[~dropped] / 0.75)
    assert dropped.float().mean().item() == pytest.approx(0.25, abs=0.05)
    assert out.bfloat16().dtype == DropPath(0.25)(branch.bfloat16()).dtype


@pytest.mark.parametrize("arch", BRANCHES)
def test_rates_rise_block_by_block_and_nothing_is_dropped_outside_of_training(arch):
    model, without = backbone(arch, 0.9), backbone(arch, 0.0)
    rates = [module.drop_prob for module in model.modules() if isinstance(module, DropPath)]
    assert (len(rates), rates) == (BRANCHES[arch], sorted(rates))
    assert rates[-1] == pytest.approx(0.9)
    torch.testing.assert_close(model.eval()(FRAMES), without.eval()(FRAMES), rtol=0, atol=0)
    assert not torch.equal(*[model.train()(FRAMES)[0][-1] for _ in range(2)])


def test_a_teacher_drops_nothing():
    teacher = momentum_copy(backbone("swin_micro", 0.9).train())
    assert torch.equal(*[teacher(FRAMES)[0][-1] for _ in range(2)])


def test_a_batch_in_turns_drops_what_the_whole_batch_drops():
    settings, losses = pretraining_settings("imagenet", "sample").optimisation, []
    views, labels = (
        torch.randn(8, 1, 1, *SIZE, generator=torch.Generator().manual_seed(0)),
        torch.arange(8) % 3,
    )
    for parts in (1, 2):
        settings_of_loss = own("imagenet", mixup=0.0, cutmix=0.0)
        model = Imagenet(
            settings_of_loss, build_backbone("swin_micro", False, 2, SIZE, 1, drop_path=0.9), 3
        )
        trainer = Trainer(
            model, MicroBatches([[]] * parts), settings, seed=5, device=torch.device("cpu")
        )
        batches = zip(views.chunk(parts), labels.chunk(parts), strict=True)
        losses.append(
            trainer.train_step(*({"views": one, "labels": other} for one, other in batches))[
                "loss"
            ].item()
        )
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # torch's compiler warns
@pytest.mark.parametrize("arch", BRANCHES)
def test_what_is_compiled_is_one_graph(arch):
    network = build_backbone(arch, recurrent=True, bins=2, img_size=SIZE)
    inputs = {}
    for stage in network.stage_modules():
        stage.register_forward_pre_hook(lambda module, given: inputs.setdefault(module, given))
    network(FRAMES)
    assert len(inputs) == 4
    for stage, given in inputs.items():
        stage._forward_pre_hooks.clear()
        assert torch._dynamo.explain(stage)(*given).graph_break_count == 0
    gates = (torch.zeros(2, 12), torch.zeros(2, 3))
    assert torch._dynamo.explain(lstm_cell)(*gates).graph_break_count == 0

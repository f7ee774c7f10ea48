"""ECDDP: crops, masks, memory, and the freeze of prototypes.

`tests/published/test_ecddp.py` compares losses, starts and schedules with values of the authors'
functions.
"""

import dataclasses

import pytest
import torch
from loss_cases import SIZE, ecddp, events, own
from torch.nn.utils import get_total_norm

from baselines import ecddp as ecddp_file
from baselines.ecddp import Ecddp
from tespec.core.config import pretraining_settings
from tespec.core.errors import UserError
from tespec.models import build_backbone
from tespec.pretraining.dense import AttentionPool, cluster
from tespec.pretraining.masking import draw_spread_blocks
from tespec.pretraining.method import open_pretraining
from tespec.training.trainer import Trainer

SIZES = ((448, 448), (480, 512))


@torch.no_grad()
def test_the_student_sees_masked_views_and_the_teacher_the_whole_square(monkeypatch):
    torch.manual_seed(0)
    settings = own("ecddp", hidden=32, bottleneck=16, prototypes=24)
    model = Ecddp(settings, build_backbone("swin_micro", True, 10, (384, 640)))
    calls = {"student": [], "teacher": []}  # side of the frames, and whether they are masked
    for name, seen in calls.items():
        network = model.get_submodule(name)
        network.register_forward_pre_hook(
            lambda _, given, seen=seen: seen.append((given[0].shape[3], len(given) > 1))
        )
    sides, crops = [], ecddp_file.random_crops
    monkeypatch.setattr(
        ecddp_file, "random_crops", lambda frames, side: sides.append(side) or crops(frames, side)
    )
    named, _ = model.loss(
        {"histograms": torch.randint(0, 4, (1, 2, 20, 360, 640), dtype=torch.uint8)}
    )
    weighed = 0.5 * named["loss_patch"] + 0.1 * named["loss_context"] + 0.9 * named["loss_image"]
    torch.testing.assert_close(named["loss"], weighed)
    assert sides == [320, 224]
    of_student = [(192, True)] * 2 + [(96, False)] * 8
    assert calls == {"student": of_student, "teacher": [(224, False), (192, False), (192, False)]}


def test_masks_are_in_half_of_the_views_and_of_the_published_shares():
    torch.manual_seed(0)
    masks = draw_spread_blocks(500, 12, own("ecddp").mask_ratio, ecddp_file.MIN_BLOCK)
    masks = masks.flatten(0, 1).double()
    shares = masks.mean((1, 2))
    assert (shares > 0).sum() == 500
    assert shares.mean().item() == pytest.approx(0.065, abs=0.01)
    assert shares[shares > 0].mean().item() == pytest.approx(0.129, abs=0.01)
    assert shares.max() < 0.5 * 64 / 144


def test_memory_is_carried_over_the_segments_and_its_weights_are_trained():
    model = ecddp(recurrent=True)
    assert model.backbone is model.student.backbone  # which is fine-tuned
    model.loss(events(segments=3), None)[0]["loss"].backward()
    for lstm in model.backbone.lstms:
        of_hidden = lstm.gates.weight.grad[:, lstm.channels :]
        forget = lstm.gates.weight.grad[: lstm.channels]
        assert all(gradient.flatten(1).norm(dim=1).gt(0).all() for gradient in (of_hidden, forget))


@torch.no_grad()
def test_segments_of_a_sequence_share_views_and_masks_and_only_memory_tells_them_apart():
    """Feed-forward networks draw crops and masks anew for the second of two equal segments."""
    frame = events(lanes=2, segments=1)["histograms"]
    for recurrent, (lanes, segments) in ((True, (2, 2)), (False, (4, 1))):
        model, given = ecddp(recurrent=recurrent), []
        model.student.register_forward_pre_hook(lambda _, inputs, given=given: given.append(inputs))
        model.loss({"histograms": frame.expand(-1, 2, -1, -1, -1)})
        (views, masks), *_ = given
        assert views.shape[:2] == (lanes, segments)
        assert len(masks) == lanes
        if recurrent:
            assert torch.equal(views[:, 0], views[:, 1])
            maps = model.student(views, masks).unflatten(0, (lanes, segments))
            single = model.student(views[:, :1], masks)
            torch.testing.assert_close(maps[:, 0], single)
            assert not torch.allclose(maps[:, 1], single)


def test_single_segments_do_not_train_memory_and_are_refused():
    settings = pretraining_settings("tespec", "sample", ["objective=ecddp", "segments=1"])
    data = open_pretraining(settings, None, SIZE)
    with pytest.raises(
        UserError, match="segments: is 1, which trains no memory; set it to 2 or more"
    ):
        Ecddp.from_data(data)


def test_prototypes_are_trained_from_the_second_epoch_on_and_not_clipped_before():
    how = dataclasses.replace(
        pretraining_settings("ecddp", "paper").optimisation, steps=4, warmup_steps=0
    )
    trainer = Trainer(
        ecddp(frozen_prototypes=0.5), [events(4, 1)] * 4, how, seed=0, device=torch.device("cpu")
    )
    parameters, norms = [*trainer.model.parameters()], []
    trainer.optimizer.register_step_pre_hook(
        lambda *_: norms.append(get_total_norm([p.grad for p in parameters if p.grad is not None]))
    )
    prototypes = trainer.model.student.patches.directions
    for moves in (False, False, True, True):
        before = prototypes.clone()
        trainer.train_step(events(4, 1))
        trainer.step += 1
        assert torch.equal(prototypes, before) != moves
    torch.testing.assert_close(torch.stack(norms), torch.full((4,), 3.0))


@torch.no_grad()
def test_a_network_that_takes_any_size_is_the_one_built_for_that_size():
    flexible, *networks = (
        build_backbone("swin_micro", True, 10, size) for size in (SIZES[0], *SIZES)
    )
    flexible.allow_any_size()
    for size, network in zip(SIZES, networks, strict=True):
        network.load_state_dict(flexible.state_dict())
        frames = torch.randint(0, 4, (1, 20, *size), dtype=torch.uint8)
        found, _ = flexible.encode(flexible.embed_patches(frames).unsqueeze(1))
        torch.testing.assert_close(found, network(frames.unsqueeze(1))[0], rtol=1e-4, atol=1e-5)


def test_a_cluster_that_loses_all_tokens_stays_empty():
    equal = torch.rand(1, 4, 6).repeat(1, 2, 1)  # so that both clusters start at equal tokens
    assert cluster(equal, torch.tensor([[0, 4]])).sum(2).tolist() == [[8, 0]]


def test_pooling_is_attention_of_each_vector_to_itself_and_its_tokens():
    torch.manual_seed(0)
    pool, maps = AttentionPool(64).double(), torch.randn(2, 64, 6, 6).double()
    members = torch.rand(2, 3, 36) < 0.3
    members[:, 2] = False
    found = pool(maps, members)
    for lane, of_lane in enumerate(maps):
        tokens = (of_lane + pool.positions[0]).flatten(1).T
        for number in range(3):
            vector = pool.vector[0, 0]
            for layer in pool.layers:
                seen = layer.norm1(torch.stack([vector, *tokens[members[lane, number]]]))
                query, keys, values = (
                    each(seen).view(-1, 2, 32) for each in (layer.query, layer.key, layer.value)
                )
                weights = ((keys * query[0]).sum(2, keepdim=True) / 32**0.5).softmax(0)
                vector = vector + layer.project((weights * values).sum(0).flatten())
                vector = vector + layer.mlp(layer.norm2(vector))
            torch.testing.assert_close(found[lane, number], pool.norm(vector))
    everything = torch.ones(2, 1, 36, dtype=torch.bool)
    torch.testing.assert_close(pool(maps), pool(maps, everything))

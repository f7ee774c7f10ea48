import copy
import math
from types import SimpleNamespace

import pytest
import torch
from small_networks import distillation, histograms, own

from baselines.ecddp import Ecddp
from tespec.core.config import own_facts
from tespec.core.errors import UserError
from tespec.datasets.batches import draw_mask
from tespec.models import build_backbone
from tespec.pretraining.contrast import sinkhorn
from tespec.pretraining.data import EventData


def test_nothing_is_learned_by_teachers_but_by_following():
    model, data = distillation(), {"histograms": histograms()}
    assert not any(parameter.requires_grad for parameter in model.teacher.parameters())
    torch.manual_seed(0)
    model.loss(data, None)[0]["loss"].backward()
    assert all(parameter.grad is None for parameter in model.teacher.parameters())
    name = "backbone.swin.layers.0.blocks.0.mlp.fc1.weight"
    with torch.no_grad():
        model.student.get_parameter(name).add_(1.0)
    before = model.teacher.get_parameter(name).clone()
    model.after_step(0.0)
    torch.testing.assert_close(model.teacher.get_parameter(name), before + 0.1, rtol=1e-5, atol=1e-5)


def test_losses_of_a_student_that_knows_nothing_are_those_of_chance():
    model = distillation()
    for network in (model.student, model.teacher):
        for head in (network.patches, network.contexts, network.images):
            torch.nn.init.zeros_(head.perceptron[-1].weight)
    named, state = model.loss({"histograms": histograms()}, None)
    assert state is None
    for part in ("loss_patch", "loss_context", "loss_image"):
        assert named[part].item() == pytest.approx(math.log(24), abs=1e-3)


def test_ecddp_sees_crops_of_the_published_sizes_of_each_segment_by_itself(monkeypatch):
    settings = own_facts("ecddp", "paper")
    assert {name: settings[name] for name in ("crop", "large", "small", "local_views")} == {
        "crop": 320, "large": 192, "small": 96, "local_views": 8
    }  # fmt: skip
    torch.manual_seed(0)
    whole = build_backbone("micro", True, 10, (384, 640))
    heads = {"hidden": 32, "bottleneck": 16, "prototypes": 24, "clusters": 3}
    model = Ecddp(own("ecddp", "paper", **heads), whole)
    seen = []
    monkeypatch.setattr(type(whole), "encode", _spied(type(whole).encode, seen))
    frames = torch.randint(0, 4, (2, 3, 20, 360, 640), dtype=torch.uint8)

    def loss(histograms):
        torch.manual_seed(0)
        return model.loss({"histograms": histograms})[0]["loss"].item()

    with torch.no_grad():
        found = loss(frames)
        large, small = (6, 1, 48, 48, 24), (6, 1, 24, 24, 24)
        assert seen == [large] * 4 + [small] * 8
        assert loss(frames.flatten(0, 1).unsqueeze(1)) == found
        for segment in range(3):
            without = frames.clone()
            without[:, segment] = 0
            assert loss(without) != found


@pytest.mark.parametrize(("recurrent", "lanes"), [(False, [4, 4, 2]), (True, [1] * 10)])
def test_prototypes_are_balanced_over_as_many_windows_held_out_as_in_training(monkeypatch, recurrent, lanes):
    task = object.__new__(EventData)
    task.settings, task.method = SimpleNamespace(recurrent=recurrent, batch_size=4), Ecddp
    monkeypatch.setattr(Ecddp, "mask", lambda own: None)
    chunks = [SimpleNamespace(batch={"histograms": torch.full((1, 1, 2, 3, 3), number)}) for number in range(10)]
    monkeypatch.setattr(task, "chunks", lambda device: chunks)
    played = [batch["histograms"] for batch in task.val_batches(torch.device("cpu"))]
    assert [len(each) for each in played] == lanes
    assert torch.cat(played)[:, 0, 0, 0, 0].tolist() == list(range(10))


def _spied(encode, seen):
    def spy(backbone, tokens, state=None):
        assert state is None
        seen.append(tuple(tokens.shape))
        return encode(backbone, tokens, state)

    return spy


@pytest.mark.parametrize("name", ["large", "small"])
def test_views_of_broken_tokens_are_refused(name):
    with pytest.raises(UserError, match=rf"objective\.{name}: 40 px is no multiple of 32"):
        own("ecddp", **{name: 40})


@pytest.mark.parametrize("local_views", [1, 8])
def test_prototypes_are_named_and_balanced_at_hidden_patches_alone(local_views, monkeypatch):
    network, lanes = distillation(local_views=local_views), 3
    rows = {}
    for name in ("student", "teacher"):
        for head in ("patches", "images"):
            module = getattr(getattr(network, name), head)
            module.register_forward_hook(
                lambda _, given, out, key=(name, head): rows.setdefault(key, []).append(out.numel() // out.shape[-1])
            )
    balanced = []

    def spy(logits, *args):
        balanced.append(len(logits))
        return sinkhorn(logits, *args)

    masks = []

    def draw(*args):
        masks.append(draw_mask(*args))
        return masks[-1]

    monkeypatch.setattr("baselines.ecddp.sinkhorn", spy)
    monkeypatch.setattr("baselines.ecddp.draw_mask", draw)
    network.loss({"histograms": histograms(lanes)}, None)
    hidden = int(torch.stack(masks).sum())
    assert 0 < hidden < torch.stack(masks).numel()
    assert rows["student", "patches"] == rows["teacher", "patches"] == [hidden]
    assert sum(rows["student", "images"]) == (2 + local_views) * lanes
    assert sum(rows["teacher", "images"]) == 2 * lanes
    assert balanced[0] == hidden
    assert balanced[-1] == 2 * lanes


@torch.no_grad()
def test_a_network_that_takes_any_size_is_the_one_built_for_that_size():
    networks = []
    for size in ((448, 448), (480, 512)):
        torch.manual_seed(0)
        networks.append(build_backbone("micro", True, 10, size))
    smaller, larger = networks
    for size in ((448, 448), (480, 512)):
        frames = torch.randint(0, 4, (1, 20, *size), dtype=torch.uint8)
        wanted = (smaller if size == (448, 448) else larger)(frames.unsqueeze(1))[0]
        flexible = copy.deepcopy(smaller)
        flexible.take_any_size()
        found, _ = flexible.encode(flexible.embed_patches(frames).unsqueeze(1))
        for one, other in zip(found, wanted, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)

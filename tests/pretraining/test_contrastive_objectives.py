import copy
import math

import pytest
import torch
from torch.nn.functional import cross_entropy, normalize

from tespec.core.config import objective_facts
from tespec.core.errors import UserError
from tespec.metrics.probes import spread
from tespec.models import build_backbone
from tespec.pretraining.classification import Classification
from tespec.pretraining.clusters import cluster, pool
from tespec.pretraining.contrast import agreement, info_nce, sinkhorn
from tespec.pretraining.dense_distillation import DenseDistillation
from tespec.pretraining.image_contrast import ImageContrast
from tespec.pretraining.momentum import follow, momentum_at, teacher_of
from tespec.pretraining.momentum_contrast import MomentumContrast
from tespec.pretraining.predictive_coding import PredictiveCoding
from tespec.pretraining.views import draw_view, random_crops, random_views

SIZE = (64, 96)


def backbone(recurrent=False, channels=None, arch="micro", seed=0):
    torch.manual_seed(seed)
    return build_backbone(arch, recurrent, 10, SIZE, channels)


def histograms(lanes=3, segments=1, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 4, (lanes, segments, 20, *SIZE), generator=generator, dtype=torch.uint8)


def views(count=2, lanes=4):
    return torch.randn(lanes, count, 1, *SIZE, generator=torch.Generator().manual_seed(0))


def distillation(recurrent=False):
    sides = {"crop": 64, "large": 64, "small": 32}
    return DenseDistillation(
        backbone(recurrent), 32, 16, 24, clusters=3, local_views=1, **sides, mask_ratio=0.5, momentum=0.9
    )


OBJECTIVES = {
    "cpc": (
        lambda: PredictiveCoding(backbone(recurrent=True), 16, ahead=2, places=32, temperature=0.1),
        lambda: {"histograms": histograms(segments=4), "fresh": torch.ones(3, dtype=torch.bool)},
    ),
    "ecddp": (distillation, lambda: {"histograms": histograms()}),
    "moby": (lambda: MomentumContrast(backbone(channels=1), 32, 16, 8, 0.2, 0.9), lambda: {"views": views()}),
    "moby, resnet": (
        lambda: MomentumContrast(backbone(channels=1, arch="resnet-micro"), 32, 16, 8, 0.2, 0.9),
        lambda: {"views": views()},
    ),
    "classification": (
        lambda: Classification(backbone(channels=1), 3, 0.1),
        lambda: {"views": views(1), "labels": torch.tensor([0, 1, 2, 0])},
    ),
    "image contrast": (
        lambda: ImageContrast(backbone(), backbone(channels=1, seed=1), 32, 16, 0.1, 1.0),
        lambda: {"histograms": histograms(), "images": torch.randn(3, 1, 1, *SIZE)},
    ),
}


@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_few_steps_lower_the_loss_and_train_the_backbone(name):
    make, batch = OBJECTIVES[name]
    model, data = make(), batch()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.Adam(trained, 1e-3)
    losses = []
    for step in range(12):
        torch.manual_seed(0)  # the same views
        named, _ = model.loss(data, None)
        assert all(torch.isfinite(value).all() for value in named.values())
        optimizer.zero_grad()
        named["loss"].backward()
        losses.append(named["loss"].item())
        optimizer.step()
        if hasattr(model, "after_step"):
            model.after_step((step + 1) / 12)
    assert losses[-1] < losses[0] - 0.02
    used = model.student.backbone if name == "ecddp" else model.backbone
    assert all(parameter.grad is not None for parameter in used.parameters())


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


def test_momentum_rises_to_one():
    assert momentum_at(0.9, 0.0) == pytest.approx(0.9)
    assert momentum_at(0.9, 0.5) == pytest.approx(0.95)
    assert momentum_at(0.9, 1.0) == pytest.approx(1.0)
    student = torch.nn.Linear(2, 2)
    teacher = teacher_of(student)
    with torch.no_grad():
        student.weight.add_(2.0)
    follow(teacher, student, 0.75)
    torch.testing.assert_close(teacher.weight, student.weight - 1.5)


def test_contrast_with_the_others_of_the_batch_or_with_given_negatives():
    torch.manual_seed(0)
    queries, keys, queue = torch.randn(5, 4), torch.randn(5, 4), normalize(torch.randn(7, 4), dim=1)
    q, k = normalize(queries, dim=1), normalize(keys, dim=1)
    loss, _ = info_nce(queries, keys, 0.3)
    torch.testing.assert_close(loss, cross_entropy(q @ k.T / 0.3, torch.arange(5)))
    loss, found = info_nce(queries, keys, 0.3, queue)
    logits = torch.cat([(q * k).sum(1, keepdim=True), q @ queue.T], 1) / 0.3
    torch.testing.assert_close(loss, cross_entropy(logits, torch.zeros(5, dtype=torch.long)))
    assert found == (logits.argmax(1) == 0).float().mean()


def test_balanced_assignments_use_all_prototypes_alike():
    torch.manual_seed(0)
    logits = torch.randn(64, 8)
    logits[:, 0] += 3  # one that everybody likes
    assigned = sinkhorn(logits, 0.5)
    torch.testing.assert_close(assigned.sum(1), torch.ones(64))
    assert assigned.sum(0).max() < 1.5 * 64 / 8
    one_hot = torch.eye(8)[torch.arange(64) % 8]
    assert agreement(50 * one_hot, one_hot, 0.1).max() < 1e-3


def test_the_queue_keeps_the_newest_keys_in_training_alone():
    model, batch = MomentumContrast(backbone(channels=1), 32, 16, 6, 0.2, 0.9), {"views": views()}
    before = model.queues.clone()
    model.eval().loss(batch, None)
    assert torch.equal(model.queues, before)
    model.train()
    for _ in range(2):
        model.loss(batch, None)
    assert int(model.place) == 8 % 6
    assert not torch.equal(model.queues[:, :2], before[:, :2])
    torch.testing.assert_close(model.queues.norm(dim=-1), torch.ones(2, 6))


def test_too_few_segments_to_predict_are_refused():
    model = PredictiveCoding(backbone(recurrent=True), 16, ahead=2, places=32, temperature=0.1)
    with pytest.raises(UserError, match=r"objective.ahead: 2 segments do not reach 2 ahead"):
        model.loss({"histograms": histograms(segments=2), "fresh": torch.ones(3, dtype=torch.bool)}, None)


def test_clusters_find_groups_and_pooling_weighs_within_them():
    torch.manual_seed(0)
    centres = torch.eye(3, 6) * 5
    tokens = torch.stack([centres[[0] * 4 + [1] * 4 + [2] * 4] + 0.1 * torch.randn(12, 6)])
    nearest = cluster(tokens, 3)
    assert [len(set(nearest[0, part].tolist())) for part in (slice(0, 4), slice(4, 8), slice(8, 12))] == [1, 1, 1]
    assert len(set(nearest[0].tolist())) == 3
    pooled, there = pool(tokens, torch.zeros(1, 12), nearest, 3)
    assert there.all()
    torch.testing.assert_close(pooled[0, nearest[0, 0]], tokens[0, :4].mean(0))
    pooled, there = pool(tokens, torch.zeros(1, 12), torch.zeros(1, 12, dtype=torch.long), 2)
    assert there.tolist() == [[True, False]]
    assert torch.isfinite(pooled).all()


def test_views_are_crops_of_the_image_the_same_for_all_segments():
    frames = torch.arange(64 * 96).view(1, 1, 1, 64, 96).expand(2, 3, 1, 64, 96)
    torch.manual_seed(0)
    seen = random_views(frames, (32, 48), (0.05, 0.32))
    assert seen.shape == (2, 3, 1, 32, 48)
    assert torch.equal(seen[:, 0], seen[:, 2])
    assert not torch.equal(seen[0], seen[1])
    rows, columns = seen[0, 0, 0] // 96, seen[0, 0, 0] % 96
    assert (rows == rows[:, :1]).all()
    assert (columns == columns[:1]).all()
    for _ in range(50):
        rows, columns = draw_view(SIZE, SIZE, (1.0, 1.0))
        area = (rows.max() - rows.min() + 1) * (columns.max() - columns.min() + 1)
        assert 0.7 * 64 * 96 <= area <= 64 * 96


def test_a_crop_is_a_square_of_the_image_the_same_for_all_segments():
    frames = torch.arange(64 * 96).view(1, 1, 1, 64, 96).expand(5, 3, 1, 64, 96)
    torch.manual_seed(0)
    places = set()
    for lane in random_crops(frames, 40):
        assert lane.shape == (3, 1, 40, 40)
        top, left = divmod(int(lane[0, 0, 0, 0]), 96)
        assert torch.equal(lane, frames[0, :, :, top : top + 40, left : left + 40])
        places.add((top, left))
    assert len(places) > 1
    assert random_crops(frames, 80).shape == (5, 3, 1, 64, 80)
    assert torch.equal(random_crops(frames, 320), frames)
    # Every place can be drawn: the last row and column as well as the first.
    lanes = torch.arange(3 * 3).view(1, 1, 1, 3, 3).expand(200, 1, 1, 3, 3)
    assert set(random_crops(lanes, 2)[:, 0, 0, 0, 0].tolist()) == {0, 1, 3, 4}


def test_ecddp_sees_crops_of_the_published_sizes_of_the_last_segment_alone(monkeypatch):
    settings = objective_facts("ecddp", "paper")
    assert {name: settings[name] for name in ("crop", "large", "small", "local_views")} == {
        "crop": 320, "large": 192, "small": 96, "local_views": 8
    }  # fmt: skip
    torch.manual_seed(0)
    sides = {name: settings[name] for name in ("local_views", "crop", "large", "small")}
    whole = build_backbone("micro", True, 10, (384, 640))
    model = DenseDistillation(whole, 32, 16, 24, clusters=3, **sides, mask_ratio=0.4, momentum=0.9)
    seen = []
    monkeypatch.setattr(type(whole), "encode", _spied(type(whole).encode, seen))
    frames = torch.randint(0, 4, (2, 3, 20, 360, 640), dtype=torch.uint8)

    def loss(histograms):
        torch.manual_seed(0)
        return model.loss({"histograms": histograms})[0]["loss"].item()

    with torch.no_grad():
        found = loss(frames)
        large, small = (2, 1, 48, 48, 24), (2, 1, 24, 24, 24)
        assert seen == [large] * 4 + [small] * 8
        earlier, last = frames.clone(), frames.clone()
        earlier[:, :-1], last[:, -1] = 0, 0
        assert loss(earlier) == found
        assert loss(last) != found


def _spied(encode, seen):
    def spy(backbone, tokens, state=None):
        assert state is None
        seen.append(tuple(tokens.shape))
        return encode(backbone, tokens, state)

    return spy


@pytest.mark.parametrize("name", ["large", "small"])
def test_views_of_broken_tokens_are_refused(name):
    sides = {"crop": 64, "large": 64, "small": 32} | {name: 40}
    with pytest.raises(UserError, match=rf"objective\.{name}: 40 px is no multiple of 32"):
        DenseDistillation(backbone(), 32, 16, 24, clusters=3, local_views=1, **sides, mask_ratio=0.5, momentum=0.9)


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


def test_spread_tells_collapse_from_variety():
    torch.manual_seed(0)
    varied = spread(torch.randn(500, 16))
    assert varied.std == pytest.approx(1, abs=0.05)
    assert 14 < varied.rank <= 16
    collapsed = spread(torch.ones(500, 16) + 1e-6 * torch.randn(500, 16))
    assert collapsed.std < 1e-3
    assert collapsed.rank < 1.01
    assert spread(torch.ones(1, 4)) == (0, 0)

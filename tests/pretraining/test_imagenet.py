"""Image classification: folders, views, mixup and CutMix, and the loss, as in
microsoft/Swin-Transformer.
"""

import numpy as np
import pytest
import torch
from loss_cases import backbone, own
from PIL import Image

from baselines.imagenet import Imagenet
from tespec.core.config import pretraining_settings
from tespec.core.distributed import rank_computes
from tespec.core.errors import UserError
from tespec.pretraining.method import open_pretraining


def test_every_class_is_among_the_validation_images(tmp_path):
    for name, count in (("a", 700), ("b", 3), ("c", 2)):
        (tmp_path / name).mkdir()
        for number in range(count):
            Image.new("L", (40, 40)).save(tmp_path / name / f"{number}.png")
    for batch_size in (2, 100_000):
        task = open_pretraining(
            pretraining_settings("imagenet", "sample", [f"batch_size={batch_size}"]), tmp_path
        )
        labels = [each["labels"] for each in task.val_batches(torch.device("cpu"))]
        assert torch.cat(labels).bincount().tolist() == [70, 1, 1]
        assert max(map(len, labels)) <= 64


def network(**changes):
    return Imagenet(own("imagenet", channels=1, **changes), backbone(channels=1), 5)


def shares_of(model, frames):
    """Logarithms of the classes' shares: the norm comes before the mean."""
    return model.classifier(
        model.norm(model.backbone(frames)[0][-1][:, 0].flatten(2).mT).mean(1)
    ).log_softmax(1)


def test_images_are_mixed_in_training_alone():
    model, labels, frames = network(), torch.tensor([0, 3, 4, 1]), torch.randn(4, 1, 1, 64, 96)
    torch.nn.init.normal_(model.norm.weight)
    plain = -shares_of(model, frames)[range(4), labels].mean()
    validation = model.eval().loss({"views": frames, "labels": labels})[0]["loss"]
    torch.testing.assert_close(validation, plain, rtol=1e-5, atol=0)
    torch.manual_seed(0)
    views, shares = model.mix(frames.squeeze(1), labels)
    torch.manual_seed(0)
    found = model.train().loss({"views": frames, "labels": labels})[0]["loss"]
    wanted = -(shares * shares_of(model, views.unsqueeze(1))).sum(1).mean()
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


def test_validation_says_what_is_right_in_percent():
    model = network().eval()
    model.classifier.forward = lambda features: torch.eye(5)[2].expand(len(features), -1)
    found, _ = model.val_losses(
        {"views": torch.randn(4, 1, 1, 64, 96), "labels": torch.tensor([2, 1, 2, 2])}, None
    )
    assert found["accuracy"] == 75


def mixed(model, labels, seed=0):
    torch.manual_seed(seed)
    frames = labels.float().view(-1, 1, 1, 1).expand(-1, 1, 64, 64).clone()
    return model.mix(frames, labels)


def test_neighbours_are_mixed_by_mixup_or_cutmix_and_their_classes_alike():
    model, labels = network(smoothing=0.0), torch.tensor([0, 1, 2, 3, 4, 0, 1, 2])
    shares = {False: [], True: []}  # by mixup, by cutmix
    for seed in range(400):
        frames, targets = mixed(model, labels, seed)
        mean = (targets * torch.arange(5)).sum(1)
        torch.testing.assert_close(frames.mean((1, 2, 3)), mean, rtol=1e-4, atol=1e-4)
        pairs = {
            tuple(each.nonzero().flatten().tolist()) for each in targets if (each > 0).sum() > 1
        }
        assert pairs in ({(0, 1), (0, 4), (1, 2), (2, 3)}, set())
        shares[frames[0].unique().numel() == 2].append(targets[0].max().item())
    assert len(shares[True]) / 400 == pytest.approx(0.5, abs=0.08)
    assert (model.cfg.mixup, model.cfg.cutmix) == (0.8, 1.0)
    # mean of the larger share by Beta(1, 1)
    assert np.mean(shares[True]) == pytest.approx(0.75, abs=0.04)
    assert np.mean(shares[False]) == pytest.approx(0.77, abs=0.04)  # Beta(0.8, 0.8)
    with pytest.raises(
        UserError, match="batch_size: mixup and cutmix need an even batch, and a rank has 7 images"
    ):
        mixed(model, labels[:7])


def test_each_128_images_are_mixed_by_a_ratio_of_their_own():
    _, targets = mixed(network(smoothing=0.0), torch.arange(256) % 5)
    greatest = targets.amax(1)
    assert [
        len(part[part < 1].unique()) for part in (greatest[:128], greatest[128:], greatest)
    ] == [1, 1, 2]


@pytest.mark.parametrize("count", [8, 384])
def test_ranks_mix_what_one_mixes(count):
    model, labels = network(), torch.arange(count) % 5
    parts = []
    for part in range(2):
        with rank_computes(part=(part, 2)):
            parts.append(mixed(model, labels.chunk(2)[part]))
    for whole, *halves in zip(mixed(model, labels), *parts, strict=True):
        one, other = (
            {tuple(row.flatten().tolist()) for row in rows} for rows in (whole, torch.cat(halves))
        )
        assert one == other


def test_posterising_to_no_bits_makes_an_image_black():
    """The published RandAugment, of its largest magnitude, keeps none."""
    (view,) = Imagenet.views(own("imagenet"))
    (posterize,) = (each for each in view.transforms[2].ops if each.name.startswith("Posterize"))
    for bits, white in ((0, 0), (3, 224)):
        assert (
            posterize.aug_fn(Image.new("RGB", (1, 1), "white"), bits).getpixel((0, 0))
            == (white,) * 3
        )

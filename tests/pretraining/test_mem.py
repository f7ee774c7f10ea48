"""MEM against the published formulas (tum-vision/mem)."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from loss_cases import SIZE, TOKENIZER, events, histograms, own
from loss_cases import mem as network
from short_runs import setup_in

from baselines import mem, mem_tokenizer
from baselines.mem_tokenizer import MemTokenizer
from tespec.core.config import pretraining_settings
from tespec.core.distributed import rank_computes
from tespec.core.errors import UserError
from tespec.pretraining import masking
from tespec.pretraining.masking import block_mask, draw_blocks
from tespec.pretraining.tokens import gumbel_noise
from tespec.pretraining.views import (
    GEOMETRIC,
    PHOTOMETRIC,
    rand_augment,
    random_resized_crops,
    random_shifts,
    random_time_flips,
)
from tespec.runs.data import Data
from tespec.runs.identity import required_settings
from tespec.runs.pretrain import pretrain
from tespec.runs.validation import validate
from tespec.weights.files import read_tensors


def tokenizer(**changes):
    return MemTokenizer(own("mem-tokenizer", **(TOKENIZER | changes)))


def test_noise_is_gumbels_and_processes_draw_what_one_draws():
    torch.manual_seed(0)
    noise = gumbel_noise(torch.zeros(1, 100_000))
    assert noise.mean().item() == pytest.approx(0.5772, abs=0.02)
    assert noise.var().item() == pytest.approx(math.pi**2 / 6, rel=0.03)
    for draw in (
        lambda n: gumbel_noise(torch.zeros(n, 5, 2)),
        lambda n: draw_blocks(n, 6, 10, 0.5, 4),
        lambda n: random_time_flips(histograms(1).expand(n, -1, -1, -1, -1)),
        lambda n: random_shifts(histograms(1).expand(n, -1, -1, -1, -1), 8 / 64),
        lambda n: random_resized_crops(histograms(1).expand(n, -1, -1, -1, -1), (0.2, 1.0)),
        lambda n: rand_augment(histograms(1).expand(n, -1, -1, -1, -1), GEOMETRIC, "nearest"),
    ):
        torch.manual_seed(0)
        every = draw(4)
        for part in range(2):
            torch.manual_seed(0)
            with rank_computes(part=(part, 2)):
                assert torch.equal(draw(2), every[2 * part : 2 * part + 2])


def test_operations_are_drawn_as_published_and_are_the_same_for_all_frames_of_a_lane():
    torch.manual_seed(0)
    drawn, operations = (
        [],
        [lambda lane, level, _, number=n: drawn.append((number, level)) or lane for n in range(14)],
    )
    rand_augment(torch.zeros(4000, 1, 2, 3, dtype=torch.uint8), operations, "nearest")
    numbers, levels = (torch.tensor(each) for each in zip(*drawn, strict=True))
    assert len(drawn) == 8000  # two for each lane
    assert (numbers.bincount(minlength=14) / 8000).tolist() == pytest.approx(
        [1 / 14] * 14, abs=0.012
    )
    assert sorted((30 * levels).round().int().unique().tolist()) == [*range(-20, 21)]
    assert levels.mean().item() == pytest.approx(0, abs=0.01)
    counts = histograms(1, 1).expand(40, 3, -1, -1, -1)
    found = rand_augment(counts, GEOMETRIC, "nearest")
    assert torch.equal(found, found[:, :1].expand_as(found))
    assert {*found.unique().tolist()} <= {*counts.unique().tolist()}  # counts stay whole
    assert 0.1 < (found != counts).flatten(1).any(1).float().mean() < 1


def test_training_augments_images_of_the_tokenizer_and_counts_of_the_network(monkeypatch):
    seen, flipped = [], []
    for module in (mem, mem_tokenizer):
        monkeypatch.setattr(
            module, "rand_augment", lambda lanes, *args: seen.append((lanes, *args)) or lanes
        )
    monkeypatch.setattr(mem, "random_time_flips", lambda lanes: flipped.append(lanes) or lanes)
    tokenizer().train().loss(events(3, 1), None)
    network().train().loss(events(2, 1), None)
    network(True).train().loss(events(2, 1), None)  # memory would be displaced
    tokenizer().eval().loss(events(3, 1), None)
    images, counts = seen
    assert len(flipped) == 1
    assert images[0].shape == (3, 3, 64, 64)
    assert images[0].amax((1, 2, 3)).tolist() == [255] * 3
    assert images[1:] == (GEOMETRIC + PHOTOMETRIC, "bilinear")
    assert counts[0].shape == (2, 1, 4, *SIZE)
    assert counts[1][:6] == GEOMETRIC
    assert counts[1][6:] == GEOMETRIC[:1] * 8  # instead of the photometric ones
    assert counts[2] == "nearest"


def test_half_of_the_windows_are_played_backwards_and_all_are_shifted():
    assert own("mem-tokenizer").shift * 256 == 8
    counts = torch.zeros(400, 2, 6, 20, 30, dtype=torch.uint8)
    counts[:, 0, 1, 10, 15] = 1  # first segment, negative, second of three bins
    flipped = random_time_flips(counts)
    backwards = flipped[:, 1, 4, 10, 15] == 1  # last segment, positive, second bin from the end
    assert backwards.float().mean().item() == pytest.approx(0.5, abs=0.08)
    assert torch.equal(flipped[~backwards], counts[~backwards])
    moves = random_shifts(counts, 3 / 20).nonzero()
    assert len(moves) == 400
    assert {*(moves[:, 3] - 10).tolist()} == {*(moves[:, 4] - 15).tolist()} == set(range(-3, 4))
    assert random_shifts(counts, 1.0).sum() < 400  # events shifted out of the frame are lost


def test_blocks_are_smaller_than_published_if_few_patches_are_masked():
    assert block_mask(np.random.default_rng(0), 4, 5, 10, 16).any()
    with pytest.raises(UserError, match="1 x 9 patches are too few for blocks"):
        draw_blocks(2, 1, 9, 0.5, 16)


def test_what_is_named_is_what_is_masked_in_every_segment(monkeypatch):
    """Rows of tokens and of masks have different lengths if the backbone pads the frame."""
    model, seen, grid = network().eval(), [], (2, 2, 4, 6)  # lanes, segments, rows, columns
    logits = torch.randn(*grid, 24, generator=torch.Generator().manual_seed(0))
    tokens = (7 * torch.arange(2 * 2 * 4 * 6) % 24).view(grid)
    monkeypatch.setattr(
        masking, "replace_masked", lambda tokens, mask, patch: seen.append(mask) or tokens
    )
    model.head.forward = lambda features, places: logits.flatten(0, 3)[places]
    model.tokenizer.tokens = lambda images: tokens.flatten(0, 1)
    torch.manual_seed(1)
    losses, _ = model.loss(events(2, 2) | {"histograms": histograms(2, 2)[..., :50, :72]}, None)
    (mask,) = seen
    assert mask.shape == (2, 4, 5)
    assert not torch.equal(*mask)
    found, wanted = (
        logits[:, :, :4, :5].double().log_softmax(-1),
        tokens[:, :, :4, :5].unsqueeze(-1),
    )
    terms = found.gather(-1, wanted).squeeze(-1).movedim(1, -1)[mask]
    assert losses["loss"].item() == pytest.approx(-terms.mean().item(), rel=1e-5)


@pytest.mark.parametrize("unit", [4, 8, 16, 32])
@pytest.mark.parametrize("of", ["last", "all"])
def test_features_at_a_place_only_change_the_logits_of_its_patches(unit, of):
    model, grid, side = network(unit=unit, features=of), [side // unit for side in SIZE], 32 // unit
    strides = zip(model.backbone.channels, (4, 8, 16, 32), strict=True)
    features = [
        torch.zeros(1, 1, width, *(side // stride for side in SIZE)) for width, stride in strides
    ]
    everywhere = torch.arange(math.prod(grid))
    nothing = model.head(features, everywhere)
    features[-1][..., 1, 2] = 1.0
    moved = (model.head(features, everywhere) != nothing).any(-1).view(grid)
    assert moved[side : 2 * side, 2 * side : 3 * side].all()
    assert moved.sum() == side**2


@pytest.mark.slow
def test_the_tokenizer_is_pre_trained_first_and_stays_as_it_is(tiny_world, tmp_path, capsys):
    few = ["optimisation.steps=2", "optimisation.warmup_steps=1", "batch_size=2"]
    data, setup, names = Data(tiny_world / "1mpx", "sample"), setup_in(tmp_path), set()
    for more in ([], ["objective.tokenizer.tokens=16"]):
        resolved = pretraining_settings("mem", "sample", [*few, *more])
        record = pretrain("mem", resolved, data, 0, setup).record
        required = required_settings(resolved, "mem-tokenizer")
        first = pretrain("mem-tokenizer", required, data, 0, setup)
        assert f"{first.record.name} is already complete" in capsys.readouterr().err
        assert (required.optimisation.steps, required.batch_size, len(first.record.curve)) == (
            2,
            2,
            2,
        )
        assert record.start_sha256 == first.record.weights.sha256
        assert set(first.record.metrics) == {"loss", "perplexity", "drawn_error"}
        names.add(record.name)
    assert len(names) == 2
    model = network(tokenizer=own("mem-tokenizer", "sample", tokens=16))
    model.load_required(first.weights)
    torch.testing.assert_close(
        dict(model.tokenizer.state_dict()), read_tensors(first.weights)[0], rtol=0, atol=0
    )
    assert not any(each.requires_grad for each in model.tokenizer.parameters())


def test_a_tokenizer_that_collapsed_is_reported_and_tokens_count_over_all_batches(capsys):
    model, data = (
        tokenizer(),
        SimpleNamespace(size=SIZE, val_batches=lambda device: [events(3, 1)] * 2),
    )
    numbers = iter([0, 1] * 2)
    real = model.backbone.tokens
    model.backbone.tokens = lambda images: torch.full_like(real(images), next(numbers))
    assert validate(model, data, torch.device("cpu"))["perplexity"] == pytest.approx(2.0)
    torch.nn.init.zeros_(model.backbone.encoder[-1].weight)
    model.backbone.tokens = real
    assert validate(model, data, torch.device("cpu"))["perplexity"] == pytest.approx(1.0)
    assert (
        "the tokenizer collapsed: 1.00 of 24 tokens are in use on validation data"
        in capsys.readouterr().err
    )

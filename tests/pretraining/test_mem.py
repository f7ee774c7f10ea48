import dataclasses
import math

import pytest
import torch
from small_networks import SIZE, backbone, event_modelling, histograms, own

from baselines.mem import MODEL, TOKENIZE, Mem, event_image, gumbel_noise, hidden_units, perplexity
from tespec.core.config import pretraining_settings
from tespec.core.distributed import batch_part
from tespec.core.errors import UserError
from tespec.pretraining.method import new_network, open_pretraining
from tespec.runs.cost import ExecutionConfig, estimate_pretraining
from tespec.training.hooks import CurveHook
from tespec.training.trainer import Trainer

CPU = torch.device("cpu")
SETTINGS = dataclasses.replace(pretraining_settings("mem", "sample").optimisation, steps=6, warmup_steps=1)


def batch(lanes=3, segments=1, size=SIZE):
    fresh = torch.ones(lanes, dtype=torch.bool)
    return {"histograms": histograms(lanes, segments)[..., : size[0], : size[1]], "fresh": fresh}


def kept(module):
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}


def same(module, before):
    return all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())


def test_each_phase_leaves_the_other_ones_weights_and_moments_as_they_are():
    model = event_modelling()
    loop = Trainer(model, [batch()], SETTINGS, seed=0, device=CPU)
    parts = {name: getattr(model, name) for name in ("backbone", "tokenizer", "mask_patch", "head")}
    for loop.step in range(6):
        before, moments = {name: kept(part) for name, part in parts.items()}, loop.optimizer.state
        steps = {each: float(state["step"]) for each, state in moments.items()}
        losses = loop.train_step(batch())
        moved = {name for name, part in parts.items() if not same(part, before[name])}
        assert moved == ({"tokenizer"} if loop.step < 3 else {"backbone", "mask_patch", "head"})
        assert ("loss_drawn" in losses, "found" in losses) == (loop.step < 3, loop.step >= 3)
        still = [part for name, part in parts.items() if name not in moved]
        for each in (each for part in still for each in part.parameters() if each in steps):
            assert float(moments[each]["step"]) == steps[each]


def test_each_phase_has_a_schedule_of_its_own():
    model = event_modelling()
    tokenize, rest = model.phases(SETTINGS)
    assert (tokenize.steps, rest.steps) == (3, 3)
    assert (tokenize.clip.by, tokenize.clip.at) == ("norm", model.own.tokenizer.clip_norm)
    assert (tokenize.weight_decay.start, rest.weight_decay.start) == (0.0, 0.05)
    loop = Trainer(model, [batch()], SETTINGS, seed=0, device=CPU)
    rates = []
    for loop.step in range(6):
        loop.train_step(batch())
        rates.append(loop.optimizer.param_groups[0]["lr"])
    peak, start = model.own.tokenizer.peak_lr, SETTINGS.peak_lr / SETTINGS.start_divisor
    assert rates == pytest.approx(
        [peak, peak * (1 + 1 / 1.1) / 2, peak / 1.1, start, SETTINGS.peak_lr, SETTINGS.peak_lr / SETTINGS.end_divisor]
    )


@pytest.mark.parametrize(("steps", "in_last"), [(2, False), (3, True), (6, True)])
def test_a_training_taken_up_is_in_the_phase_that_its_steps_ended_in(steps, in_last):
    loop = Trainer(event_modelling(), [batch()], SETTINGS, seed=0, device=CPU)
    for loop.step in range(steps):
        loop.train_step(batch())
    loop.step = steps
    again = Trainer(event_modelling(), [batch()], SETTINGS, seed=0, device=CPU)
    again.load_state_dict(loop.state_dict())
    assert again.in_last_phase == in_last
    assert ("found" in again.model.loss(batch(), None)[0]) == in_last


def test_the_backbone_is_watched_in_its_own_phase_alone():
    settings = dataclasses.replace(SETTINGS, steps=8)
    model = event_modelling()
    assert [phase.steps for phase in model.phases(settings)] == [4, 4]
    curve = CurveHook(interval=1, probe_fn=lambda: {"std": 1.0})
    Trainer(model, [batch()] * 8, settings, seed=0, device=CPU, hooks=[curve]).run()
    assert [point["step"] for point in curve.probed] == [6, 8]


@pytest.mark.parametrize("steps", [2, 3, 100])
@pytest.mark.parametrize("share", [0.001, 0.31, 0.999])
def test_both_phases_have_a_step(steps, share):
    model = event_modelling()
    settings = own("mem", tokenizer=dataclasses.asdict(model.own.tokenizer) | {"share": share})
    phases = Mem(settings, backbone()).phases(dataclasses.replace(SETTINGS, steps=steps))
    assert min(phase.steps for phase in phases) >= 1
    assert sum(phase.steps for phase in phases) == steps


def test_a_single_step_is_refused():
    settings = pretraining_settings("mem", "sample")
    one = dataclasses.replace(settings, optimisation=dataclasses.replace(settings.optimisation, steps=1))
    with pytest.raises(UserError, match=r"optimisation\.steps: 1 is too few for two phases; give 2 or more"):
        new_network(one, open_pretraining(one, None, SIZE))


@pytest.mark.parametrize(("rows", "columns"), [(14, 14), (6, 10), (3, 2), (1, 1)])
@pytest.mark.parametrize("ratio", [0.0, 0.5, 1.0])
def test_blocks_hide_the_wanted_share_of_units(rows, columns, ratio):
    torch.manual_seed(0)
    units = hidden_units(8, rows, columns, ratio, 4)
    assert units.shape == (8, max(1, round(ratio * rows * columns)))
    for each in units.tolist():
        assert len(set(each)) == len(each)
        assert 0 <= min(each) <= max(each) < rows * columns


def test_hidden_units_lie_together():
    """Of the neighbours of a hidden unit, far more are hidden than of random units, where half of them is."""
    torch.manual_seed(0)
    mask = torch.zeros(64, 196).scatter_(1, hidden_units(64, 14, 14, 0.5, 16), 1.0).view(64, 14, 14)
    assert mask.sum((1, 2)).unique().tolist() == [98]
    together = (mask[:, :, 1:] * mask[:, :, :-1]).sum() / mask[:, :, 1:].sum()
    assert together > 0.8
    assert (mask.mean(0) > 0).all()  # none is spared always


def test_processes_draw_what_one_draws():
    logits = torch.zeros(4, 5, 2, 3)
    torch.manual_seed(0)
    units, noise = hidden_units(4, 6, 10, 0.5, 4), gumbel_noise(logits)
    for part in range(2):
        rows = slice(2 * part, 2 * part + 2)
        torch.manual_seed(0)
        with batch_part((part, 2)):
            assert torch.equal(hidden_units(2, 6, 10, 0.5, 4), units[rows])
            assert torch.equal(gumbel_noise(logits[rows]), noise[rows])


def test_noise_is_gumbels():
    torch.manual_seed(0)
    noise = gumbel_noise(torch.zeros(1, 100_000))
    assert noise.mean().item() == pytest.approx(0.5772, abs=0.02)
    assert noise.var().item() == pytest.approx(math.pi**2 / 6, rel=0.03)


def test_event_images_are_counts_of_each_polarity_without_hot_pixels():
    counts = torch.zeros(2, 20, 16, 16, dtype=torch.uint8)
    counts[0, 3, 2, 2] = counts[0, 4, 2, 2] = counts[0, 12, 5, 6] = 2
    found = event_image(counts, 25.0, 1.0)
    assert found.shape == (2, 2, 16, 16)
    assert (found[0, 0, 2, 2], found[0, 1, 5, 6]) == (1.0, 0.5)
    assert found.sum() == 1.5  # the second frame has no events
    counts[0, 0:10, 9, 9] = 10
    torch.testing.assert_close(event_image(counts, 10.0, 1.0), found)
    torch.testing.assert_close(event_image(counts, 10.0, 0.5), found.sqrt())


def test_what_is_named_is_what_is_hidden(monkeypatch):
    """Where a frame is smaller than what the backbone sees, places and masks count in rows of another length."""
    model, seen = event_modelling(), {}

    def hide(tokens, mask, patch):
        seen["mask"] = mask
        return tokens

    class Spy(torch.nn.Module):
        def forward(self, features, places):
            seen["places"] = places
            return torch.zeros(*places.shape[:1], features[-1].shape[1], places.shape[1], 24, requires_grad=True)

    monkeypatch.setattr("baselines.mem.replace_hidden", hide)
    model.head = Spy()
    losses, _ = model.loss(batch(size=(50, 72)), None)
    assert losses["loss"].item() == pytest.approx(math.log(24))
    rows, columns = seen["places"] // 6, seen["places"] % 6
    expected = torch.zeros(3, 4, 5, dtype=torch.bool)
    for lane in range(3):
        expected[lane, rows[lane], columns[lane]] = True
    assert torch.equal(seen["mask"], expected)
    assert seen["mask"].sum((1, 2)).tolist() == [10] * 3


@torch.no_grad()
def test_a_head_names_the_patch_at_each_place():
    """Features of one patch alone reach the logits of that patch alone, at every stride of the tokens."""
    for unit in (4, 8, 16, 32):
        for of in ("last", "all"):
            model = event_modelling(unit=unit, features=of)
            grid = [side // unit for side in SIZE]
            features = [torch.zeros(1, 1, width, *(side // s for side in SIZE))
                        for width, s in zip(model.backbone.channels, (4, 8, 16, 32), strict=True)]  # fmt: skip
            everywhere = torch.arange(math.prod(grid)).unsqueeze(0)
            nothing = model.head(features, everywhere)
            features[-1][..., 1, 2] = 1.0
            moved = (model.head(features, everywhere) != nothing).any(-1).view(grid)
            expected = torch.zeros(grid, dtype=torch.bool)
            side = 32 // unit
            expected[side : 2 * side, 2 * side : 3 * side] = True
            assert torch.equal(moved, expected)
            some = torch.tensor([[1, 0]])
            torch.testing.assert_close(model.head(features, some), model.head(features, everywhere)[:, :, [1, 0]])


def test_memory_is_carried_and_starts_afresh_where_a_recording_does():
    model, data = event_modelling(recurrent=True).eval(), batch(segments=2)

    def loss(state, fresh):
        torch.manual_seed(0)
        return model.loss(data | {"fresh": torch.full((3,), fresh)}, state)

    with torch.no_grad():
        first, state = loss(None, True)
        again, _ = loss(state, True)
        carried, _ = loss(state, False)
    assert again["loss"] == first["loss"] != carried["loss"]
    model.begin(TOKENIZE)
    assert loss(state, False)[1] is None


def test_a_tokenizer_learns_to_draw_with_several_tokens():
    torch.manual_seed(0)
    model = event_modelling()
    model.begin(TOKENIZE)
    frames = torch.zeros(4, 1, 20, *SIZE, dtype=torch.uint8)
    frames[:, :, 2, ::16, :48], frames[:, :, 13, :32, 50:80] = 3, 3
    data = {"histograms": frames, "fresh": torch.ones(4, dtype=torch.bool)}
    optimizer = torch.optim.Adam(model.tokenizer.parameters(), 3e-3)
    drawn = []
    for _ in range(60):
        losses, _ = model.loss(data, None)
        optimizer.zero_grad()
        losses["loss"].backward()
        optimizer.step()
        drawn.append(losses["loss_drawn"].item())
    assert sum(drawn[-5:]) < 0.5 * sum(drawn[:5])
    assert losses["perplexity"] > 1.5


def test_perplexity_is_the_number_of_tokens_in_use():
    assert perplexity(torch.tensor([5.0, 5.0, 0.0])).item() == pytest.approx(2.0)
    assert perplexity(torch.tensor([0.0, 7.0, 0.0])).item() == pytest.approx(1.0)


def test_a_collapse_is_reported(monkeypatch, capsys):
    task = open_pretraining(pretraining_settings("mem", "sample"), None, SIZE)
    monkeypatch.setattr(type(task), "val_batches", lambda self, device: iter([batch()] * 2))
    torch.manual_seed(0)
    model = new_network(task.settings, task)
    assert model.phase == MODEL
    torch.nn.init.zeros_(model.tokenizer.encoder[-1].weight)
    metrics = model.validate(task, CPU)
    assert metrics["perplexity"] == pytest.approx(1.0)
    assert (metrics["commonest"], metrics["tokens_used"]) == (1.0, 1 / 32)
    assert "the tokenizer collapsed: 1.00 of 32 tokens are in use on data held out" in capsys.readouterr().err
    assert set(metrics) >= {"loss", "found", "drawn_error", "feature_std", "last_stage_rank"}


def test_a_forecast_counts_both_phases():
    settings = pretraining_settings("mem", "sample")
    costs = []
    for share in (0.25, 0.75):
        tokenizer = settings.objective["tokenizer"] | {"share": share}
        changed = dataclasses.replace(settings, objective=settings.objective | {"tokenizer": tokenizer})
        estimate = estimate_pretraining(changed, SIZE)
        costs.append(estimate.cost(ExecutionConfig(half=False)))
        assert all(each.requires_grad for each in estimate.model.parameters())
    low, high = (cost.flops for cost in costs)
    # What each phase's step takes follows from the two means, and neither is for free.
    tokenize, model = (3 * high - low) / 2, (3 * low - high) / 2
    assert min(tokenize, model) > 0.05 * max(tokenize, model)
    assert costs[0].memory == costs[1].memory

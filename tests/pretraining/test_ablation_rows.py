"""What each row of an ablation trains, built from its settings: the row's words, not its numbers."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tespec.comparison.published import read_ablations
from tespec.core.config import as_facts, pretraining_settings
from tespec.datasets.recording import reduced
from tespec.events import Events, window_histograms
from tespec.events.intensity import estimate_high_pass, estimate_intensity
from tespec.events.packing import load
from tespec.events.stream import Reader
from tespec.pretraining.method import new_network, open_pretraining

PROFILE = "sample"


def hides(ratio):
    def check(row):
        mask = row.batch["mask"]
        assert int(mask.sum()) == round(ratio * mask[0].numel()) * len(mask)
        losses, _ = row.network.loss(row.batch, None)
        assert losses["loss"] > 0
        drawn, _ = row.network.reconstruct(row.batch, None)
        assert bool(drawn.masked.any()) == bool(ratio)
        losses["loss"].backward()
        assert row.network.backbone.swin.patch_embed.proj.weight.grad.abs().sum() > 0

    return check


def steps(share):
    return lambda row: _equal(row.settings.optimisation.steps, round(share * row.default.optimisation.steps))


def reconstructs(estimate, **constants):
    def check(row):
        drawn, _ = row.network.reconstruct(row.batch, None)
        wanted, _ = estimate(row.batch["histograms"], **constants)
        torch.testing.assert_close(drawn.video.squeeze(2), wanted)

    return check


def reconstructs_histograms(row):
    drawn, (_, state) = row.network.reconstruct(row.batch, None)
    assert torch.equal(drawn.video, row.batch["histograms"].float())
    assert state.numel() == 0


def pretrains_on(dataset, sensor, size, kept):
    """The paper's settings on a sensor of that size give histograms of `size` that hold a share of all events."""

    def check(row):
        settings = row.papers
        assert settings.dataset == dataset
        region = reduced(*sensor, settings.downsample)
        y, x = (each.ravel().astype(np.uint16) for each in np.mgrid[: sensor[0], : sensor[1]])
        events = Events(x, y, np.arange(x.size, dtype=np.int64) // 100, np.zeros(x.size, np.uint8))
        stream = load(Reader(Path("arrays"), *sensor, x.size, lambda: iter([events])))
        found = window_histograms(stream, np.array([[0, x.size]]), 10, rule=settings.rule, region=region)
        assert found.shape == (1, 20, *size)
        assert int(found.sum(dtype=np.int64)) == kept * x.size

    return check


def normalises(wanted):
    def check(row):
        drawn, _ = row.network.reconstruct(row.batch, None)
        assert torch.equal(drawn.target, drawn.video) != wanted
        if wanted:
            unit = row.network.own.mask.unit
            whole = drawn.target[..., : unit * (drawn.target.shape[-2] // unit), :unit].unflatten(-2, (-1, unit))
            assert whole.mean((-2, -1)).abs().max() < 1e-4

    return check


def learns_by(name, recurrent=True):
    def check(row):
        assert type(row.network).__name__ == name
        assert row.network.backbone.recurrent == recurrent
        losses, _ = row.network.loss(row.batch, None)
        assert torch.isfinite(losses["loss"])

    return check


def _equal(found, wanted):
    assert found == wanted


N = 3000.0  # of the sample profile
ROWS = {
    "masking": {"0%": hides(0.0), "25%": hides(0.25), "50%": hides(0.5), "75%": hides(0.75)},
    "steps": {"200k": steps(0.5), "300k": steps(0.75), "400k": steps(1), "500k": steps(1.25)},
    "norm_events": {
        "500": reconstructs(estimate_intensity, norm_events=N / 10),
        "5,000": reconstructs(estimate_intensity, norm_events=N),
        "50,000": reconstructs(estimate_intensity, norm_events=N * 10),
        "200,000": reconstructs(estimate_intensity, norm_events=N * 40),
    },
    "target": {
        "Histograms": reconstructs_histograms,
        "Eq. 6": reconstructs(estimate_high_pass),
        "Eq. 7": reconstructs(estimate_intensity, norm_events=N),
    },
    "target_ddd17": {
        "Eq. 6": reconstructs(estimate_high_pass),
        "Eq. 7": reconstructs(estimate_intensity, norm_events=N),
    },
    "dataset": {
        "Gen1": pretrains_on("gen1", (240, 304), (240, 304), 1),
        "1Mpx": pretrains_on("1mpx", (720, 1280), (360, 640), 0.25),
    },
    "patch_norm": {"w/o norm": normalises(False), "w/ norm": normalises(True)},
    "objective": {
        "CPC": learns_by("Cpc"),
        "ECDDP": learns_by("Ecddp"),
        "MAE": learns_by("Tespec"),
    },
    "memory": {
        "without": learns_by("Tespec", recurrent=False),
        "with": learns_by("Tespec"),
    },
}


def test_patches_of_every_target_are_normalised(tiny_world):
    """A guard as large as the patches' own variance would switch the normalisation off."""
    found = {}
    for row in read_ablations()["target"].rows:
        changes = row.changes(as_facts(pretraining_settings("tespec", PROFILE)))
        task = open_pretraining(pretraining_settings("tespec", PROFILE, changes), tiny_world / "1mpx")
        losses, _ = new_network(task.settings, task).loss(task.steps(0)[0], None)
        found[row.name] = losses["loss_zero"].item()
    assert all(0.5 < each <= 1 for each in found.values()), found


def test_every_row_is_checked():
    assert {name: [row.name for row in each.rows] for name, each in read_ablations().items()} == {
        name: list(rows) for name, rows in ROWS.items()
    }


@pytest.mark.parametrize(("name", "row"), [(name, row) for name, rows in ROWS.items() for row in rows])
def test_a_row_trains_what_it_says(tiny_world, name, row):
    (facts,) = (each for each in read_ablations()[name].rows if each.name == row)
    default, settings, papers = (
        pretraining_settings("tespec", profile, facts.changes(as_facts(pretraining_settings("tespec", profile))) * own)
        for profile, own in ((PROFILE, 0), (PROFILE, 1), ("paper", 1))
    )
    task = open_pretraining(replace(settings, batch_size=1), tiny_world / "1mpx")
    torch.manual_seed(0)
    ROWS[name][row](
        SimpleNamespace(
            settings=settings,
            default=default,
            papers=papers,
            network=new_network(settings, task),
            batch=task.steps(0)[0],
        )
    )

"""Each ablation row trains what its name says: network and batch of the sample profile, settings of
the paper's.
"""

from functools import partial

import pytest
import torch

from tespec.comparison.published import read_ablations
from tespec.core.config import as_facts, pretraining_settings
from tespec.datasets.recording import downsampled_region
from tespec.events.intensity import estimate_high_pass, estimate_intensity
from tespec.pretraining.method import open_pretraining


def masks(ratio, network, batch, settings):
    mask = network.draw_mask(batch["histograms"])
    assert int(mask.sum()) == round(ratio * mask[0].numel()) * len(mask)


def reconstructs(estimate, network, batch, settings):
    drawn, _ = network.reconstruct(batch, None, network.draw_mask(batch["histograms"]))
    torch.testing.assert_close(drawn.video.squeeze(2), estimate(batch["histograms"])[0])
    # Patches are normalised, which an epsilon as large as their variance would prevent.
    assert 0.5 < network.loss(batch, None)[0]["loss_zero"].item() <= 1


def normalises(wanted, network, batch, settings):
    drawn, _ = network.reconstruct(batch, None, network.draw_mask(batch["histograms"]))
    assert torch.equal(drawn.target, drawn.video) != wanted


def is_trained_on(dataset, sensor, size, network, batch, settings):
    region = downsampled_region(*sensor, settings.downsample)
    assert (settings.dataset, region.height, region.width) == (dataset, *size)


def learns_by(name, recurrent, network, batch, settings):
    assert (type(network).__name__, network.backbone.recurrent) == (name, recurrent)


by_eq_6 = partial(reconstructs, estimate_high_pass)
by_eq_7 = {
    n: partial(reconstructs, partial(estimate_intensity, norm_events=n))
    for n in (500, 5000, 5e4, 2e5)
}
histograms = partial(reconstructs, lambda counts: (counts.float(),))
# tests/comparison/test_published.py covers the ablation of steps.
ROWS = {
    "masking": {f"{100 * ratio:.0f}%": partial(masks, ratio) for ratio in (0.0, 0.25, 0.5, 0.75)},
    "norm_events": dict(zip(("500", "5,000", "50,000", "200,000"), by_eq_7.values(), strict=True)),
    "target": {"Histograms": histograms, "Eq. 6": by_eq_6, "Eq. 7": by_eq_7[5000]},
    "target_ddd17": {"Eq. 6": by_eq_6, "Eq. 7": by_eq_7[5000]},
    "dataset": {
        "Gen1": partial(is_trained_on, "gen1", (240, 304), (240, 304)),
        "1Mpx": partial(is_trained_on, "1mpx", (720, 1280), (360, 640)),
    },
    "patch_norm": {"w/o norm": partial(normalises, False), "w/ norm": partial(normalises, True)},
    "objective": {
        name: partial(learns_by, kind, True)
        for name, kind in (("CPC", "Cpc"), ("ECDDP", "Ecddp"), ("MAE", "Tespec"))
    },
    "memory": {
        "without": partial(learns_by, "Tespec", False),
        "with": partial(learns_by, "Tespec", True),
    },
}


def test_every_row_is_checked():
    found = {
        name: [row.name for row in each.rows]
        for name, each in read_ablations().items()
        if name != "steps"
    }
    assert found == {name: list(rows) for name, rows in ROWS.items()}


@pytest.mark.parametrize(
    ("name", "row"), [(name, row) for name, rows in ROWS.items() for row in rows]
)
def test_a_row_trains_what_it_says(tiny_world, name, row):
    (facts,) = (each for each in read_ablations()[name].rows if each.name == row)
    settings, papers = (
        pretraining_settings(
            "tespec", profile, facts.changes(as_facts(pretraining_settings("tespec", profile)))
        )
        for profile in ("sample", "paper")
    )
    data = open_pretraining(settings, tiny_world / "1mpx")
    torch.manual_seed(0)
    ROWS[name][row](data.method.from_data(data), data.steps(0)[0], papers)

"""Twins read alike in every layout; defects are refused with a one-line error or handled."""

import dataclasses

import numpy as np
import pytest

from tespec.core.errors import UserError
from tespec.core.settings import Binning
from tespec.datasets.check import check, problems
from twins import copied, opened
from twins.broken import DEFECTS
from twins.layouts import LAYOUTS, relayout


def read(root, dataset, *changes):
    return opened(root, dataset, "downsample.factor=1", "downsample.to_width=null", *changes)


@pytest.mark.parametrize(
    ("dataset", "layout"), [(each, layout) for each in LAYOUTS for layout in LAYOUTS[each]]
)
def test_every_layout_holds_the_same_recordings(tiny_world, tmp_path, dataset, layout):
    archive, root = layout == "rvt-archive", copied(tiny_world, tmp_path, dataset)
    relayout(root, dataset, layout)
    found, halved = (
        read(root, dataset),
        ["downsample.factor=2", "protocol.min_side=3", "downsample.keep=nearest"],
    )
    raw = read(tiny_world / dataset, dataset, *(halved if archive and dataset == "1mpx" else []))
    assert problems(list(check(found))) == []
    for split in raw.splits:
        for one, other in zip(raw.recordings(split), found.recordings(split), strict=True):
            assert (one.name, one.label_times.tolist()) == (other.name, other.label_times.tolist())
            for index in range(0, len(one.labels), 5):
                np.testing.assert_equal(one.labels[index], other.labels[index])
            np.testing.assert_array_equal(one.ego_speed, other.ego_speed)
            # In an archive, windows before the first label may begin elsewhere.
            begins = [
                each.windows[each.label_indices[1:] if archive else slice(None), 0]
                for each in (one, other)
            ]
            np.testing.assert_array_equal(*begins)
            one = dataclasses.replace(one, windows=other.windows)
            for window in range(0, len(other), 3 if archive else 20):
                args = window, 1, Binning(10, "rvt" if archive else "edges")
                np.testing.assert_array_equal(one.histograms(*args), other.histograms(*args))


@pytest.mark.parametrize(
    ("dataset", "defect"), [(each, defect) for each in DEFECTS for defect in DEFECTS[each]]
)
def test_every_broken_twin_is_refused_in_a_line_or_handled(tiny_world, tmp_path, dataset, defect):
    root, (spoil, expected) = copied(tiny_world, tmp_path, dataset), DEFECTS[dataset][defect]
    spoil(root)
    try:
        found = list(check(read(root, dataset)))
        lines, quick = problems(found), problems(list(check(read(root, dataset), quick=True)))
    except UserError as error:
        lines = quick = [str(error)]
    assert all("\n" not in line and "; " in line and str(root) in line for line in lines)
    assert (
        any(expected in line for line in lines)
        == any(expected in line for line in quick)
        == bool(expected)
    ), lines
    if defect == "unsorted":
        assert max(each.facts["events_clamped"] for each in found) > 0

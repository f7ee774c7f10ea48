"""A share of the training labels: which ones, that they are the same for all networks, and that no other is seen."""

from __future__ import annotations

import numpy as np
import pytest

from tespec.core.config import names
from tespec.datasets.recording import van_der_corput_order, with_label_share
from tespec.runs.data import Data, settings_of
from tespec.tasks import build_task


@pytest.mark.parametrize("count", [1, 2, 7, 64, 100])
def test_every_beginning_is_spread_evenly(count):
    order = van_der_corput_order(count)
    assert sorted(order.tolist()) == list(range(count))
    for kept in range(1, count + 1):
        gaps = np.diff([-1, *sorted(order[:kept].tolist()), count])
        assert gaps.max() <= 2 * count / kept + 1


def built(world, task, arch, share=1.0):
    changes = [f"label_share={share}", "batch_size=4", "labels_per_chunk=null", "sampling=clips"]
    return build_task(settings_of(Data(world / task, "sample"), task, arch, None, changes), world / task)


@pytest.mark.parametrize("task", names("tasks"))
def test_networks_of_both_kinds_learn_from_the_same_labels_and_a_larger_share_holds_a_smaller_one(tiny_world, task):
    def learned(arch, share):
        return [set(each.label_times.tolist()) for each in built(tiny_world, task, arch, share).learned]

    fifth, half, every = (learned("recurrent", share) for share in (0.2, 0.5, 1.0))
    assert half == learned("feedforward", 0.5)
    for few, more, all_of_them in zip(fifth, half, every, strict=True):
        assert few < more < all_of_them
        assert len(few) == max(1, round(0.2 * len(all_of_them)))


@pytest.mark.parametrize(("task", "arch"), [("ddd17", "recurrent"), ("gen1", "feedforward"), ("gen1", "recurrent")])
def test_no_other_label_is_seen_and_each_of_them_is(tiny_world, task, arch, monkeypatch):
    one = built(tiny_world, task, arch, 0.2)
    wanted, seen = {(each.name, time) for each in one.learned for time in each.label_times.tolist()}, set()
    steps = one.steps(0)
    monkeypatch.setattr(steps, "_collate", lambda labels, size: {})
    for step in range(60):
        for row, (lane, slot) in enumerate(zip(steps._share, steps._slots(step), strict=True)):
            recording = steps._labelled[slot.recording]
            name = recording.name.partition(" (part ")[0]
            chosen = steps._choose(recording.labels_in(slot.first, steps.segments), lane, step)
            assert len(chosen) > 0, row
            seen |= {(name, int(recording.label_times[label])) for label in chosen}
    assert seen == wanted


def test_a_label_and_its_speed_stay_with_their_window(tiny_world):
    (whole, *_) = built(tiny_world, "ddd17", "recurrent").train
    (few, *_) = with_label_share([whole], 0.3)
    assert np.array_equal(few.windows, whole.windows)
    for index, number in enumerate(np.searchsorted(whole.labelled, few.labelled).tolist()):
        assert np.array_equal(few.labels[index], whole.labels[number])
        assert few.ego_speed[index] == whole.ego_speed[number]
    part = few.part(int(few.labelled[1]), len(few))
    assert np.array_equal(part.labels[0], few.labels[1])
    assert few.labels.checksums() == whole.labels.checksums()
    assert with_label_share([whole], 1.0) == [whole]

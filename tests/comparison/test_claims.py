"""Claims on made-up records of known effects."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tespec.comparison.ablations import ablations
from tespec.comparison.claim_scores import measured_scores, parsed, published_scores
from tespec.comparison.claims import (
    Claim,
    Comparison,
    Finding,
    decide,
    findings,
    points,
    read_claims,
    tasks_of,
)
from tespec.comparison.claims_table import claims_tables
from tespec.comparison.records import Record
from tespec.comparison.render_text import render_text
from tespec.comparison.statistics import Interval
from tespec.config import as_facts, names, pretraining_settings
from tespec.errors import UserError

Make = Callable[..., Record]
ONE = Claim("one", "tespec is better", "nowhere", (Comparison("gain", ("a",), ("b",)),), ("ddd17",))


def fixed(**scores: dict[int, float]):
    """Scores that do not depend on the task."""
    return lambda cell, task: scores.get(cell, {})


def test_a_clear_gain_holds_and_its_interval_is_student_s():
    (found,) = findings(ONE, fixed(a={0: 45.0, 1: 46.1, 2: 47.2}, b={0: 40.0, 1: 41.0, 2: 42.0}))
    assert found.effect == pytest.approx(5.1)
    assert found.interval is not None
    assert (found.interval.low, found.interval.high) == pytest.approx((4.8516, 5.3484), abs=1e-4)
    assert (found.seeds, found.verdict, decide([found])) == (3, "holds", "holds")


def test_a_clear_loss_does_not_hold_and_noise_is_undecided():
    (loss,) = findings(ONE, fixed(a={0: 35.0, 1: 36.1, 2: 37.2}, b={0: 40.0, 1: 41.0, 2: 42.0}))
    (noise,) = findings(ONE, fixed(a={0: 45.0, 1: 36.0, 2: 42.0}, b={0: 40.0, 1: 41.0, 2: 42.0}))
    assert (loss.verdict, noise.verdict) == ("does not hold", "undecided")


def test_one_seed_decides_nothing():
    (found,) = findings(ONE, fixed(a={0: 90.0}, b={0: 10.0}))
    assert (found.effect, found.interval, found.verdict) == (80.0, None, "undecided")


def test_what_was_not_measured_has_no_effect():
    (found,) = findings(ONE, fixed(a={0: 90.0}))
    assert (found.effect, found.seeds, found.verdict) == (None, 0, "undecided")


def test_unpaired_seeds_are_compared_by_welch():
    # Equal variances of 1 and three values each: 4 degrees of freedom, t = 2.7764.
    (found,) = findings(ONE, fixed(a={0: 9.0, 1: 10.0, 2: 11.0}, b={3: 4.0, 4: 5.0, 5: 6.0}))
    margin = 2.7764 * (2 / 3) ** 0.5
    assert found.interval is not None
    assert (found.interval.low, found.interval.high) == pytest.approx((5 - margin, 5 + margin), abs=1e-3)
    assert found.verdict == "holds"


def test_pooling_averages_each_seed_over_tasks_first():
    claim = Claim("two", "", "", (Comparison("gain", ("a",), ("b",)),), ("ddd17", "dsec"))
    gains = {"ddd17": {0: 1.0, 1: 3.0}, "dsec": {0: 3.0, 1: 1.0}}
    found = findings(claim, lambda cell, task: gains[task] if cell == "a" else {0: 0.0, 1: 0.0})
    assert [each.task for each in found] == ["ddd17", "dsec", ""]
    pooled = found[-1]
    assert pooled.effect == 2.0
    assert pooled.interval == Interval(2.0, 2.0)
    assert [each.verdict for each in found] == ["undecided", "undecided", "holds"]


def test_a_difference_of_differences_adds_up():
    claim = Claim("did", "", "", (Comparison("", ("a", "d"), ("b", "c")),), ("ddd17",))
    (found,) = findings(claim, fixed(a={0: 10.0, 1: 10.5}, b={0: 4.0, 1: 4.4}, c={0: 7.0, 1: 7.0}, d={0: 6.0, 1: 6.1}))
    assert found.effect == pytest.approx(5.1)


def test_no_claim_holds_while_one_of_its_comparisons_does_not():
    good, bad = Interval(1.0, 2.0), Interval(-2.0, -1.0)
    found = [Finding("x", "ddd17", 9.0, good, 3), Finding("y", "ddd17", -1.5, bad, 3), Finding("all", "", 4.0, good, 3)]
    assert decide(found) == "undecided"
    assert decide([found[0], found[2]]) == "holds"
    # A single task may go the other way if the comparison as a whole does not.
    several = [*found[:1], Finding("x", "dsec", -1.0, bad, 3), Finding("x", "", 3.0, good, 3)]
    assert decide(several) == "holds"


def test_an_error_that_falls_by_a_tenth_is_a_gain_of_ten_points():
    assert points(0.9 * 4.0, "lower") - points(4.0, "lower") == pytest.approx(10.54, abs=0.01)
    assert points(41.0, "higher") == 41.0


def test_every_claim_names_cells_that_exist():
    registered = {"scratch", "imagenet", "moby", "ecddp", "tespec"}
    for claim in read_claims():
        for comparison in claim.comparisons:
            assert set(tasks_of(claim, comparison)) <= set(names("tasks"))
            for cell in comparison.cells:
                method, arch, _ = parsed(cell)
                assert method in registered
                assert arch in ("recurrent", "feedforward")
    with pytest.raises(UserError, match="no such row"):
        parsed("masking: 13%")
    with pytest.raises(UserError, match="is not METHOD/ARCHITECTURE"):
        parsed("tespec")


def test_the_paper_s_numbers_point_its_way():
    scores = published_scores()
    effects = {claim.name: findings(claim, scores)[-1].effect for claim in read_claims()}
    assert effects["tespec"] is not None
    assert effects.pop("memory") is None
    assert all(effect is not None and effect > 0 for effect in effects.values())
    masking = next(claim for claim in read_claims() if claim.name == "masking")
    assert findings(masking, scores)[1].effect == pytest.approx(62.774 - 55.619)


def measured(make: Make, name: str, arch: str, values: list[float], **changes: object) -> list[Record]:
    return [make(name, arch, seed=seed, miou=value, **changes) for seed, value in enumerate(values)]


def from_recipe(*changes: str) -> dict[str, object]:
    recipe = as_facts(pretraining_settings("tespec", "sample", changes))
    return {"weights": {"source": "backbone.safetensors", "sha256": " ".join(changes), "recipe": recipe}}


def test_records_decide_and_ablations_are_told_apart_by_their_recipe(record: Make):
    row = next(row for row in ablations()["target_ddd17"].rows if row.name == "Eq. 6")
    changes = row.changes(as_facts(pretraining_settings("tespec", "sample")))
    records = [
        *measured(record, "scratch", "recurrent", [40.0, 41.0, 42.0]),
        *measured(record, "scratch", "feedforward", [45.0, 46.5, 47.0]),
        *measured(record, "tespec", "recurrent", [44.0, 45.1, 46.2], **from_recipe()),
        *measured(record, "tespec", "recurrent", [42.0, 43.0, 44.1], **from_recipe(*changes)),
    ]
    scores = measured_scores(records)
    assert scores("target_ddd17: Eq. 6", "ddd17") == {0: 42.0, 1: 43.0, 2: 44.1}
    assert scores("tespec/recurrent", "ddd17") == {0: 44.0, 1: 45.1, 2: 46.2}
    short, long = claims_tables(records)
    verdicts = {row.facts["claim"]: row.cells[4].text for row in short.rows}
    assert verdicts["recurrent"] == "does not hold"
    assert verdicts["tespec"] == "holds"
    assert verdicts["target"] == "holds"
    assert verdicts["masking"] == "not measured"
    text = render_text(long)
    assert "Eq. 7 over Eq. 6" in text
    assert "not widened for the number of" in " ".join(text.split())


def test_a_verdict_that_needs_one_of_its_tasks_says_so(record: Make):
    scores = {"ddd17": ([40.0, 41.0, 42.0], [50.0, 51.1, 52.0]), "dsec": ([40.0, 41.0, 42.0], [39.0, 42.2, 41.9])}
    records = [
        each
        for task, (feedforward, recurrent) in scores.items()
        for arch, values in (("feedforward", feedforward), ("recurrent", recurrent))
        for each in measured(record, "scratch", arch, values, task=task)
    ]
    short, _ = claims_tables(records)
    (note,) = (note for note in short.notes if "without" in note)
    assert note.startswith("A recurrent network beats a feed-forward one: undecided without ddd17, pooled +0.03 (")


def test_another_profile_s_records_do_not_mix(record: Make):
    old = measured(record, "scratch", "recurrent", [10.0, 11.0], profile="paper", data="ddd17")
    for each in old:
        each["written"] = "2020-01-01T00:00:00+00:00"
    scores = measured_scores([*old, *measured(record, "scratch", "recurrent", [40.0])])
    assert scores("scratch/recurrent", "ddd17") == {0: 40.0}

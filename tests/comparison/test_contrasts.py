"""Claims on made-up records of known effects."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable

import pytest
from tespec.comparison.claims import (
    Claim,
    Comparison,
    claims_table,
    findings,
    measured_scores,
    parsed,
    published_scores,
    read_claims,
    tasks_of,
)

from tespec.comparison.ablations import ablations
from tespec.comparison.records import Record
from tespec.comparison.render import (
    render_csv,
    render_html,
    render_latex,
    render_long_csv,
    render_markdown,
    render_text,
)
from tespec.core.config import as_facts, names, pretraining_settings
from tespec.core.errors import UserError

Make = Callable[..., Record]
ONE = Claim("one", "tespec is better", "nowhere", (Comparison("gain", ("a",), ("b",)),), ("ddd17",))


def fixed(**scores: dict[int, float]):
    """Scores that do not depend on the task."""
    return lambda cell, task: scores.get(cell, {})


def test_the_interval_is_student_s_of_the_paired_differences():
    (found,) = findings(ONE, fixed(a={0: 45.0, 1: 46.1, 2: 47.2}, b={0: 40.0, 1: 41.0, 2: 42.0}))
    assert found.effect == pytest.approx(5.1)
    assert found.interval is not None
    assert (found.interval.low, found.interval.high) == pytest.approx((4.8516, 5.3484), abs=1e-4)
    assert found.seeds == 3


def test_one_seed_has_no_interval():
    (found,) = findings(ONE, fixed(a={0: 90.0}, b={0: 10.0}))
    assert (found.effect, found.interval, found.seeds) == (80.0, None, 1)


def test_what_was_not_measured_has_no_effect():
    (found,) = findings(ONE, fixed(a={0: 90.0}))
    assert (found.effect, found.interval, found.seeds) == (None, None, 0)


def test_unpaired_seeds_are_compared_by_welch():
    # Equal variances of 1 and three values each: 4 degrees of freedom, t = 2.7764.
    (found,) = findings(ONE, fixed(a={0: 9.0, 1: 10.0, 2: 11.0}, b={3: 4.0, 4: 5.0, 5: 6.0}))
    margin = 2.7764 * (2 / 3) ** 0.5
    assert found.interval is not None
    assert (found.interval.low, found.interval.high) == pytest.approx((5 - margin, 5 + margin), abs=1e-3)


def test_tasks_are_never_pooled():
    claim = Claim("two", "", "", (Comparison("gain", ("a",), ("b",)),), ("ddd17", "mvsec"))
    gains = {"ddd17": {0: 1.0, 1: 3.0}, "mvsec": {0: 0.3, 1: 0.1}}
    found = findings(claim, lambda cell, task: gains[task] if cell == "a" else {0: 0.0, 1: 0.0})
    assert [(each.task, each.effect) for each in found] == [("ddd17", 2.0), ("mvsec", pytest.approx(0.2))]
    every = [each for claim in read_claims() for each in findings(claim, published_scores())]
    assert all(each.task in names("tasks") for each in every)


def test_a_difference_of_differences_adds_up():
    claim = Claim("did", "", "", (Comparison("", ("a", "d"), ("b", "c")),), ("ddd17",))
    (found,) = findings(claim, fixed(a={0: 10.0, 1: 10.5}, b={0: 4.0, 1: 4.4}, c={0: 7.0, 1: 7.0}, d={0: 6.0, 1: 6.1}))
    assert found.effect == pytest.approx(5.1)


def test_an_effect_is_in_the_task_s_own_metric(record: Make):
    depth = {"task": "mvsec", "groups": {}, "recordings": {}}
    records = [
        *(record("scratch", metrics={"abs": value}, seed=seed, **depth) for seed, value in enumerate([5.0, 5.5, 6.0])),
        *(record("tespec", metrics={"abs": value}, seed=seed, **depth) for seed, value in enumerate([4.5, 5.1, 5.4])),
        *measured(record, "scratch", "recurrent", [40.0, 41.0, 42.0]),
        *measured(record, "tespec", "recurrent", [44.0, 45.1, 46.2]),
    ]
    table = claims_table(records)
    rows = {
        tuple(cell.text for cell in row.cells[:3]): row.cells[3]
        for row in table.rows
        if row.facts["title"] == "over no pre-training"
    }
    metres = rows["over no pre-training", "MVSEC", "Abs ↓"]
    assert metres.text == "+0.500"  # m nearer to the truth
    points = rows["over no pre-training", "DDD17", "mIoU ↑"]
    assert (points.text, points.runs) == ("+4.100", 3)
    assert points.interval == pytest.approx((4.1 - 0.2484, 4.1 + 0.2484), abs=1e-4)


def test_nothing_is_decided_and_a_sentence_says_why(record: Make):
    table = claims_table(
        [
            *measured(record, "scratch", "recurrent", [40.0, 41.0, 42.0]),
            *measured(record, "tespec", "recurrent", [44.0, 45.1, 46.2]),
        ]
    )
    for render in (render_text, render_csv, render_long_csv, render_latex, render_markdown, render_html):
        text = " ".join(render(table).split())
        assert not any(word in text for word in ("undecided", "does not hold", "holds", "pooled"))
    assert "No verdicts: a rule that decides each comparison on each task" in " ".join(render_text(table).split())


def test_the_long_csv_says_claim_task_and_interval(record: Make):
    table = claims_table(
        [
            *measured(record, "scratch", "recurrent", [40.0, 41.0, 42.0]),
            *measured(record, "tespec", "recurrent", [44.0, 45.1, 46.2]),
        ]
    )
    lines = list(csv.DictReader(io.StringIO(render_long_csv(table))))
    (line,) = (each for each in lines if (each["title"], each["source"]) == ("over no pre-training", "measured"))
    assert line["group"].startswith("In a recurrent network, TESPEC beats no pre-training")
    assert (line["task"], line["metric"], line["seeds"]) == ("ddd17", "miou", "3")
    assert (float(line["low_95"]), float(line["high_95"])) == pytest.approx((3.8516, 4.3484), abs=1e-4)
    wide = next(iter(csv.DictReader(io.StringIO(render_csv(table)))))
    assert not any((value or "").startswith("'") for value in wide.values())


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


def test_the_paper_s_own_differences_are_those_of_its_tables():
    scores = published_scores()
    found = {
        (claim.name, each.title, each.task): each.effect for claim in read_claims() for each in findings(claim, scores)
    }
    assert found["memory", "recurrent over feed-forward pre-training", "dsec"] is None
    assert found["masking", "50 % over none", "dsec"] == pytest.approx(62.774 - 55.619)
    assert found["tespec", "over no pre-training", "mvsec"] == pytest.approx(4.852 - 3.690)
    assert found["tespec", "over no pre-training", "1mpx"] == pytest.approx(50.6 - 45.4)
    # Of the two published numbers, that without test-time augmentation.
    assert found["recurrent", "ECDDP", "dsec"] == pytest.approx(59.820 - 59.142)


def measured(make: Make, name: str, arch: str, values: list[float], **changes: object) -> list[Record]:
    return [make(name, arch, seed=seed, miou=value, **changes) for seed, value in enumerate(values)]


def from_recipe(*changes: str) -> dict[str, object]:
    recipe = as_facts(pretraining_settings("tespec", "sample", changes))
    return {"weights": {"source": "backbone.safetensors", "sha256": " ".join(changes), "recipe": recipe}}


def test_ablations_are_told_apart_by_their_recipe(record: Make):
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
    text = render_text(claims_table(records))
    (line,) = (line for line in text.splitlines() if line.startswith("Eq. 7 over Eq. 6") and "DDD17" in line)
    assert "+2.067" in line


def test_another_profile_s_records_do_not_mix(record: Make):
    old = measured(record, "scratch", "recurrent", [10.0, 11.0], profile="paper", data="ddd17")
    for each in old:
        each["written"] = "2020-01-01T00:00:00+00:00"
    scores = measured_scores([*old, *measured(record, "scratch", "recurrent", [40.0])])
    assert scores("scratch/recurrent", "ddd17") == {0: 40.0}

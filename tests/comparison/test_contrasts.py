"""The rule on made-up scores of known effects."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from tespec.comparison import contrasts
from tespec.comparison.contrasts import (
    NOT_MEASURED,
    Claim,
    Comparison,
    Evidence,
    Part,
    decide,
    parsed,
    part_of,
    read_claims,
)
from tespec.comparison.statistics import Estimate, Scores, fit
from tespec.core.config import names
from tespec.core.errors import UserError

GAIN = Comparison("gain", ("tespec/recurrent",), ("scratch/recurrent",))
FOUR = Comparison("more", ("moby/feedforward", "scratch/recurrent"), ("scratch/feedforward", "moby/recurrent"))


def evidence(scores: Scores, floor: float | None = -math.inf, **changes: object) -> Evidence:
    """Scores by the names of a comparison's cells."""
    return replace(Evidence(fit(scores), {cell: cell for cell in scores}, floor), **changes)


def shown(effect: float, error: float = 1.0, freedom: float = 20, **changes: object) -> Part:
    """A comparison with an effect of so many standard errors."""
    return replace(Part("gain", Estimate(effect * error, error, freedom), 3), **changes)


def around(mean: float, spread: float = 0.2) -> dict[int, float]:
    return {0: mean - spread, 1: mean, 2: mean + spread}


def test_every_claim_names_cells_and_tasks_that_exist() -> None:
    claims = read_claims()
    assert len({claim.name for claim in claims}) == len(claims) == 10
    for claim in claims:
        for task, comparisons in claim.by_task().items():
            assert task in names("tasks")
            for cell in (cell for comparison in comparisons for cell in comparison.cells):
                assert parsed(cell).method in {"scratch", "imagenet", "moby", "ecddp", "tespec"}


def test_an_order_is_claimed_step_by_step() -> None:
    (target,) = (claim for claim in read_claims() if claim.name == "target")
    assert [(each.more, each.less) for each in target.by_task()["dsec"]] == [
        (("target: Eq. 7",), ("target: Eq. 6",)),
        (("target: Eq. 6",), ("target: Histograms",)),
    ]


@pytest.mark.parametrize(
    ("cell", "said"),
    [("masking: 13%", "no such row"), ("tespec", "is not METHOD/ARCHITECTURE"), ("tespec/both", "is not METHOD/ARCH")],
)
def test_a_cell_that_is_none_is_refused(cell: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        parsed(cell)
    assert parsed("moby/feedforward/Swin-T/7") == contrasts.CellOf("moby", "feedforward", "Swin-T/7")


CLAIM = "{name: a, says: b, where: c, tasks: [ddd17], comparisons: [{title: d, more: [tespec/recurrent], less: [%s]}]}"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("a: [", "is not as it was shipped|cannot be read|not a readable"),
        ("- 3", "is not as it was shipped"),
        (f"- {CLAIM % ''}", "not as many cells in less as in more"),
        (f"- {CLAIM % 'moby'}", "is not METHOD/ARCHITECTURE"),
        (f"- {(CLAIM % 'moby/recurrent').replace('ddd17', 'kitti')}", "task 'kitti' stands in no table"),
        (f"- {(CLAIM % 'moby/recurrent').replace('says', 'sais')}", "unknown setting 'sais'; did you mean 'says'?"),
        (f"- {(CLAIM % 'moby/recurrent').replace('where: c', 'where: 3')}", "where"),
    ],
)
def test_a_file_of_claims_that_is_none_is_refused(content: str, said: str, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(contrasts, "FILE", tmp_path / "contrasts.yaml")
    contrasts.FILE.write_text(content)
    with pytest.raises(UserError, match=said):
        read_claims()


def test_a_part_is_the_paired_test_of_its_cells() -> None:
    ours, theirs = {0: 45.0, 1: 46.1, 2: 47.2}, {0: 40.0, 1: 41.0, 2: 42.0}
    part = part_of(GAIN, evidence({"tespec/recurrent": ours, "scratch/recurrent": theirs}))
    above = stats.ttest_rel([*ours.values()], [*theirs.values()], alternative="greater")
    assert (part.p_above, part.p_below) == pytest.approx((above.pvalue, 1 - above.pvalue))
    assert (part.seeds, part.lacking, part.no_evidence) == (3, "", "")


def test_a_difference_of_differences_adds_up() -> None:
    values = {"moby/feedforward": 10.0, "scratch/recurrent": 6.0, "scratch/feedforward": 4.0, "moby/recurrent": 7.0}
    scores = {cell: {0: mean, 1: mean + 0.1 * number} for number, (cell, mean) in enumerate(values.items())}
    part = part_of(FOUR, evidence(scores))
    assert part.estimate is not None
    assert part.estimate.effect == pytest.approx(10.0 + 6.05 - 4.1 - 7.15)


@pytest.mark.parametrize(
    ("found", "lacking"),
    [
        (None, "not measured: tespec/recurrent, scratch/recurrent"),
        (evidence({"tespec/recurrent": around(5)}), "not measured: scratch/recurrent"),
        (
            evidence({"tespec/recurrent": {0: 5.0}, "scratch/recurrent": around(3)}),
            "one seed, and two are needed: tespec/recurrent",
        ),
        (
            evidence({"tespec/recurrent": around(5), "scratch/recurrent": {3: 1.0, 4: 2.0}}),
            "the cells share no seed: tespec/recurrent, scratch/recurrent",
        ),
        (
            evidence({"tespec/recurrent": {0: 5.0, 1: 6.0}, "scratch/recurrent": {0: 3.0, 1: 4.0}}),
            "no variance over seeds",
        ),
        (
            evidence({"tespec/recurrent": around(5), "scratch/recurrent": around(3, 0.3)}, None),
            "floor not measured (run.py --reference prior)",
        ),
        (
            evidence({"scratch/recurrent": around(5)}, unclear=frozenset({("tespec", "recurrent")})),
            "made by recipes of an older version, which cannot be told apart: tespec/recurrent",
        ),
    ],
)
def test_what_is_lacking_leaves_a_claim_undecided_and_is_named(found: Evidence | None, lacking: str) -> None:
    part = part_of(GAIN, found)
    (decision,) = decide([[shown(50.0), part]])
    assert (decision.verdict, decision.reason, decision.p) == ("undecided", lacking, None)
    # Nor does it cost the others anything.
    assert decide([[part], [shown(3.0)]])[1] == decide([[shown(3.0)]])[0]


@pytest.mark.parametrize(
    ("ours", "theirs", "floor", "said"),
    [
        (around(32.1), around(31.0, 0.3), 32.0, "tespec/recurrent is at the floor: 32.1 [31.6, 32.6], floor 32.0"),
        (around(33.0), around(31.0, 0.3), 32.0, ""),
        (around(31.0), around(33.0, 0.3), 32.0, ""),
        (around(33.0, 5.0), around(31.0, 0.3), 32.0, "tespec/recurrent is at the floor: 33.0 [20.6, 45.4], floor 32.0"),
    ],
)
def test_one_of_two_cells_stands_above_the_floor(ours, theirs, floor: float, said: str) -> None:
    found = evidence({"tespec/recurrent": ours, "scratch/recurrent": theirs}, floor, decimals=1)
    assert part_of(GAIN, found).no_evidence == said


def test_errors_are_at_the_floor_from_above() -> None:
    gains = {"tespec/recurrent": around(-6.1), "scratch/recurrent": around(-6.6, 0.3)}
    said = part_of(GAIN, evidence(gains, -6.0, sign=-1.0)).no_evidence
    assert said == "tespec/recurrent is at the floor: 6.100 [5.603, 6.597], floor 6.000"


def test_all_of_four_cells_stand_above_the_floor() -> None:
    scores = {cell: around(40.0 + number, 0.1 * (1 + number)) for number, cell in enumerate(FOUR.cells)}
    assert part_of(FOUR, evidence(scores, 30.0)).no_evidence == ""
    low = {**scores, "scratch/recurrent": around(30.1)}
    assert part_of(FOUR, evidence(low, 30.0)).no_evidence.startswith("scratch/recurrent is at the floor: 30.1")


def test_without_memory_architectures_are_not_held_against_each_other() -> None:
    scores = {cell: around(40.0 + number, 0.1 * (1 + number)) for number, cell in enumerate(FOUR.cells)}
    across = Comparison("recurrent over feed-forward", ("scratch/recurrent",), ("scratch/feedforward",))
    apart = {"scratch/recurrent": around(40.0), "scratch/feedforward": around(50.0, 0.3)}
    known = evidence(apart, 30.0)
    unknown, unused = replace(known, memory=None), replace(known, memory=False)
    (decision,) = decide([[part_of(across, known)]])
    assert (decision.verdict, decision.reason) == ("contrary", "recurrent over feed-forward: significantly below 0")
    (decision,) = decide([[part_of(across, unknown)]])
    assert decision.verdict == "contrary"
    assert decision.reason.endswith(": significantly below 0; no memory control was run with networks trained alike")
    (decision,) = decide([[part_of(across, unused)]])
    assert (decision.verdict, decision.p) == ("undecided", 1.0)
    assert decision.reason == "the memory control failed: it is not shown that these recurrent networks use their state"
    # What stands on both sides with the same architectures is compared all the same.
    assert part_of(FOUR, replace(evidence(scores, 30.0), memory=False)).no_evidence == ""


def test_all_that_is_lacking_is_named() -> None:
    floor = Part("first", lacking="floor not measured (run.py --reference prior)")
    others = [Part(name, lacking=NOT_MEASURED, cells=(f"{name}/recurrent",)) for name in ("moby", "ecddp")]
    (decision,) = decide([[floor, *others]])
    assert decision.reason == f"{floor.lacking}; not measured: moby/recurrent, ecddp/recurrent"


def test_scores_at_the_floor_decide_nothing_and_count_as_tested() -> None:
    floored = shown(50.0, no_evidence="tespec/recurrent is at the floor: 1, floor 2")
    first, second = decide([[floored], [shown(3.0)]])
    assert (first.verdict, first.reason, first.p) == ("undecided", floored.no_evidence, 1.0)
    assert second.p == pytest.approx(4 * shown(3.0).p_above)
    assert decide([[floored, shown(50.0)]])[0].verdict == "undecided"
    # A conjunction is refuted by any of its parts.
    assert decide([[floored, shown(-50.0)]])[0].verdict == "contrary"


@pytest.mark.parametrize(
    ("effects", "verdict", "reason", "shown_is"),
    [
        ((9.0,), "holds", "gain: significantly above 0", 0),
        ((9.0, 8.0), "holds", "all 2 comparisons are significantly above 0", 1),
        ((9.0, 1.0), "undecided", "gain: not significantly different from 0", 1),
        ((9.0, -9.0), "contrary", "gain: significantly below 0", 1),
        ((-9.0,), "contrary", "gain: significantly below 0", 0),
        ((0.1,), "undecided", "gain: not significantly different from 0", 0),
    ],
)
def test_a_conjunction_holds_where_each_part_does(effects, verdict: str, reason: str, shown_is: int) -> None:
    parts = [shown(effect) for effect in effects]
    (decision,) = decide([parts])
    assert (decision.verdict, decision.reason, decision.part) == (verdict, reason, parts[shown_is])


@pytest.mark.parametrize(("sign", "side"), [(1, "above"), (-1, "below")])
def test_what_its_own_interval_tells_from_0_and_the_page_does_not_says_so(sign: int, side: str) -> None:
    part, weak = shown(2.3 * sign), shown(1.9 * sign)
    assert not part.estimate.interval().low <= 0 <= part.estimate.interval().high
    assert weak.estimate.interval().low <= 0 <= weak.estimate.interval().high
    first, second = decide([[part], [weak]])
    assert first.verdict == second.verdict == "undecided"
    assert first.reason == f"gain: significantly {side} 0 alone, not after correction for all tests of the page"
    assert second.reason == "gain: not significantly different from 0"


def test_p_is_that_of_the_weakest_part_adjusted_for_the_page() -> None:
    page = [[shown(9.0), shown(4.0)], [shown(-5.0), shown(2.0), shown(3.0)], [shown(0.5)]]
    # Six tests: whether each claim holds, and whether it is contrary.
    raw = [shown(4.0).p_above, 1.0, shown(-5.0).p_above, 3 * shown(-5.0).p_below, shown(0.5).p_above, 1.0]
    assert raw[3] < raw[0] < raw[4]
    first, second, third = decide(page)
    assert second.p == pytest.approx(6 * raw[3])
    assert first.p == pytest.approx(5 * raw[0])
    assert third.p == pytest.approx(min(1.0, 4 * raw[4]))
    assert [each.verdict for each in (first, second, third)] == ["holds", "contrary", "undecided"]
    assert first.level == pytest.approx(0.05 / 6)
    assert first.detectable == shown(4.0).estimate.detectable(level=0.05 / 6)


EFFECTS = st.lists(st.lists(st.floats(-12, 12), min_size=1, max_size=4), min_size=1, max_size=6)


@given(EFFECTS, st.floats(-12, 12))
def test_more_parts_and_more_claims_never_make_a_claim_hold(page: list[list[float]], more: float) -> None:
    def held(effects: list[list[float]]) -> list[bool]:
        decided = decide([[shown(effect) for effect in parts] for parts in effects])
        return [decision.verdict == "holds" for decision in decided]

    before = held(page)
    longer = held([[*page[0], more], *page[1:]])
    assert before[0] or not longer[0]
    # One claim more on the page: no claim that was undecided holds now.
    assert all(was or not now for was, now in zip(before, held([*page, [more]]), strict=False))


@given(EFFECTS, st.randoms())
def test_the_order_of_a_page_changes_no_verdict(page: list[list[float]], random) -> None:
    parts = [[shown(effect) for effect in effects] for effects in page]
    order = random.sample(range(len(page)), len(page))
    decided = decide(parts)
    again = decide([list(reversed(parts[index])) for index in order])
    assert [each.verdict for each in again] == [decided[index].verdict for index in order]


@given(EFFECTS)
def test_a_claim_turned_round_is_contrary_where_it_held(page: list[list[float]]) -> None:
    single = [[effects[0]] for effects in page]
    there = decide([[shown(effect) for effect in effects] for effects in single])
    back = decide([[shown(-effect) for effect in effects] for effects in single])
    turned = {"holds": "contrary", "contrary": "holds", "undecided": "undecided"}
    assert [turned[each.verdict] for each in there] == [each.verdict for each in back]


def test_a_page_without_claims_decides_nothing() -> None:
    assert decide([]) == []
    assert Claim("a", "b", "c", ()).by_task() == {}

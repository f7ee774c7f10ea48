"""The page of claims, and that of gains, on made-up records of known effects and on those of the closed world."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence

import pandas
import pytest

from tespec.comparison.ablations import ablations, measured_rows, measured_table
from tespec.comparison.contrasts import Comparison, read_claims
from tespec.comparison.evidence import evidence_of, newest_bases
from tespec.comparison.in_short import ablations_in_short, claims_in_short, gains_in_short
from tespec.comparison.records import Record
from tespec.comparison.render import (
    render_csv,
    render_html,
    render_latex,
    render_long_csv,
    render_markdown,
    render_text,
)
from tespec.comparison.shown import baseline_table, claims_table, published_effect
from tespec.comparison.table import Row, Table
from tespec.core.config import as_facts, pretraining_settings
from tespec.core.errors import UserError

Make = Callable[..., Record]
METHODS = ("scratch", "imagenet", "moby", "ecddp", "tespec")
NAMED = ("tespec", "scratch", "imagenet", "moby", "ecddp")
COLUMNS = "claim comparison task data profile metric unit effect low_95 high_95 seeds p detectable paper verdict reason"


def measured(
    make: Make, name: str, values: Sequence[float], arch: str = "recurrent", **changes: object
) -> list[Record]:
    return [make(name, arch, seed=seed, miou=value, **changes) for seed, value in enumerate(values)]


def floor(make: Make, miou: float = 20.0, **changes: object) -> Record:
    return make("prior", "feedforward", kind="reference", miou=miou, **changes)


def from_recipe(*changes: str) -> dict[str, object]:
    recipe = as_facts(pretraining_settings("tespec", "sample", changes))
    return {"weights": {"source": "backbone.safetensors", "sha256": " ".join(changes), "recipe": recipe}}


def whole(make: Make, gain: float) -> list[Record]:
    """All methods on DDD17; TESPEC is better than the others by `gain`."""
    spreads = {name: [0.0, 1.0 + 0.1 * number, 2.0] for number, name in enumerate(METHODS)}
    return [
        floor(make),
        *(
            record
            for arch in ("recurrent", "feedforward")
            for name, spread in spreads.items()
            for record in measured(make, name, [40 + each + gain * (name == "tespec") for each in spread], arch)
        ),
    ]


def row_of(table: Table, claim: str, task: str = "ddd17") -> Row:
    (row,) = (row for row in table.rows if (row.facts["claim"], row.facts["task"]) == (claim, task))
    return row


def cell(table: Table, row: Row, header: str) -> str:
    return row.cells[[column.headers[-1] for column in table.columns].index(header)].text


def test_a_claim_holds_where_its_weakest_part_does(record: Make) -> None:
    table = claims_table(whole(record, 5.0))
    row = row_of(table, "tespec")
    assert cell(table, row, "verdict") == "holds"
    assert cell(table, row, "why") == "all 4 comparisons are significantly above 0"
    assert (cell(table, row, "effect"), cell(table, row, "seeds"), cell(table, row, "p")) == ("+5.133", "3", "< 0.001")
    (heading,) = (group.heading for group in table.groups if row in group.rows)
    assert heading.endswith("Of 5 tasks: holds on 1, contrary on 0, undecided on 4")
    # Where nothing was measured nothing is decided.
    other = row_of(table, "tespec", "dsec")
    assert cell(table, other, "verdict") == "undecided"
    assert cell(table, other, "why") == f"not measured: {', '.join(f'{name}/recurrent' for name in NAMED)}"


def test_gains_stand_by_method_and_task_with_what_was_shown_of_them(record: Make) -> None:
    records = [
        *(floor(record, task=task) for task in ("ddd17", "dsec")),
        *measured(record, "scratch", [40.0, 41.1, 42.0]),
        *measured(record, "tespec", [60.0, 61.0, 62.1]),
        *measured(record, "moby", [40.1, 41.0, 42.1]),
        *measured(record, "ecddp", [30.0, 31.0, 32.1]),
        *measured(record, "tespec", [50.0, 51.0, 52.1], "feedforward"),  # no baseline beside it
        record("imagenet", seed=7, miou=41.0),  # no seed of the baseline's
        *measured(record, "scratch", [40.0, 41.0, 42.0], task="dsec"),
        *measured(record, "tespec", [60.0, 61.2, 62.1], task="dsec"),
    ]
    found = gains_in_short(records, "scratch")
    assert found is not None
    table, verdicts = found
    assert verdicts == {"holds": 2, "contrary": 1, "undecided": 2}
    assert [column.key for column in table.columns] == ["Method", "Recurrent", "DDD17, mIoU ↑", "DSEC, mIoU ↑"]
    ecddp, imagenet, moby, tespec = table.rows
    assert [cell.text for cell in imagenet.cells[2:]] == ["-", "-"]
    assert [cell.text.split(" [")[0] for cell in tespec.cells] == ["TESPEC", "Yes", "+20.000", "+20.100"]
    assert [[each.bold for each in row.cells] for row in (ecddp, moby, tespec)] == [
        [False] * 4,
        [False] * 4,
        [False, False, True, True],
    ]
    assert [row.cells[2].text.endswith("], worse") for row in table.rows] == [True, False, False, False]
    assert [row.cells[3].text for row in (ecddp, moby)] == ["-", "-"]
    assert gains_in_short(records[:4], "tespec") is None
    assert gains_in_short(records[:5], "scratch") is None


@pytest.mark.parametrize(
    ("zeroed", "elsewhere", "verdict"),
    [
        (10.0, {}, "contrary"),
        (0.1, {}, "undecided"),
        (0.1, {"profile": "tiny"}, "contrary"),
        (0.1, {"protocol": {"train": "dir9 (9 labels)"}}, "contrary"),
    ],
    ids=["control of memory passed", "failed", "failed under another profile", "failed on other data"],
)
def test_architectures_are_compared_where_memory_is_used(
    record: Make, zeroed: float, elsewhere: dict[str, object], verdict: str
) -> None:
    records = [
        floor(record),
        *(each for name in NAMED for each in measured(record, name, [40.0, 41.1, 42.0])),
        *(each for name in NAMED for each in measured(record, name, [60.0, 61.0, 62.1], "feedforward")),
    ]
    controlled = {"data_fingerprint": "of the validation split", "split": "val", **elsewhere}
    control = [floor(record, **controlled)]
    for seed, loss in enumerate((zeroed - 0.2, zeroed, zeroed + 0.3)):
        groups = {"standing": {"miou": 40.0 + seed}, "standing, state zeroed": {"miou": 40.0 + seed - loss}}
        control.append(record("scratch", seed=seed, groups=groups, **controlled))
    table = claims_table([*records, *control])
    assert cell(table, row_of(table, "recurrent"), "verdict") == verdict
    assert cell(table, row_of(table, "recurrent"), "effect") == "-20.000"
    said = cell(table, row_of(table, "recurrent"), "why")
    assert said.endswith("no memory control was run with networks trained alike") == bool(elsewhere)
    assert any("memory control failed" in note for note in table.notes) == (verdict == "undecided")
    # Recurrent networks have the same scores, and feed-forward ones do not say how much these vary.
    assert cell(table, row_of(table, "tespec"), "why") == "no variance over seeds"


def test_the_control_of_memory_is_that_of_networks_trained_alike(record: Make) -> None:
    def trained(seed: int, data: str) -> str:
        return f"training-scratch-ddd17-recurrent-s{seed}-{data}"

    spread = (40.0, 41.1, 42.0)
    records = [
        floor(record),
        *(record("scratch", seed=seed, miou=miou, training=trained(seed, "new")) for seed, miou in enumerate(spread)),
        *measured(record, "scratch", [60.0, 61.0, 62.1], "feedforward"),
        *(each for name in NAMED for each in measured(record, name, spread) if name != "scratch"),
        *(each for name in NAMED for each in measured(record, name, spread, "feedforward") if name != "scratch"),
    ]

    def why(*more: Record) -> str:
        table = claims_table([*records, *more])
        return cell(table, row_of(table, "recurrent"), "why")

    def control(data: str) -> list[Record]:
        groups = [
            {"standing": {"miou": 40.0}, "standing, state zeroed": {"miou": 40.0 + off}} for off in (-0.1, 0, 0.2)
        ]
        validation = {"split": "val", "data_fingerprint": f"{data}, val"}
        runs = (
            record("scratch", seed=seed, groups=each, training=trained(seed, data), **validation)
            for seed, each in enumerate(groups)
        )
        return [floor(record, **validation), *runs]

    failed = "the memory control failed: it is not shown that these recurrent networks use their state"
    assert why(*control("new")) == failed
    # Settings tried on the validation split since take nothing away from it.
    tried = record("scratch", "feedforward", split="val", config={"optimisation": {"steps": 9}})
    assert why(*control("new"), tried | {"written": "2100-01-01T00:00:00+00:00"}) == failed
    # Data whose description reads the same need not be the same.
    assert why(*control("old")).endswith("significantly below 0; no memory control was run with networks trained alike")


@pytest.mark.parametrize("own", [0, 3], ids=["nothing on its own task", "one row on its own task"])
def test_an_ablation_is_judged_on_a_task_that_stands_in_for_its_own(record: Make, own: int) -> None:
    rows = {row.name: row for row in ablations()["patch_norm"].rows}
    default = as_facts(pretraining_settings("tespec", "sample"))
    changes = rows["w/o norm"].changes(default)
    records = [
        floor(record),
        *measured(record, "tespec", [44.0, 45.1, 46.2], **from_recipe()),
        *measured(record, "tespec", [30.0, 31.0, 32.1], **from_recipe(*changes)),
        *measured(record, "tespec", [50.0, 51.0, 52.1][:own], task="dsec", **from_recipe()),
    ]
    table = claims_table(records)
    row = row_of(table, "patch_norm")
    assert cell(table, row, "verdict") == "holds"
    assert cell(table, row, "paper") == "-"  # what it has is of another task
    (found,) = measured_rows(ablations()["patch_norm"], records)
    shown = measured_table(ablations()["patch_norm"], found)
    assert "Measured on DDD17, which stands in for DSEC." in shown.notes
    short = ablations_in_short(records)  # the paper's numbers beside them are those of the other task
    assert short is not None
    assert [group.heading for group in short.groups if "Patch" in group.heading] == [
        f"{ablations()['patch_norm'].title}, on DDD17; paper: on DSEC"
    ]


@pytest.mark.parametrize("lacking", [0, 1, 2])
def test_a_claim_on_an_ablation_says_what_of_it_was_not_measured_on_the_task_that_stands_in(
    record: Make, lacking: int
) -> None:
    default = as_facts(pretraining_settings("tespec", "sample"))
    rows = [row for row in ablations()["masking"].rows if not row.default]
    assert [row.name for row in rows] == ["0%", "25%", "75%"]
    records = [floor(record), *measured(record, "tespec", [44.0, 45.1, 46.2], **from_recipe())]
    for row, value in list(zip(rows, (30.0, 40.0, 41.0), strict=True))[: 3 - lacking]:
        scores = [value, value + 1, value + 2.1]
        records += measured(record, "tespec", scores, **from_recipe(*row.changes(default)))
    table = claims_table(records)
    assert {row.facts["task"] for row in table.rows if row.facts["claim"] == "masking"} == {"ddd17"}
    row = row_of(table, "masking")
    assert cell(table, row, "verdict") == ("undecided" if lacking else "holds")
    assert ("masking: 75%" in cell(table, row, "why")) == (lacking > 0)
    _, missing = claims_in_short(records)
    assert ("Masking beats none" in missing) == (lacking > 0)


def test_two_tables_of_one_target_are_one_comparison_where_they_meet(record: Make) -> None:
    default = as_facts(pretraining_settings("tespec", "sample"))
    changes = {row.name: row.changes(default) for row in ablations()["target"].rows}
    base = [floor(record), *measured(record, "tespec", [44.0, 45.1, 46.2], **from_recipe())]
    base += measured(record, "tespec", [40.0, 41.0, 42.1], **from_recipe(*changes["Eq. 6"]))
    every = [*base, *measured(record, "tespec", [30.0, 31.0, 32.1], **from_recipe(*changes["Histograms"]))]
    whole_claim, part = claims_table(every), claims_table(base)
    assert cell(whole_claim, row_of(whole_claim, "target"), "why") == "all 2 comparisons are significantly above 0"
    # Without histograms DDD17 has what the paper compares there, and the rest is missing where it belongs.
    assert cell(part, row_of(part, "target"), "verdict") == "holds"
    assert cell(part, row_of(part, "target", "dsec"), "why").startswith("not measured")
    (group,) = (group for group in claims_in_short(base)[0].groups if "Eq. 7" in group.heading)
    assert group.heading.endswith("(not measured on DSEC)")


def test_the_page_takes_the_weights_that_the_table_shows(record: Make) -> None:
    official = {"weights": {"source": "official.pth", "sha256": "o"}}
    own = from_recipe()
    order = [
        (official, 0, 60.0),
        *((own, seed, 40.0 + seed) for seed in range(3)),
        (official, 1, 61.0),
        (official, 2, 62.0),
    ]
    records = [floor(record), *measured(record, "scratch", [30.0, 31.0, 32.1])]
    for number, (weights, seed, miou) in enumerate(order):
        made = record("tespec", seed=seed, miou=miou, **weights)
        made["written"] = f"2026-01-01T00:00:{number:02d}+00:00"
        records.append(made)
    basis = newest_bases(records)["ddd17"]
    shown = [each["metrics"]["miou"] for each in basis.records if each["method_name"] == "tespec"]
    found = evidence_of(basis, records, ["tespec/recurrent"])
    assert sorted(found.fitted.scores[found.cells["tespec/recurrent"]].values()) == sorted(shown) == [60.0, 61.0, 62.0]


@pytest.mark.parametrize(("gain", "verdict"), [(0.0, "undecided"), (-5.0, "contrary")])
def test_a_claim_is_contrary_or_undecided(record: Make, gain: float, verdict: str) -> None:
    table = claims_table(whole(record, gain))
    assert cell(table, row_of(table, "tespec"), "verdict") == verdict


def test_without_a_floor_and_at_the_floor_nothing_is_decided(record: Make) -> None:
    records = whole(record, 5.0)
    for changed, why in (
        (records[1:], "floor not measured (run.py --reference prior)"),
        ([*records[1:], floor(record, data_fingerprint="another")], "floor not measured (run.py --reference prior)"),
        (
            [*records[1:], floor(record, 46.0)],
            "tespec/recurrent is at the floor: 46.133 [43.584, 48.683], floor 46.000",
        ),
    ):
        table = claims_table(changed)
        assert cell(table, row_of(table, "tespec"), "verdict") == "undecided"
        assert cell(table, row_of(table, "tespec"), "why") == why


@pytest.mark.parametrize(
    "other",
    [
        {"code": "0.1.0+aaaaaaaa"},
        {"config": {"head": {"score": 0.5}}},
        {"config": {"label_share": 0.1}},
        {"protocol": {"scores": "by another rule", "events": "none"}},
    ],
    ids=["code", "which boxes are scored", "labels learned from", "rule of the scores"],
)
def test_a_prior_that_was_scored_otherwise_is_no_floor(record: Make, other: dict[str, object]) -> None:
    records = whole(record, 5.0)
    expected = cell(claims_table(records), row_of(claims_table(records), "tespec"), "verdict")
    newer = floor(record, 99.0, **other) | {"written": "2100-01-01T00:00:00+00:00"}
    table = claims_table([*records, newer])
    assert cell(table, row_of(table, "tespec"), "verdict") == expected == "holds"
    alone = claims_table([*records[1:], newer])
    assert "floor not measured" in cell(alone, row_of(alone, "tespec"), "why")


def test_an_effect_is_in_the_task_s_own_metric(record: Make) -> None:
    depth = {"task": "mvsec", "groups": {}, "recordings": {}}
    records = [
        *(record("scratch", metrics={"abs": value}, seed=seed, **depth) for seed, value in enumerate([5.0, 5.5, 6.0])),
        *(record("tespec", metrics={"abs": value}, seed=seed, **depth) for seed, value in enumerate([4.5, 5.1, 5.4])),
        record("prior", "feedforward", kind="reference", metrics={"abs": 9.0}, **depth),
        floor(record),
        *measured(record, "scratch", [40.0, 41.0, 42.0]),
        *measured(record, "tespec", [44.0, 45.1, 46.2]),
    ]
    table = baseline_table(records, "scratch")
    metres, points = (row_of(table, "tespec/recurrent", task) for task in ("mvsec", "ddd17"))
    assert (cell(table, metres, "Metric"), cell(table, metres, "effect")) == (
        "Abs ↓",
        "+0.500",
    )  # m nearer to the truth
    assert (cell(table, points, "effect"), cell(table, points, "95 % interval")) == ("+4.100", "[+3.852, +4.348]")
    assert cell(table, points, "verdict") == "holds"


def test_all_cells_of_a_task_give_the_variance_and_ablations_are_cells(record: Make) -> None:
    ablation = next(row for row in ablations()["target_ddd17"].rows if row.name == "Eq. 6")
    changes = ablation.changes(as_facts(pretraining_settings("tespec", "sample")))
    records = [
        *measured(record, "scratch", [40.0, 41.0, 42.0]),
        *measured(record, "scratch", [45.0, 46.5, 47.0], "feedforward"),
        *measured(record, "tespec", [44.0, 45.1, 46.2], **from_recipe()),
        *measured(record, "tespec", [42.0, 43.0, 44.1], **from_recipe(*changes)),
    ]
    names = ("tespec/recurrent", "target_ddd17: Eq. 7", "target_ddd17: Eq. 6", "scratch/feedforward", "moby/recurrent")
    found = evidence_of(newest_bases(records)["ddd17"], records, names)
    assert set(names) - set(found.cells) == {"moby/recurrent"}
    assert found.cells["tespec/recurrent"] == found.cells["target_ddd17: Eq. 7"]
    assert found.fitted.scores[found.cells["target_ddd17: Eq. 6"]] == {0: 42.0, 1: 43.0, 2: 44.1}
    assert found.fitted.freedom == 3 * 2
    table = claims_table([*records, floor(record)])
    assert cell(table, row_of(table, "target"), "effect") == "+2.067"


def test_changed_settings_have_a_gain_and_do_not_stand_for_the_method_in_a_claim(record: Make) -> None:
    changed = from_recipe("objective.mask.ratio=0.25")
    records = [
        *(each for each in whole(record, 5.0) if each["method_name"] != "tespec"),
        *measured(record, "tespec", [44.0, 45.1, 46.2], **changed),
    ]
    gains, claims = baseline_table(records, "scratch"), claims_table(records)
    assert cell(gains, row_of(gains, "tespec/recurrent"), "verdict") == "holds"
    assert cell(claims, row_of(claims, "tespec"), "why") == "not measured: tespec/recurrent"


def test_pretrainings_in_settings_of_an_older_version_are_not_taken_for_one_another(record: Make) -> None:
    older = [
        {"weights": {"source": "a", "sha256": name, "recipe": {"name": "tespec", "steps": steps, "seed": 0}}}
        for name, steps in (("a", 1), ("b", 2))
    ]
    alone = [floor(record), *measured(record, "scratch", [40.0, 41.2, 42.0])]
    one = [*alone, *measured(record, "tespec", [44.0, 45.1, 46.2], **older[0])]
    both = [*one, *measured(record, "tespec", [30.0, 31.1, 32.2], **older[1])]
    for records, said in (
        (one, "over No Pre-training: significantly above 0"),
        (both, "made by recipes of an older version"),
    ):
        table = baseline_table(records, "scratch")
        assert cell(table, row_of(table, "tespec/recurrent"), "why").startswith(said)


def test_data_profiles_and_splits_do_not_mix(record: Make) -> None:
    old = measured(record, "tespec", [10.0, 11.1], profile="paper", data="ddd17")
    for each in old:
        each["written"] = "2020-01-01T00:00:00+00:00"
    new = measured(record, "tespec", [44.0, 45.1])
    base = [floor(record), *measured(record, "scratch", [40.0, 41.0])]
    validation = [{**each, "split": "val", "name": f"{each['name']}-val"} for each in [*base, *new]]
    for each in validation:
        each["metrics"] = {"miou": each["metrics"]["miou"] + (5.0 if each["method_name"] == "tespec" else 0.0)}
    records = [*old, *new, *base, *validation]
    table, other = baseline_table(records, "scratch"), baseline_table(records, "scratch", "val")
    assert cell(table, row_of(table, "tespec/recurrent"), "effect") == "+4.050"
    assert cell(other, row_of(other, "tespec/recurrent"), "effect") == "+9.050"
    assert any("2 runs on other data, settings or code left out" in note for note in table.notes)


def test_a_baseline_has_the_same_architecture_and_has_to_be_there(record: Make) -> None:
    records = [*measured(record, "scratch", [40.0, 41.0]), *measured(record, "tespec", [45.0, 46.0], "feedforward")]
    assert baseline_table(records, "scratch").rows == ()
    with pytest.raises(UserError, match=r"--baseline moby: has no record; choose from scratch"):
        baseline_table([record()], "moby")


def test_one_seed_has_a_gain_and_no_verdict(record: Make) -> None:
    table = baseline_table([floor(record), record(), record("tespec", miou=90.0)], "scratch")
    (row,) = table.rows
    assert [cell(table, row, name) for name in ("effect", "95 % interval", "verdict")] == ["+50.000", "-", "undecided"]
    assert cell(table, row, "why") == "one seed, and two are needed: tespec/recurrent, scratch/recurrent"


def test_a_task_of_one_s_own_kind_has_no_floor_to_stand_above(record: Make) -> None:
    own = {"task": "hall", "config": {"kind": "flow", "title": "The hall"}, "metrics": {"error": 1.0}}
    scores = {"error": {"title": "Error", "better": "lower", "unit": "m"}}
    records = [
        record(name, seed=seed, **(own | {"metrics": {"error": mean + 0.1 * seed * seed}, "scores": scores}))
        for name, mean in (("scratch", 5.0), ("tespec", 4.0), ("mine", 4.5))
        for seed in range(3)
    ]
    records[0]["metrics"]["error"] += 0.01
    table = baseline_table(records, "scratch")
    assert {cell(table, row, "verdict") for row in table.rows} == {"holds"}
    assert set(pandas.read_csv(io.StringIO(render_long_csv(table))).unit) == {"m"}


def test_the_long_csv_is_tidy_and_numeric(record: Make) -> None:
    table = claims_table(whole(record, 5.0))
    lines = pandas.read_csv(io.StringIO(render_long_csv(table)))
    assert list(lines) == COLUMNS.split()
    assert (
        not lines[["claim", "comparison", "task", "data", "profile", "metric", "verdict", "reason"]]
        .isna()
        .any(axis=None)
    )
    numbers = lines[["effect", "low_95", "high_95", "seeds", "p", "detectable", "paper"]]
    assert all(pandas.api.types.is_numeric_dtype(kind) for kind in numbers.dtypes)
    ours = lines[lines.claim == "tespec"].set_index("comparison")
    assert list(ours.index) == ["over no pre-training", "over RGB supervised", "over MoBY", "over ECDDP"]
    assert set(ours.verdict) == {"holds"}
    assert ours.loc["over no pre-training", "paper"] == pytest.approx(9.376)
    assert ((ours.low_95 < ours.effect) & (ours.effect < ours.high_95) & (ours.detectable > 0)).all()


def test_every_form_of_the_page_says_verdict_and_rule(record: Make) -> None:
    table = claims_table(whole(record, 5.0))
    for render in (render_text, render_latex, render_markdown, render_html):
        text = " ".join(render(table).split())
        assert "all 4 comparisons are significantly above 0" in text
        assert "family-wise error 5" in text
    assert not re.search(r"^'|,'", render_csv(table), re.MULTILINE)


def test_the_paper_s_own_differences_are_those_of_its_tables() -> None:
    found = {
        (claim.name, each.title, task): published_effect(each, task)
        for claim in read_claims()
        for task, comparisons in claim.by_task().items()
        for each in comparisons
    }
    assert found["memory", "recurrent over feed-forward pre-training", "dsec"] is None
    assert found["masking", "50 % over none", "dsec"] == pytest.approx(62.774 - 55.619)
    assert found["tespec", "over no pre-training", "mvsec"] == pytest.approx(4.852 - 3.690)
    assert found["tespec", "over no pre-training", "1mpx"] == pytest.approx(50.6 - 45.4)
    # Of the two published numbers, that without test-time augmentation.
    assert found["recurrent", "ECDDP", "dsec"] == pytest.approx(59.820 - 59.142)
    assert published_effect(Comparison("", ("mine/recurrent",), ("scratch/recurrent",)), "hall") is None

"""What records of pre-trainings say: healthy or not, which rate is chosen, what memory is worth."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tespec.cli.tables import main
from tespec.comparison.identity import SCHEMA
from tespec.comparison.pretrained import healthy, held_out_loss, learned, memory_worth
from tespec.comparison.rates import rates_table, searches
from tespec.comparison.records import Record, check_record, read_record, write_record
from tespec.comparison.render import FORMS
from tespec.core.errors import UserError

Make = Callable[..., Record]


def pretraining(
    record: Make,
    name: str = "tespec",
    rate: float = 1e-3,
    loss: float = 0.8,
    ranks: tuple[float, ...] = (9.0, 12.0, 15.0, 20.0),
    **changes: Any,
) -> Record:
    """A record of a pre-training, the last of whose ranks is that of the end."""
    target = {"type": "masked_reconstruction", "target": {"kind": changes.pop("kind", "intensity")}}
    masked = name == "tespec"
    fields = {
        "kind": "pretraining",
        "config": {
            "objective": target if masked else {"type": "cpc"},
            "optimisation": {"peak_lr": rate, "steps": 1500},
            "segments": 2,
        },
        "metrics": {"loss_masked_carried" if masked else "loss": loss}
        | ({"last_stage_rank": ranks[-1]} if ranks else {}),
        "curves": {"last_stage": [{"step": 10.0 * step, "rank": rank} for step, rank in enumerate(ranks, start=1)]},
    }
    return record(name, **(fields | changes))


@pytest.mark.parametrize(
    ("ranks", "accepted", "reason"),
    [
        ((9.0, 12.0, 15.0, 20.0), True, "rank is 20.0, and does not fall (9.0 12.0 15.0 20.0)"),
        ((9.0, 20.0, 19.0, 18.5), True, "does not fall"),  # within the noise
        ((9.0, 20.0, 19.0, 17.5), False, "falls from 20.0 to 17.5"),
        ((2.0, 4.0, 6.0, 8.0), False, "rank is 8.0, not above 8"),
        ((), False, "does not say the last stage's rank"),
    ],
)
def test_healthy_is_a_rank_that_is_high_and_does_not_fall(
    record: Make, ranks: tuple[float, ...], accepted: bool, reason: str
) -> None:
    found = healthy(pretraining(record, ranks=ranks))
    assert found[0] is accepted
    assert reason in found[1]


def test_an_older_record_does_not_say_whether_it_is_healthy(record: Make) -> None:
    assert healthy(pretraining(record, curves={})) == (
        False,
        "its record does not say the last stage's rank over the training",
    )


def test_the_lowest_loss_among_healthy_ones_is_chosen(record: Make) -> None:
    tried = [
        pretraining(record, rate=2e-3, loss=0.70, ranks=(9.0, 9.0, 4.0, 2.0)),
        pretraining(record, rate=1e-3, loss=0.80),
        pretraining(record, rate=5e-4, loss=0.75),
        pretraining(record, rate=2.5e-4, loss=0.85),
        record(),
    ]
    (search,) = searches(tried)
    assert [each.rate for each in search.tried] == [2e-3, 1e-3, 5e-4, 2.5e-4]
    assert [each.healthy for each in search.tried] == [False, True, True, True]
    assert (search.chosen.rate, search.verdict) == (5e-4, "0.0005")
    assert search.name == "TESPEC (intensity, Eq. 7), 1,500 steps"


def test_where_none_is_healthy_the_highest_rank_is_chosen_and_said_so(record: Make) -> None:
    low = [pretraining(record, "mine", rate, loss=rate, ranks=(1.0, rank)) for rate, rank in ((1e-3, 5.0), (5e-4, 3.0))]
    (search,) = searches(low)
    assert search.chosen.rate == 1e-3
    table = rates_table(low)
    assert table.groups[0].heading.endswith("none is healthy; 0.001 has the highest rank of the last stage")
    assert [row.cells[6].text for row in table.rows] == ["chosen", ""]
    assert all(render(table) for render in FORMS.values())


def test_of_searches_over_more_and_more_steps_the_longest_decides(record: Make) -> None:
    def over(steps: int, rate: float, loss: float) -> Record:
        made = pretraining(record, rate=rate, loss=loss)
        optimisation = {**made["config"]["optimisation"], "steps": steps}
        return made | {"name": f"{made['name']}-{steps}", "config": {**made["config"], "optimisation": optimisation}}

    other = [pretraining(record, "mine", rate, loss=rate) for rate in (1e-3, 5e-4)]
    long = [over(2000, 1e-3, 0.7), over(2000, 5e-4, 0.8)]
    found = searches([*long, *other, over(500, 1e-3, 0.9), over(500, 5e-4, 0.8)])
    assert [(each.method, each.steps, each.decides) for each in found] == [
        ("mine", 1500, True), ("tespec", 500, False), ("tespec", 2000, True),
    ]  # fmt: skip
    assert [each.verdict for each in found] == ["0.0005", "searched again over more steps", "0.001"]
    assert [row.cells[6].text for row in rates_table([*long, over(500, 1e-3, 0.9), over(500, 5e-4, 0.8)]).rows] == [
        "", "", "chosen", "",
    ]  # fmt: skip


def test_a_search_under_another_profile_decides_for_itself(record: Make) -> None:
    short = [pretraining(record, rate=rate, loss=rate) for rate in (1e-3, 5e-4)]
    long = []
    for each in short:
        optimisation = {**each["config"]["optimisation"], "steps": 20_000}
        other = {
            "name": f"{each['name']}-long",
            "profile": "medium",
            "config": each["config"] | {"optimisation": optimisation},
        }
        long.append(each | other)
    assert [(each.steps, each.decides) for each in searches([*short, *long])] == [(1500, True), (20_000, True)]


def test_what_differs_in_more_than_the_rate_is_not_one_search(record: Make) -> None:
    with pytest.raises(UserError, match="no pre-training was made at two peak rates or more"):
        rates_table([pretraining(record), pretraining(record, rate=5e-4, kind="high_pass")])


def test_rates_are_a_table_of_the_command(record: Make, tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    for rate in (1e-3, 5e-4):
        write_record(pretraining(record, rate=rate), tmp_path / "runs")
    assert main(["--rates", "--results", str(tmp_path)]) == 0
    assert "TESPEC (intensity, Eq. 7), 1,500 steps: 0.001" in capsys.readouterr().out
    assert {path.name for path in (tmp_path / "tables").iterdir()} == {f"rates{end}" for end in FORMS}


def test_losses_and_names_of_objectives(record: Make) -> None:
    assert (held_out_loss(pretraining(record)), held_out_loss(pretraining(record, "mine"))) == (0.8, 0.8)
    assert held_out_loss(record(kind="pretraining")) is None
    nothing_scored = record(kind="pretraining", metrics={"loss": 0.0, "feature_rank": 0.0, "last_stage_rank": 0.0})
    assert held_out_loss(nothing_scored) is None
    assert healthy(nothing_scored) == (False, "its record does not say the last stage's rank")
    assert learned(pretraining(record, "mine")) == "CPC"
    assert learned(pretraining(record, kind="histograms")) == "histograms"


def test_what_memory_is_worth_in_a_line(record: Make, tmp_path: Any) -> None:
    points = [
        {"seconds": 0.05 * step, "standing": 0.9 - 0.004 * step, "standing_knowing_nothing": 1.0, "standing_count": 3.0}
        for step in range(1, 61)
    ]
    made = pretraining(record, curves={"since_zeroed": points})
    assert memory_worth(made).endswith("standing: without memory 0.894, after 1 s 0.822, after 3 s 0.662")
    assert read_record(write_record(made, tmp_path))["curves"]["since_zeroed"][59] == points[59]
    assert memory_worth(pretraining(record)) == ""


@pytest.mark.parametrize("wrong", [[], {"since_zeroed": 3}, {"since_zeroed": [{"seconds": "x"}]}])
def test_curves_that_are_none_are_refused(record: Make, wrong: Any) -> None:
    with pytest.raises(UserError, match="field 'curves' holds"):
        check_record({**record(), "curves": wrong}, "x", SCHEMA)

from __future__ import annotations

import math
import re

from hypothesis import given
from hypothesis import strategies as st

from tespec.report.charts import HEIGHT, WIDTH, Line, bar_chart, line_chart, ticks

NUMBERS = st.floats(-1e6, 1e6)


@given(NUMBERS, NUMBERS)
def test_ticks_are_few_rise_and_hold_the_range(first: float, second: float) -> None:
    low, high = sorted((first, second))
    found = ticks(low, high)
    assert 2 <= len(found) <= 7
    assert found == sorted(set(found))
    margin = 1e-6 * max(1.0, abs(low), abs(high))
    assert found[0] <= low + margin
    assert found[-1] >= high - margin


@given(st.lists(st.tuples(st.floats(-1e6, 1e6), NUMBERS), max_size=20))
def test_curves_stay_in_their_frame(points: list[tuple[float, float]]) -> None:
    chart = line_chart("loss", [Line("a", points, "#000000")], "step")
    drawn = re.search(r' points="(.*?)"', chart)
    assert drawn is not None
    for pair in drawn[1].split():
        x, y = map(float, pair.split(","))
        assert 0 <= x <= WIDTH
        assert 0 <= y <= HEIGHT


def test_numbers_beyond_all_bounds_are_not_drawn() -> None:
    points = [(1e308, -1e308), (-1e308, 1e308), (1, 10**300), (2, 5.0), (3, 6.0)]
    chart = line_chart("loss", [Line("a", points, "#000000")], "step")
    drawn = re.search(r' points="(.*?)"', chart)
    assert drawn is not None
    assert len(drawn[1].split()) == 2


def test_numbers_that_are_none_leave_a_gap() -> None:
    chart = bar_chart("classes", {"flat": [50.0, None], "human": [math.nan, 100.0]}, ["#111111", "#222222"], 100.0)
    assert re.findall(r'fill="(#\w+)"', chart) == ["#111111", "#222222"]
    widths = [float(each) for each in re.findall(r'<rect .*? width="(.*?)"', chart)]
    assert widths[1] == 2 * widths[0]


def test_long_labels_are_cut_and_kept_whole_in_their_tip() -> None:
    name = "interlaken_00_a_with_a_very_long_name"
    chart = bar_chart("recordings", {name: [1.0]}, ["#111111"], 1.0)
    assert f"<title>{name}</title>" in chart
    assert f">{name[:19]}…</text>" in chart

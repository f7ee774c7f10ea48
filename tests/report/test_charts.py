from __future__ import annotations

import base64
import math
import re
import xml.etree.ElementTree as ET

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tespec.report.charts import Curve, Picture, bar_chart, line_chart, pretraining_curves

NUMBERS = st.floats(-1e6, 1e6)


def svg(picture: Picture) -> str:
    kind, _, data = picture.source.partition(",")
    assert kind == "data:image/svg+xml;base64"
    return base64.b64decode(data).decode("utf-8")


def texts(picture: Picture) -> list[str]:
    return [each.text or "" for each in ET.fromstring(svg(picture)).iter("{http://www.w3.org/2000/svg}text")]


def bars_of(picture: Picture, colour: str) -> list[float]:
    """Lengths of the bars of one colour, in units of the drawing."""
    lengths = []
    for path in ET.fromstring(svg(picture)).iter("{http://www.w3.org/2000/svg}path"):
        if f"fill: {colour}" in path.get("style", ""):
            xs = [float(number) for number in re.findall(r"[ML] ([-\d.]+) ", path.get("d", "") + " ")]
            lengths.append(max(xs) - min(xs))
    return lengths


@settings(max_examples=15, deadline=None)
@given(st.lists(st.tuples(NUMBERS, NUMBERS), max_size=20))
def test_any_curve_is_drawn_and_has_its_units(points: list[tuple[float, float]]) -> None:
    found = texts(line_chart("a title", [Curve("a", points, "#000000")], "step", "loss"))
    assert {"step", "loss"} <= set(found)


def test_numbers_beyond_all_bounds_are_not_drawn() -> None:
    points = [(1e308, -1e308), (-1e308, 1e308), (1, 10**300), (2, math.inf), (1, 5.0), (3, 6.0)]
    expected = line_chart("loss", [Curve("a", [(1, 5.0), (3, 6.0)], "#000000")], "step", "loss")
    assert line_chart("loss", [Curve("a", points, "#000000")], "step", "loss") == expected


def test_the_same_numbers_give_the_same_bytes() -> None:
    first, second = (bar_chart("classes", {"flat": [50.0]}, [("one", "#111111")], "mIoU") for _ in range(2))
    assert first == second
    assert "<dc:date>" not in svg(first)


def test_numbers_that_are_none_leave_a_gap() -> None:
    series = [("one", "#111111"), ("two", "#222222")]
    chart = bar_chart("classes", {"flat": [50.0, None], "human": [math.nan, 100.0]}, series, "mIoU ↑")
    (short,), (long,) = bars_of(chart, "#111111"), bars_of(chart, "#222222")
    assert long == pytest.approx(2 * short, rel=1e-3)
    assert {"50", "100", "one", "two", "mIoU ↑"} <= set(texts(chart))


@pytest.mark.parametrize("name", ["$x", "$\\frac{$", "_hidden", "<b>&", "a\x00b\x1b", "\u202eb", "x" * 500])
def test_a_name_is_text_whatever_it_holds(name: str) -> None:
    chart = bar_chart("recordings", {name: [1.0, 2.0]}, [(name, "#111111"), ("b", "#222222")], "mIoU")
    shown = [each.strip().rstrip("…") for each in texts(chart)]
    plain = name.translate({0: 0xFFFD, 0x1B: 0xFFFD, 0x202E: 0xFFFD})
    assert sum(bool(each) and plain.startswith(each) for each in shown) >= 2


def test_each_pretraining_has_a_title_of_its_own(make) -> None:
    configs = [{"objective": {"masking": {"ratio": 0.5, "size": 32}}, "steps": 10} for _ in range(4)]
    configs[3] = {"objective": {"masking": {"ratio": 0.3, "size": 32}}, "steps": 10}
    seeds = (0, 1, 2, 0)
    records = [
        make("tespec", seed, kind="pretraining", config=config) for seed, config in zip(seeds, configs, strict=True)
    ]
    titles = [each.title for each in pretraining_curves(records)]
    assert len(set(titles)) == 4
    assert all(title.startswith("Method tespec, recurrent, on sample, sample, seed") for title in titles)
    assert sum(title.endswith(": objective.masking.ratio = 0.3") for title in titles) == 1

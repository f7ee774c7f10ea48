from __future__ import annotations

import base64
import math
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tespec.report import charts
from tespec.report.breakdown import class_and_recording_bars
from tespec.report.charts import ARCHITECTURES, Curve, Picture, bar_chart, bounds_of, line_chart
from tespec.report.curves import finetuning_curves, pretraining_curves

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


def drawn(curves: list[Curve]) -> Picture:
    return line_chart("a title", curves, "step", "loss", bounds_of(curves))


@settings(max_examples=15, deadline=None)
@given(st.lists(st.tuples(NUMBERS, NUMBERS), max_size=20))
def test_any_curve_is_drawn_and_has_its_units(points: list[tuple[float, float]]) -> None:
    found = texts(drawn([Curve("a", points, "#000000")]))
    assert {"step", "loss"} <= set(found)


def test_numbers_beyond_all_bounds_are_not_drawn() -> None:
    points = [(1e308, -1e308), (-1e308, 1e308), (1, 10**300), (2, math.inf), (1, 5.0), (3, 6.0)]
    assert drawn([Curve("a", points, "#000000")]) == drawn([Curve("a", [(1, 5.0), (3, 6.0)], "#000000")])


def test_losses_that_fall_far_have_a_logarithmic_axis() -> None:
    far, near = ([Curve("a", [(1, 100.0), (2, last)], "#000000")] for last in (1.0, 50.0))
    assert any("10" in text and "1" in text for text in texts(drawn(far)))
    assert {"60", "80"} <= set(texts(drawn(near)))
    assert not {"60", "80"} <= set(texts(drawn(far)))


def test_the_same_numbers_give_the_same_bytes() -> None:
    first, second = (bar_chart("classes", {"flat": [[50.0]]}, [("one", "#111111")], "mIoU") for _ in range(2))
    assert first == second
    assert "<dc:date>" not in svg(first)


def test_bars_are_means_and_numbers_that_are_none_leave_a_gap() -> None:
    series = [("one", "#111111"), ("two", "#222222")]
    chart = bar_chart("classes", {"flat": [[40.0, 60.0], []], "human": [[math.nan], [100.0]]}, series, "mIoU ↑")
    (short,), (long,) = bars_of(chart, "#111111"), bars_of(chart, "#222222")
    assert long == pytest.approx(2 * short, rel=1e-3)
    assert {"one", "two", "mIoU ↑"} <= set(texts(chart))


@pytest.mark.parametrize("name", ["$x", "$\\frac{$", "_hidden", "<b>&", "a\x00b\x1b", "\u202eb", "x" * 500])
def test_a_name_is_text_whatever_it_holds(name: str) -> None:
    chart = bar_chart("recordings", {name: [[1.0], [2.0, 3.0]]}, [(name, "#111111"), ("b", "#222222")], "mIoU")
    shown = [each.strip().rstrip("…") for each in texts(chart)]
    plain = name.translate({0: 0xFFFD, 0x1B: 0xFFFD, 0x202E: 0xFFFD})
    assert sum(bool(each) and plain.startswith(each.partition("…")[0]) for each in shown) >= 2


def lines_of(picture: Picture) -> list[str]:
    """Names of the runs whose curves are in a chart."""
    names = [each.get("id", "") for each in ET.fromstring(svg(picture)).iter("{http://www.w3.org/2000/svg}g")]
    return sorted(name for name in names if name.startswith(("evaluation-", "pretraining-")))


def test_every_run_has_one_curve_under_a_title_that_names_it(make) -> None:
    records = [
        make(name, seed, arch=arch)
        for name in ("scratch", "tespec")
        for arch in ("recurrent", "feedforward")
        for seed in range(2)
    ]
    (found,) = finetuning_curves(records)
    assert found.heading == "Fine-tuning, DDD17 on the sample world"
    assert found.architectures == ("recurrent", "feedforward")
    where = "DDD17 on the sample world: recurrent, seeds 0, 1; feed-forward, seeds 0, 1"
    assert [each.title for each in found.charts] == [f"Method tespec, {where}", f"Method scratch, {where}"]
    named = [name for chart in found.charts for name in lines_of(chart)]
    assert sorted(named) == sorted(record["name"] for record in records)


def test_charts_of_one_task_have_the_same_axes(make) -> None:
    records = [
        make(name, curve=[{"step": 1, "loss": 4.0}, {"step": 9, "loss": last}])
        for name, last in (("a", 1.0), ("b", 3.9))
    ]
    (found,) = finetuning_curves(records)
    ticks = [[text for text in texts(chart) if re.fullmatch(r"[\d.]+", text)] for chart in found.charts]
    assert ticks[0] == ticks[1]


def test_each_setting_of_a_pretraining_has_a_chart_of_its_own(make) -> None:
    configs = [{"objective": {"masking": {"ratio": 0.5, "size": 32}}, "steps": 10} for _ in range(4)]
    configs[3] = {"objective": {"masking": {"ratio": 0.3, "size": 32}}, "steps": 10}
    seeds = (0, 1, 2, 0)
    records = [
        make("tespec", seed, kind="pretraining", config=config) for seed, config in zip(seeds, configs, strict=True)
    ]
    (found,) = pretraining_curves(records)
    where = "pre-training on the sample world"
    assert [each.title for each in found.charts] == [
        f"Method tespec, {where}: recurrent, seeds 0, 1, 2",
        f"Method tespec, objective.masking.ratio = 0.3, {where}: recurrent, seed 0",
    ]
    assert [len(lines_of(chart)) for chart in found.charts] == [3, 1]


def test_the_legend_of_the_page_has_the_colours_of_the_charts() -> None:
    style = (Path(charts.__file__).parent / "style.css").read_text(encoding="utf-8")
    for arch, colour in ARCHITECTURES.items():
        (found,) = re.findall(rf"\.keys \.{arch}::before {{ border-color: (#\w+);", style)
        assert found == colour


def test_runs_without_a_curve_have_no_chart(make) -> None:
    assert finetuning_curves([make(curve=[])]) == []
    assert pretraining_curves([make(kind="pretraining", curve=[])]) == []


def test_recordings_whose_names_are_long_are_told_apart(make) -> None:
    names = [f"17-04-13_15-05-{number}_500000_8500000" for number in (20, 21)]
    bars = class_and_recording_bars([make(recordings={name: {"miou": 1.0} for name in names}, classes={})])
    assert {"…20…", "…21…"} <= set(texts(bars[0]))
    (short,) = class_and_recording_bars([make(recordings={"dir1": {"miou": 1.0}, "dir2": {"miou": 1.0}}, classes={})])
    assert {"dir1", "dir2"} <= set(texts(short))

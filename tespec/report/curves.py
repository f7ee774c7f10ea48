"""Training curves of the runs: one chart for each task, and one for each pre-training objective."""

from __future__ import annotations

from collections.abc import Sequence

from tespec.comparison.records import Record
from tespec.report.charts import Line, colour, legend, line_chart


def curves(records: Sequence[Record]) -> str:
    """Charts of all runs that have a curve; the lowest seed of each method and architecture."""
    return _finetuning(records) + _pretraining(records)


def _finetuning(records: Sequence[Record]) -> str:
    chosen = first_seeds([record for record in records if record["kind"] == "evaluation" and record["curve"]])
    if not chosen:
        return ""
    every = method_colours([record for record in records if record["kind"] == "evaluation"])
    colours = {name: every[name] for name in sorted({record["method_name"] for record in chosen})}
    charts = []
    for task, data, profile in sorted({(each["task"], each["data"], each["profile"]) for each in chosen}):
        of_task = [each for each in chosen if (each["task"], each["data"], each["profile"]) == (task, data, profile)]
        lines = [
            Line(
                f"{each['method']['title']} ({each['arch']})",
                points(each),
                colours[each["method_name"]],
                each["arch"] != "recurrent",
            )
            for each in of_task
        ]
        where = "" if data == task else f" on {data}"
        charts.append(line_chart(f"{task}{where}, {profile}: training loss", lines, "step"))
    titles = {each["method_name"]: str(each["method"]["title"]) for each in chosen}
    entries = [(titles[name], each, False) for name, each in colours.items()]
    return (
        f"<h3>Fine-tuning</h3>{legend([*entries, ('feed-forward', '#777777', True)])}"
        f'<div class="charts">{"".join(charts)}</div>'
    )


def _pretraining(records: Sequence[Record]) -> str:
    chosen = [record for record in records if record["kind"] == "pretraining" and record["curve"]]
    charts = []
    for number, record in enumerate(sorted(chosen, key=lambda record: record["name"])):
        objective = record["config"].get("objective", {})
        kind = objective.get("type", "") if isinstance(objective, dict) else str(objective)
        target = objective.get("target") if isinstance(objective, dict) else None
        kind += f" ({target['kind']})" if isinstance(target, dict) and "kind" in target else ""
        title = f"{record['method_name']}, {record['arch']}, seed {record['seed']}: {kind}"
        charts.append(line_chart(title, [Line(record["name"], points(record), colour(number))], "step"))
    return f'<h3>Pre-training</h3><div class="charts">{"".join(charts)}</div>' if charts else ""


def points(record: Record) -> list[tuple[float, float]]:
    """(step, loss) of a record's curve."""
    return [(each["step"], each["loss"]) for each in record["curve"] if {"step", "loss"} <= each.keys()]


def first_seeds(records: Sequence[Record]) -> list[Record]:
    """The lowest seed of each method, task, architecture, data and profile; the newest where there are several."""
    found: dict[tuple[str, ...], Record] = {}
    for record in sorted(records, key=lambda record: (-record["seed"], record["written"])):
        key = (record["method_name"], record["task"], record["arch"], record["data"], record["profile"])
        found[key] = record
    return sorted(found.values(), key=lambda record: record["name"])


def method_colours(records: Sequence[Record]) -> dict[str, str]:
    """A colour for each method, the same in all charts."""
    names = sorted({record["method_name"] for record in records})
    return {name: colour(number) for number, name in enumerate(names)}

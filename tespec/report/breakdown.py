"""Scores of single classes and recordings, as bars."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import takewhile

from tespec.comparison.basis import Basis, bases
from tespec.comparison.identity import TEST
from tespec.comparison.published import scheme_of
from tespec.comparison.records import Record
from tespec.comparison.side_by_side import split_title
from tespec.report.charts import ARCHITECTURES, LETTERS, WORDS, Picture, bar_chart, method_colours, preference, title_of

RECORDINGS = 12  # shown at most


def class_and_recording_bars(records: Sequence[Record]) -> list[Picture]:
    """Two charts for each basis and architecture: scores of each class, and of each recording, by method."""
    evaluations = [record for record in records if record["kind"] == "evaluation"]
    colours, found = method_colours(evaluations), bases(evaluations)
    charts = []
    for basis, where in zip(found, headings(found), strict=True):
        scheme = scheme_of(basis.task, evaluations)
        for arch in ARCHITECTURES:
            runs: dict[str, list[Record]] = {}
            for record in sorted(basis.records, key=lambda record: (preference(record["method_name"]), record["seed"])):
                if record["arch"] == arch:
                    runs.setdefault(record["method_name"], []).append(record)
            series = [(title_of(members[0]), colours[name]) for name, members in runs.items()]
            classes = _numbers(runs, lambda record: record["classes"])
            recordings = _told_apart(_numbers(runs, partial(_of_recordings, name=scheme.main.name)))
            some = dict(list(recordings.items())[:RECORDINGS])
            cut = f", {RECORDINGS} of {len(recordings)}" if len(recordings) > RECORDINGS else ""
            heading = f"{where}, {WORDS[arch]}"
            for title, values in ((f"{heading}: classes", classes), (f"{heading}: recordings{cut}", some)):
                charts += [bar_chart(title, values, series, scheme.main.title)] if values else []
    return charts


def headings(found: Sequence[Basis]) -> list[str]:
    """Task, data and split of each basis; profiles and numbers, as in the tables, where they tell them apart."""
    titles = [scheme_of(basis.task, basis.records).title_of(basis.task) for basis in found]
    named = [(basis.task, basis.data, basis.profile, basis.split) for basis in found]
    texts = []
    for index, (title, name) in enumerate(zip(titles, named, strict=True)):
        task, data, profile, split = name
        number = f" ({named[:index].count(name) + 1})" if named.count(name) > 1 else ""
        profiles = {each[2] for each in named if each[:2] == (task, data)}
        told = f", {profile}" if len(profiles) > 1 else ""
        told += f", {split_title(split)} split" if split != TEST else ""
        where = {task: "", "sample": " on the sample world"}.get(data, f" on {data}")
        texts.append(f"{title}{where}{told}{number}")
    return texts


def _told_apart(table: Mapping[str, list[list[float]]]) -> dict[str, list[list[float]]]:
    """Long names without the parts that all of them begin and end with."""
    if len(table) < 2 or max(map(len, table)) <= LETTERS:
        return dict(table)
    begin = _shared_parts(list(table))
    end = _shared_parts([name[len(begin) :][::-1] for name in table])
    return {f"…{name[len(begin) : len(name) - len(end)]}…": values for name, values in table.items()}


def _shared_parts(names: Sequence[str]) -> str:
    """The parts between dashes and the like that all names begin with."""
    same = takewhile(lambda letters: len(set(letters)) == 1, zip(*names, strict=False))
    begin = "".join(letters[0] for letters in same)
    return begin[: 1 + max(begin.rfind(mark) for mark in "-_. ")]


def _of_recordings(record: Record, name: str) -> dict[str, float]:
    return {title: each[name] for title, each in record["recordings"].items() if name in each}


def _numbers(
    runs: Mapping[str, Sequence[Record]], numbers: Callable[[Record], Mapping[str, float]]
) -> dict[str, list[list[float]]]:
    """Numbers of the seeds by label, for each method in order; none where a seed lacks the label."""
    labels = dict.fromkeys(label for members in runs.values() for record in members for label in numbers(record))
    table: dict[str, list[list[float]]] = {}
    for label in labels:
        table[label] = [
            [numbers(record)[label] for record in members] if all(label in numbers(each) for each in members) else []
            for members in runs.values()
        ]
    return table

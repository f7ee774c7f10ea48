"""Builds a comparison table: published numbers, and a block of measured columns for each basis beside them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from tespec.comparison.basis import (
    Basis,
    average,
    bases,
    is_default,
    is_older,
    learns_all,
    metric,
    rate_of_weights,
)
from tespec.comparison.identity import TEST
from tespec.comparison.published import CitedRow, Named, Scheme, read_scheme
from tespec.comparison.records import Record, of_different_arithmetic
from tespec.comparison.references import ABOUT, is_reference
from tespec.comparison.rows import (
    PUBLISHED,
    Entry,
    as_measured,
    by_entry,
    entries_of,
    is_published_anew,
    made_from,
    network_of,
)
from tespec.comparison.table import Cell, Column, Group, Row, Table, undecided, with_best_bold

LABELS = (("Method", "title"), ("Backbone", "backbone"), ("Recurrent", "recurrent"), ("Pre-training", "pretraining"))
COLUMNS = ("both", "paper", "measured")
FRAMES = ("moving", "standing")  # groups by the camera's motion
MODIFIED = "§"  # behind numbers of which a run's code was modified
NOT_AT_HAND = "¶"  # in place of a number that could not be read
MARKS = {
    MODIFIED: "made by code with uncommitted changes, which no revision holds",
    NOT_AT_HAND: "published, but in no source that was at hand",
}
BOLD = (
    "Bold: the paper's own; of measured numbers, the best of a column and all that cannot be told from it at 95 % "
    "(t-tests over seeds with one variance for the column, corrected for their number). Where no number can be ruled "
    "out, none is bold."
)


@dataclass(frozen=True)
class Block:
    """A basis, the heading and the one-word name of its columns, and the records of each entry in it."""

    basis: Basis
    heading: str
    key: str
    records: Mapping[int, list[Record]]


@dataclass(frozen=True)
class Measure:
    """A number that a record holds: a metric over all frames, or over a named group of them."""

    metric: Named
    frames: str = ""

    @property
    def title(self) -> str:
        """Header of its column."""
        return f"{self.frames} {self.metric.title}".strip()


def published_table(name: str, records: Sequence[Record], columns: str = "both") -> Table:
    """A comparison table: the paper's numbers, where it has any of the task, with what was measured beside them.

    Floor and ceiling have rows of their own where methods were measured on their basis.

    Args:
        name: one of `schemes`.
        records: any records; those that are no evaluation of a task of the table, and no reference, are left out.
        columns: "both", "paper" or "measured".
    """
    scheme = read_scheme(name, records)
    tasks = {task.name for task in scheme.tasks}
    fitting = [record for record in records if record["kind"] == "evaluation" or is_reference(record)]
    found = bases([record for record in fitting if record["task"] in tasks])
    compared = [basis for basis in found if not all(map(is_reference, basis.records))]
    return replace(side_by_side(scheme, compared, FRAMES, columns), name=name)


def side_by_side(scheme: Scheme, found: Sequence[Basis], frames: Sequence[str] = (), columns: str = "both") -> Table:
    """The published table with measured columns.

    Args:
        scheme: rows and numbers as published.
        found: measured results of the paper's tasks; others are left out.
        frames: groups of frames, whose main metric is shown beside the overall ones where records have it.
        columns: "paper" leaves the measured columns out, "measured" the published ones and the rows not measured.
    """
    columns = columns if scheme.groups else "measured"
    used = [basis for task in scheme.tasks for basis in found if basis.task == task.name and columns != "paper"]
    entries, headings = entries_of(scheme, used)
    blocks = [
        Block(basis, heading, key, by_entry(basis, entries, scheme))
        for basis, (heading, key) in zip(used, _headings(scheme, used), strict=True)
    ]
    members = [[record for block in blocks for record in block.records.get(index, [])] for index in range(len(entries))]
    entries = [
        as_measured(entry, records) if columns == "measured" or not entry.published else entry
        for entry, records in zip(entries, members, strict=True)
    ]
    pairs = [_label(title, key, entries) for title, key in LABELS]
    for task in scheme.tasks:
        if columns != "measured":
            pairs += _published(scheme, task, entries, divided=bool(blocks))
        for block in blocks:
            if block.basis.task == task.name:
                pairs += _measured(scheme, task, block, entries, frames, differences=columns == "both")
    heads = [column for column, _ in pairs]
    rows = {
        index: Row(tuple(cells[index] for _, cells in pairs), not entry.ranked, entry.facts, _about(entry.cited))
        for index, entry in enumerate(entries)
        if columns != "measured" or members[index]
    }
    groups = [
        Group(heading, tuple(rows[index] for index in each if index in rows))
        for heading, each in headings
        if any(index in rows for index in each)
    ]
    bold = with_best_bold(groups, heads)
    notes = [BOLD] * bool(blocks)
    for block in blocks:
        silent = [column.headers[-1].rstrip(" ↑↓") for index, column in enumerate(heads)
                  if column.facts.get("basis") == block.key and column.facts["task"] == block.basis.task
                  and undecided(bold, index)]  # fmt: skip
        if silent:
            title = scheme.title_of(block.basis.task)
            notes.append(f"{title}, {block.heading}: nothing can be told apart in {', '.join(silent)}.")
    notes += [ABOUT] if any(is_reference(record) for records in members for record in records) else []
    for block in blocks:
        notes += basis_notes(block.basis, block.heading, scheme.title_of(block.basis.task))
    return Table(scheme.title, tuple(heads), bold, scheme.marks | MARKS, tuple(dict.fromkeys(notes)))


def _headings(scheme: Scheme, used: Sequence[Basis]) -> list[tuple[str, str]]:
    """Heading and key of each basis; a number tells those of the same task, data, profile and split apart."""
    named = [(basis.task, basis.data, basis.profile, basis.split) for basis in used]
    headings = []
    for index, (basis, name) in enumerate(zip(used, named, strict=True)):
        number = str(named[:index].count(name) + 1) if named.count(name) > 1 else ""
        heading = f"measured: {_data(scheme, basis)}, profile {basis.profile}"
        if basis.split != TEST:
            heading += f", {split_title(basis.split)} split"
        heading += f" ({number})" if number else ""
        split = basis.split if basis.split != TEST else ""
        headings.append((heading, " ".join(filter(None, ("measured", basis.data, basis.profile, split, number)))))
    return headings


def split_title(split: str) -> str:
    """What a split is called in tables."""
    return "validation" if split == "val" else split


def _data(scheme: Scheme, basis: Basis) -> str:
    if basis.data == "sample":
        return "sample world"
    return next((task.title for task in scheme.tasks if task.name == basis.data), basis.data)


def _label(title: str, key: str, entries: Sequence[Entry]) -> tuple[Column, list[Cell]]:
    return Column((title,), title, number=False), [Cell(entry.facts[key]) for entry in entries]


def _published(
    scheme: Scheme, task: Named, entries: Sequence[Entry], *, divided: bool
) -> list[tuple[Column, list[Cell]]]:
    pairs = []
    for each in scheme.metrics:
        headers = (task.title, "paper", each.title) if divided else (task.title, each.title)
        facts = {"task": task.name, "source": "paper", "metric": each.name, "unit": each.unit, "split": TEST}
        column = Column(headers, f"{task.name} {each.name} paper", each.better, facts=facts)
        pairs.append((column, [_published_cell(entry, task, each, scheme.decimals) for entry in entries]))
    return pairs


def _measured(
    scheme: Scheme,
    task: Named,
    block: Block,
    entries: Sequence[Entry],
    frames: Sequence[str],
    *,
    differences: bool,
) -> list[tuple[Column, list[Cell]]]:
    basis, pairs = block.basis, []
    members = [block.records.get(index, []) for index in range(len(entries))]
    where = {"task": task.name, "data": basis.data, "profile": basis.profile, "split": basis.split, "basis": block.key}
    for measure in [Measure(each) for each in scheme.metrics] + [Measure(scheme.main, group) for group in frames]:
        each = measure.metric
        cells = [
            measured_cell([metric(record, each.name, measure.frames) for record in records], records, scheme.decimals)
            for records in members
        ]
        if measure.frames and all(cell.value is None for cell in cells):
            continue
        facts = where | {"metric": each.name, "unit": each.unit, "frames": measure.frames}
        key = " ".join(filter(None, (task.name, measure.frames, each.name, block.key)))
        headers = (task.title, block.heading)
        column = Column((*headers, measure.title), key, each.better, facts=facts | {"source": "measured"})
        made = [as_measured(entry, records).facts for entry, records in zip(entries, members, strict=True)]
        pairs.append((column, [replace(cell, facts=own) for cell, own in zip(cells, made, strict=True)]))
        # The distance of a synthetic world's number from a real data set's means nothing, nor that of another split's,
        # nor that of fewer labels.
        real = basis.data != "sample" and (basis.split, basis.profile) == (TEST, PUBLISHED)
        real &= learns_all(basis.records[0])
        if differences and not measure.frames and real:
            column = Column((*headers, "Δ"), f"{key} minus paper", facts=facts | {"source": "difference"})
            papers = [
                _paper(entry, task, each) if is_published_anew(entry, records) else None
                for entry, records in zip(entries, members, strict=True)
            ]
            pairs.append(
                (column, [difference_cell(*both, scheme.decimals) for both in zip(cells, papers, strict=True)])
            )
    column = Column((task.title, block.heading, "seeds"), f"{task.name} seeds {block.key}")
    pairs.append((column, [Cell(str(len(records)), len(records)) if records else Cell() for records in members]))
    return pairs


def _paper(entry: Entry, task: Named, each: Named) -> float | None:
    return entry.published.scores[task.name, each.name] if entry.published else None


def _published_cell(entry: Entry, task: Named, each: Named, decimals: int) -> Cell:
    """A published number; a footnote of its row is the number's own, and says nothing of one measured beside it."""
    if entry.cited is not None and (task.name, each.name) in entry.cited.scores:
        cited = entry.cited.scores[task.name, each.name]
        return Cell(mark=NOT_AT_HAND) if cited is None else Cell(f"{cited:.{decimals}f}", cited)
    value = _paper(entry, task, each)
    if entry.published is None or value is None:
        return Cell()
    bold = (task.name, each.name) in entry.published.bold
    return Cell(f"{value:.{decimals}f}", value, bold=bold, mark=entry.published.mark)


def _about(row: CitedRow | None) -> str:
    """The note of a row of another publication; empty for other rows."""
    if row is None:
        return ""
    return (
        f"{row.title}, {row.backbone} (grey): not the paper's, nor held against it, but of {row.citation}. "
        f"Protocol ({row.source}): {row.protocol}. Other than here: {row.differs}."
    )


def measured_cell(values: Sequence[float | None], records: Sequence[Record], decimals: int) -> Cell:
    """The mean over records of their `values`, with its deviation; "-" where there is none, or one is missing."""
    found = average(values)
    if found is None:
        return Cell()
    spread = "" if found.deviation is None else f" ± {found.deviation:.{decimals}f}"
    return Cell(
        f"{found.value:.{decimals}f}{spread}",
        found.value,
        found.deviation,
        found.runs,
        {record["seed"]: value for record, value in zip(records, values, strict=True) if value is not None},
        interval=None if found.interval is None else (found.interval.low, found.interval.high),
        sources=tuple(record["name"] for record in records),
        mark=MODIFIED if any(record["environment"].get("modified") is True for record in records) else "",
    )


def difference_cell(found: Cell, published: float | None, decimals: int) -> Cell:
    """How far a measured number is from the published one; "-" where one of them is missing."""
    if found.value is None or published is None:
        return Cell()
    return Cell(f"{found.value - published:+.{decimals}f}", found.value - published, runs=found.runs)


SAMPLE = (
    "The sample world is a small synthetic driving world. Its numbers compare methods at small scale; they are no "
    "measurement of {title} and not comparable with the paper's."
)

# Code is named by such a version in records that were computed before the corrections; newer ones name it otherwise.
BEFORE_CORRECTIONS = re.compile(r"\d+\.\d+\.\d+\+r[0-3]")


def of_older_code(records: Iterable[Record]) -> str:
    """A sentence on records from before the corrections of the code; empty where there are none."""
    versions = sorted({record["code"] for record in records if BEFORE_CORRECTIONS.fullmatch(record["code"])})
    if not versions:
        return ""
    return (
        f"Results of version {', '.join(versions)}, before the corrections in CHANGELOG.md; they do not describe "
        "today's code."
    )


def basis_notes(basis: Basis, heading: str, title: str) -> list[str]:
    """Notes on the measured columns of one basis.

    Args:
        basis: what was measured.
        heading: of its columns.
        title: of the task's data set.
    """
    seeds = ", ".join(map(str, basis.seeds))
    word, spread = (
        ("seeds", "; mean ± sample standard deviation over seeds (95 % Student-t intervals: the long CSV)")
        if len(basis.seeds) > 1
        else ("seed", "")
    )
    notes = [f"{title}, {heading}; {word} {seeds}{spread}."]
    smaller = {(record["method"].get("backbone") or "", network_of(record)) for record in basis.records}
    if named := "; ".join(f"{ours} for {theirs}" for theirs, ours in sorted(smaller) if theirs and ours != theirs):
        notes.append(f"{title}, {heading}: smaller networks: {named}.")
    if basis.differs:
        notes.append(f"{title}, {heading}: {basis.differs}.")
    if basis.data == "sample":
        notes.append(SAMPLE.format(title=title))
    deviations = basis.records[0]["config"].get("deviations") or []
    if deviations:
        notes.append(f"Profile {basis.profile} deviates from the paper: {'; '.join(map(str, deviations))}.")
    if made := _made_here(basis):
        notes.append(f"{title}, {heading}: weights made here: {made}.")
    if names := _names(basis, lambda cell: len({record["weights"].get("sha256") or "" for record in cell}) > 1):
        notes.append(f"{title}, {heading}: the seeds of {names} start from different weights.")
    if names := _names(basis, lambda cell: not is_default(cell[0])):
        notes.append(f"{title}, {heading}: the weights of {names} come from a pre-training with changed settings.")
    if rates := sorted({
        f"{' '.join(record['method']['title'].split())} at {rate:g}"
        for record in basis.records
        if (rate := rate_of_weights(record)) is not None
    }):  # fmt: skip
        notes.append(f"{title}, {heading}: peak rates after what weights are pre-trained on: {', '.join(rates)}.")
    if basis.of_other_code:
        count = len(basis.of_other_code)
        notes.append(f"{title}, {heading}: {count} run{'s' if count > 1 else ''} of a row by older code left out.")
    if basis.variants:
        count, older = len(basis.variants), sum(map(is_older, basis.variants))
        why = f" ({older} by recipes of an older version, which cannot be told apart)" if older else ""
        notes.append(
            f"{title}, {heading}: {count} run{'s' if count > 1 else ''} after other pre-trainings left out{why}."
        )
    if mixed := of_different_arithmetic(basis.records):
        notes.append(f"{title}, {heading}: {mixed}.")
    if basis.superseded:
        names = ", ".join(record["name"] for record in basis.superseded)
        notes.append(
            f"{title}, {heading}: newer records of the same seed from other weights stand in place of {names}."
        )
    return notes


def _names(basis: Basis, fits: Callable[[list[Record]], bool]) -> str:
    """The cells that fit, as methods with their architectures."""
    cells = (cell for cell in basis.cells().values() if fits(cell))
    return "; ".join(f"{cell[0]['method']['title']}, {cell[0]['arch']}" for cell in cells)


def _made_here(basis: Basis) -> str:
    """Methods whose weights were pre-trained here, and on what."""
    made = {
        f"{' '.join(record['method']['title'].split())} on {source}"
        for record in basis.records
        if (source := made_from(record))
    }
    return "; ".join(sorted(made))

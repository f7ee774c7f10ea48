"""Rows of a comparison table: the published ones, and one for each measured method that has none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tespec.comparison.basis import Basis, RowKey, row_key
from tespec.comparison.published import PublishedRow, Scheme
from tespec.comparison.records import Record
from tespec.comparison.table import MISSING

OWN_GROUP = "Methods added here"
PUBLISHED, SAMPLE = "paper", "sample"  # the paper's own profile, and data of the sample world


@dataclass(frozen=True)
class Entry:
    """What a row of the table is about: a published row, or records that share a `key` and have none."""

    facts: dict[str, str]
    published: PublishedRow | None = None
    key: RowKey | None = None

    @property
    def ranked(self) -> bool:
        """Whether the row takes part in the search for the best number."""
        return self.published is None or self.published.ranked


def match(record: Record, scheme: Scheme) -> int | None:
    """Index of the published row that a record measures again, None where the paper has none.

    Method, memory and backbone have to agree, and test-time augmentation where the paper has rows with and without.
    """
    facts = record["method"]
    alike = [
        index
        for index, row in enumerate(scheme.rows)
        if (row.method, row.recurrent) == (record["method_name"], record["arch"] == "recurrent")
        and facts.get("backbone", row.backbone) == row.backbone
    ]
    if len(alike) > 1:
        # How it was evaluated here, whatever the published number was made with.
        augmented = record["config"].get("test_time_augmentation", "none") != "none"
        alike = [index for index in alike if scheme.rows[index].test_time_augmentation == augmented]
    return alike[0] if alike else None


def entries_of(scheme: Scheme, used: Sequence[Basis]) -> tuple[list[Entry], list[tuple[str, list[int]]]]:
    """All entries, published ones first, and the table's groups as (heading, indices of entries)."""
    entries = [Entry(_published_facts(row), row) for row in scheme.rows]
    headings: list[tuple[str, list[int]]] = []
    first = 0
    for group in scheme.groups:
        headings.append((group.heading, list(range(first, first + len(group.rows)))))
        first += len(group.rows)
    own: dict[str, list[int]] = {}
    known: set[RowKey] = set()
    records = [record for basis in used for record in basis.records if match(record, scheme) is None]
    for record in sorted(records, key=lambda record: (record["method"]["title"], record["arch"] != "recurrent")):
        key = row_key(record)
        if key not in known:
            known.add(key)
            own.setdefault(record["method"].get("group") or OWN_GROUP, []).append(len(entries))
            entries.append(Entry(_own_facts(record), key=key))
    return entries, [*headings, *own.items()]


def _published_facts(row: PublishedRow) -> dict[str, str]:
    return {
        "method": row.method,
        "arch": "recurrent" if row.recurrent else "feedforward",
        "title": row.title,
        "backbone": row.backbone,
        "recurrent": "Yes" if row.recurrent else "No",
        "pretraining": row.pretraining,
    }


def _own_facts(record: Record) -> dict[str, str]:
    return {
        "method": record["method_name"],
        "arch": record["arch"],
        "title": " ".join(record["method"]["title"].split()),
        "backbone": record["method"].get("backbone") or MISSING,
        "recurrent": "Yes" if record["arch"] == "recurrent" else "No",
        "pretraining": record["method"].get("pretraining_data") or MISSING,
    }


def as_measured(entry: Entry, records: Sequence[Record]) -> Entry:
    """An entry that says what its records were made with, where they agree and it is not what the paper's row says.

    The network has its size's name where a profile changes it, weights made here the data they were made from.
    """
    widths = {str(record["config"].get("width") or "") for record in records}
    sources = {made_from(record) for record in records}
    facts = dict(entry.facts)
    if len(widths) == 1 and all(record["profile"] != PUBLISHED for record in records) and (width := widths.pop()):
        facts["backbone"] = f"{entry.facts['backbone']} ({width})"
    if len(sources) == 1 and (source := sources.pop()):
        facts["pretraining"] = source
    return replace(entry, facts=facts)


def made_from(record: Record) -> str:
    """The data that a record's weights were pre-trained on here; empty for weights that were not made here."""
    recipe = record["weights"].get("recipe")
    if not isinstance(recipe, dict) or not recipe.get("data"):
        return ""
    data = str(recipe["data"])
    return f"{recipe.get('dataset', '')} of the sample world".strip() if data == SAMPLE else data


def by_entry(basis: Basis, entries: Sequence[Entry], scheme: Scheme) -> dict[int, list[Record]]:
    """Records of each entry, by its index in `entries`."""
    own = {entry.key: index for index, entry in enumerate(entries)}
    found: dict[int, list[Record]] = {}
    for record in basis.records:
        index = match(record, scheme)
        entry = own[row_key(record)] if index is None else index
        found.setdefault(entry, []).append(record)
    return found

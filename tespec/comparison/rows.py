"""Rows of a comparison table: published ones, cited ones, one for each measured method without, floor and ceiling."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tespec.comparison.basis import Basis, RowKey, row_key
from tespec.comparison.published import CitedRow, PublishedRow, Scheme
from tespec.comparison.records import Record
from tespec.comparison.references import TITLES, is_reference
from tespec.comparison.table import MISSING

OWN_GROUP = "Methods added here"
BEYOND = "Beyond the paper"  # group of methods that other publications propose
PUBLISHED, SAMPLE = "paper", "sample"  # the paper's own profile, and data of the sample world
# Networks in records by the name of their width: None for those that methods name, else what a smaller one is.
NETWORKS = {
    **dict.fromkeys(("", "tiny", "resnet50", "maxvit-base")),
    "micro": "Swin/7, width 24",
    "resnet-micro": "ResNet10, width 24",
    "maxvit-micro": "MaxViT, width 24",
}


@dataclass(frozen=True)
class Entry:
    """What a row of the table is about: a published row, a cited one, or records that share a `key` and have none.

    Rows that are not ranked take no part in the search for the best number.
    """

    facts: dict[str, str]
    published: PublishedRow | None = None
    cited: CitedRow | None = None
    key: RowKey | None = None
    ranked: bool = True


def published_row_of(record: Record, scheme: Scheme) -> int | None:
    """Index of the published row that a record measures again, None where the paper has none.

    Method, memory and backbone have to agree, and test-time augmentation where the paper has rows with and without.
    """
    facts = record["method"]
    alike = [
        index
        for index, row in enumerate(scheme.rows)
        if (row.method, row.recurrent) == (record["method_name"], record["arch"] == "recurrent")
        and facts.get("backbone", row.backbone) == row.backbone
        and not is_reference(record)
    ]
    if len(alike) > 1:
        # How it was evaluated here, whatever the published number was made with.
        augmented = record["config"].get("test_time_augmentation", "none") != "none"
        alike = [index for index in alike if scheme.rows[index].test_time_augmentation == augmented]
    return alike[0] if alike else None


def entries_of(scheme: Scheme, used: Sequence[Basis]) -> tuple[list[Entry], list[tuple[str, list[int]]]]:
    """All entries, published ones first, then cited ones, and the table's groups as (heading, indices of entries)."""
    entries = [Entry(_published_facts(row), row, ranked=row.ranked) for row in scheme.rows]
    headings: list[tuple[str, list[int]]] = []
    first = 0
    for group in scheme.groups:
        headings.append((group.heading, list(range(first, first + len(group.rows)))))
        first += len(group.rows)
    own: dict[str, list[int]] = {}
    for cited in scheme.beyond:
        own.setdefault(BEYOND, []).append(len(entries))
        entries.append(Entry(_published_facts(cited), cited=cited, ranked=False))
    found = {row_key(record): record for basis in used for record in basis.records
             if published_row_of(record, scheme) is None}  # fmt: skip
    for key, record in sorted(found.items(), key=lambda item: _order(item[1])):
        heading = "" if is_reference(record) else str(record["method"].get("group") or OWN_GROUP)
        own.setdefault(heading, []).append(len(entries))
        entries.append(Entry(_own_facts(record), key=key, ranked=not is_reference(record)))
    return entries, [*headings, *own.items()]


def _order(record: Record) -> tuple[int, str, bool]:
    """Methods by title, then the floor, then the ceiling."""
    place = [*TITLES].index(record["method_name"]) + 1 if is_reference(record) else 0
    return place, record["method"]["title"], record["arch"] != "recurrent"


def _published_facts(row: PublishedRow | CitedRow) -> dict[str, str]:
    return {
        "method": row.method,
        "arch": "recurrent" if row.recurrent else "feedforward",
        "title": row.title,
        "backbone": row.backbone,
        "recurrent": _yes(row.recurrent),
        "pretraining": row.pretraining,
    }


def _yes(is_so: bool) -> str:
    return "Yes" if is_so else "No"


def _own_facts(record: Record) -> dict[str, str]:
    title = TITLES[record["method_name"]] if is_reference(record) else record["method"]["title"]
    backbone = record["method"].get("backbone") or MISSING
    has_memory = MISSING if is_reference(record) and backbone == MISSING else _yes(record["arch"] == "recurrent")
    return {
        "method": record["method_name"],
        "arch": record["arch"],
        "title": " ".join(title.split()),
        "backbone": backbone,
        "recurrent": has_memory,
        "pretraining": record["method"].get("pretraining_data") or MISSING,
    }


def as_measured(entry: Entry, records: Sequence[Record]) -> Entry:
    """An entry that says what its records were made with, where they agree and it is not what the paper's row says.

    A network that a profile makes smaller is called what it is, and weights made here by the data they were made from.
    """
    networks = {network_of(record) for record in records}
    sources = {made_from(record) for record in records}
    facts = dict(entry.facts)
    if len(networks) == 1:
        facts["backbone"] = networks.pop()
    if len(sources) == 1 and (source := sources.pop()):
        facts["pretraining"] = source
    return replace(entry, facts=facts)


def network_of(record: Record) -> str:
    """The network that a record was made with: the method's, or the smaller one that its profile puts in its place."""
    backbone = record["method"].get("backbone") or MISSING
    width = str(record["config"].get("width") or "")
    if backbone == MISSING or record["profile"] == PUBLISHED:
        return backbone
    return NETWORKS.get(width, f"{backbone} ({width})") or backbone


def made_from(record: Record) -> str:
    """The data that a record's weights were pre-trained on here; empty for weights that were not made here."""
    recipe = record["weights"].get("recipe")
    if not isinstance(recipe, dict) or not recipe.get("data"):
        return ""
    data = str(recipe["data"])
    return f"{recipe.get('dataset', '')}, sample world" if data == SAMPLE else data


def is_published_anew(entry: Entry, records: Sequence[Record]) -> bool:
    """Whether records measure an entry's published number again, with test-time augmentation as there, or without."""
    row = entry.published
    augmented = {record["config"].get("test_time_augmentation", "none") != "none" for record in records}
    return row is not None and augmented == {row.test_time_augmentation}


def by_entry(basis: Basis, entries: Sequence[Entry], scheme: Scheme) -> dict[int, list[Record]]:
    """Records of each entry, by its index in `entries`."""
    own = {entry.key: index for index, entry in enumerate(entries)}
    found: dict[int, list[Record]] = {}
    for record in basis.records:
        index = published_row_of(record, scheme)
        entry = own[row_key(record)] if index is None else index
        found.setdefault(entry, []).append(record)
    return found

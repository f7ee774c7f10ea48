"""Records and published numbers, and the tables that are made from them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import yaml
from harm import json_text, structure, yaml_text
from remembering import remember_yaml
from target import Target

from tespec.core.errors import UserError
from tespec.core.paths import PUBLISHED, REPOSITORY


def write_one_record(folder: Path) -> Path:
    from tespec.comparison.records import read_records, write_record

    records, _ = read_records(REPOSITORY / "results" / "sample")
    return write_record(next(record for record in records if record.method == "tespec"), folder)


def read_one_record(path: Path) -> None:
    from tespec.comparison.export import to_csv, to_html, to_latex, to_markdown
    from tespec.comparison.frame import to_frame
    from tespec.comparison.records import read_records
    from tespec.comparison.tables import make_tables

    records, problems = read_records(path.parents[1])
    assert all("\n" not in problem for problem in problems)
    if problems:
        raise UserError(path, "is no record", "remove it")
    for table in make_tables(to_frame(records), measured=True):
        for render in (to_csv, to_html, to_latex, to_markdown):
            assert not any(character in render(table) for character in "\x00\x1b\r\x0c")


def write_references(folder: Path) -> Path:
    remember_yaml()
    return Path(shutil.copytree(PUBLISHED, folder / "paper"))


def read_references(folder: Path) -> None:
    import tespec.comparison.published as published

    real = published.PUBLISHED
    try:
        published.PUBLISHED = folder
        published.published_frame()
        published.plain_tables()
    finally:
        published.PUBLISHED = real


TABLES: dict[str, Target] = {
    "record": Target(write_one_record, read_one_record, structure(json.loads, json_text)),
    "references": Target(write_references, read_references, structure(yaml.safe_load, yaml_text)),
}

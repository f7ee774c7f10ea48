"""Records and published numbers, and the tables and reports that are made from them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import yaml
from harm import json_text, structure, yaml_text
from remembering import remember_yaml
from target import Target

from tespec.core.errors import UserError


def write_records(folder: Path) -> Path:
    remember_yaml()
    runs = folder / "runs"
    runs.mkdir()
    source = Path(__file__).parents[1] / "comparison" / "data" / "records"
    for path in source.glob("*.json"):
        shutil.copy(path, runs)
    from tespec.comparison.records import new_record, write_record

    for name, seed in (("scratch", 0), ("tespec", 0), ("tespec", 1)):
        fields: dict[str, Any] = {
            "kind": "evaluation",
            "method_name": name,
            "method": {"title": name, "backbone": "Swin-T/7", "pretraining_data": "-", "group": ""},
            "task": "ddd17",
            "arch": "recurrent",
            "profile": "sample",
            "data": "sample",
            "data_fingerprint": "0123456789ab",
            "seed": seed,
            "config": {"arch": "recurrent", "deviations": ["a"], "optimisation": {"steps": 3}},
            "protocol": {"scores": "mean"},
            "metrics": {"miou": 40.0 + seed, "mean_class_acc": 50.0},
            "groups": {"moving": {"miou": 3.0}},
            "recordings": {"dir1": {"miou": 40.0}, "dir2": {"miou": 41.0}},
            "classes": {"flat": 80.0},
            "weights": {"source": "a.safetensors", "sha256": "ff", "recipe": {"name": "tespec", "profile": "sample"}},
            "command": "python benchmarks/run.py",
            "environment": {"cpu": "a", "device": "cpu"},
            "time": {"train": 12.5},
            "resources": {"peak_memory_bytes": 5e8},
            "curve": [{"step": 10, "loss": 1.5}],
        }
        write_record(new_record(**fields), runs)
    return runs


def read_all_records(runs: Path) -> None:
    from tespec.comparison.render import render_csv, render_latex, render_long_csv, render_text
    from tespec.comparison.shown import claims_table
    from tespec.comparison.side_by_side import published_table
    from tespec.report.build import report

    from tespec.comparison.ablations import ablations, measured_rows, measured_table
    from tespec.comparison.records import read_records

    records, problems = read_records(runs)
    assert all("\n" not in problem for problem in problems)
    table = published_table("segmentation", records)
    for render in (render_text, render_csv, render_long_csv, render_latex):
        render(table)
    claims_table(records)
    for ablation in ablations().values():
        for measured in measured_rows(ablation, records):
            measured_table(ablation, measured)
    page = report(records, runs.parent / "pictures")
    assert page.count("<script>") == 1
    if problems:
        raise UserError(runs, "holds files that are no records", "remove them")


def write_references(folder: Path) -> Path:
    remember_yaml()
    from tespec.comparison.published import PAPER

    return Path(shutil.copytree(PAPER, folder / "paper"))


def read_references(folder: Path) -> None:
    import tespec.comparison.audit as audit_module
    from tespec.comparison.render import render_text
    from tespec.comparison.side_by_side import published_table

    import tespec.comparison.ablations as ablations_module
    import tespec.comparison.published as published_module
    from tespec.comparison.published import TABLES

    modules = (ablations_module, audit_module, published_module)
    real = published_module.PAPER
    try:
        for module in modules:
            module.PAPER = folder
        for name in TABLES:
            render_text(published_table(name, []))
        for ablation in ablations_module.ablations().values():
            render_text(ablations_module.measured_table(ablation, None))
        for table in published_module.plain_tables().values():
            render_text(table)
        audit_module.render_audit()
    finally:
        for module in modules:
            module.PAPER = real


def write_one_record(folder: Path) -> Path:
    runs = write_records(folder)
    return next(path for path in sorted(runs.iterdir()) if "tespec" in path.name)


def read_one_record(path: Path) -> None:
    from tespec.comparison.render import render_csv, render_latex, render_long_csv, render_markdown, render_text
    from tespec.comparison.side_by_side import published_table

    from tespec.comparison.records import read_record

    table = published_table("segmentation", [read_record(path)])
    for render in (render_text, render_csv, render_long_csv, render_latex, render_markdown):
        assert not any(character in render(table) for character in "\x00\x1b\r\x0c")


TABLES: dict[str, Target] = {
    "record": Target(write_one_record, read_one_record, structure(json.loads, json_text)),
    "records": Target(write_records, read_all_records, structure(json.loads, json_text), 0.25),
    "references": Target(write_references, read_references, structure(yaml.safe_load, yaml_text), 0.5),
}

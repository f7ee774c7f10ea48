from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tespec.comparison.identity import SCHEMA, identity, package_code, record_name
from tespec.comparison.records import (
    Record,
    by_other_code,
    code_of,
    find_record,
    of_different_arithmetic,
    read_record,
    read_records,
    write_record,
)
from tespec.core.errors import UserError

Make = Callable[..., Record]

PARTS: dict[str, Any] = {
    "kind": "evaluation",
    "method": "scratch",
    "task": "ddd17",
    "arch": "recurrent",
    "profile": "sample",
    "seed": 0,
    "config": {"optimisation": {"steps": 150}, "splits": ["dir0"]},
    "data_fingerprint": "0123456789ab",
    "weights_sha256": "",
    "code": "01234567",
    "split": "test",
}
CHANGED: dict[str, Any] = {
    "kind": "pretraining",
    "method": "tespec",
    "task": "dsec",
    "arch": "feedforward",
    "profile": "paper",
    "seed": 1,
    "config": {"optimisation": {"steps": 151}, "splits": ["dir0"]},
    "data_fingerprint": "ba9876543210",
    "weights_sha256": "ff",
    "code": "76543210",
    "split": "val",
}


@pytest.mark.parametrize("part", sorted(PARTS))
def test_identity_changes_with_each_part(part: str) -> None:
    assert identity(**PARTS) != identity(**(PARTS | {part: CHANGED[part]}))


def test_runs_scored_on_the_test_split_have_the_names_of_before_there_were_others() -> None:
    assert identity(**PARTS) == identity(**{name: part for name, part in PARTS.items() if name != "split"})


def test_identity_does_not_depend_on_the_order_of_settings() -> None:
    turned = {key: PARTS["config"][key] for key in reversed(PARTS["config"])}
    assert identity(**PARTS) == identity(**(PARTS | {"config": turned}))


def test_runs_of_other_code_are_found_by_their_names(record: Make, tmp_path: Path) -> None:
    older, newer, own = (
        record(code=code) | {"written": written}
        for code, written in (("aaaaaaaa", "2001"), ("bbbbbbbb", "2002"), ("cccccccc", "2000"))
    )
    for each in (newer, own, older, record(code="dddddddd", seed=1)):
        write_record(each, tmp_path)
    (tmp_path / f"{own['name'].rpartition('-')[0]}-eeeeeeee.json").write_text("torn")
    assert by_other_code(tmp_path, own["name"]) == [older, newer]
    assert [code_of(each) for each in (older, newer)] == ["aaaaaaaa", "bbbbbbbb"]
    # Names of an older layout end in a single hash.
    assert code_of(older | {"id": "0123456789ab", "code": "0.1.0+r3"}) == "r3"


def test_a_record_carries_the_name_known_before_training(record: Make) -> None:
    made = record(weights={"source": "a.safetensors", "sha256": "ff"})
    fields = ("kind", "task", "arch", "profile", "seed", "config", "data_fingerprint")
    known: dict[str, Any] = {name: dict(made)[name] for name in fields}
    id = identity(**known, method="scratch", weights_sha256="ff", code=package_code())
    assert made["name"] == record_name("evaluation", "scratch", "ddd17", "recurrent", 0, id)


def test_the_weights_a_pretraining_wrote_do_not_name_it(record: Make) -> None:
    first, second = (record(kind="pretraining", weights={"sha256": sha256}) for sha256 in ("aa", "bb"))
    assert first["name"] == second["name"]


def test_a_record_survives_its_file(record: Make, tmp_path: Path) -> None:
    made = record()
    path = write_record(made, tmp_path / "runs")
    assert path.name == f"{made['name']}.json"
    assert read_record(path) == made == find_record(tmp_path / "runs", made["name"])
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_no_record_of_that_name(tmp_path: Path) -> None:
    assert find_record(tmp_path / "nowhere", "evaluation-x") is None


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 10**400, "40", None, True])
def test_a_number_that_is_none_makes_no_record(record: Make, value: object) -> None:
    with pytest.raises(UserError, match=r"field 'metrics' holds"):
        record(metrics={"miou": value})


def broken(record: Record, **changes: Any) -> str:
    return json.dumps(dict(record) | changes)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": 99}, "layout 99 is newer"),
        ({"schema": "1"}, "not a record of this harness"),
        ({"metrics": {"miou": float("nan")}}, "NaN is no number"),
        ({"metrics": {"miou": float("inf")}}, "Infinity is no number"),
        ({"metrics": [40.0]}, "field 'metrics' holds"),
        ({"groups": {"moving": 3.0}}, "field 'groups' holds"),
        ({"seed": "0"}, "field 'seed' holds '0'"),
        ({"arch": "convolutional"}, "field 'arch' holds 'convolutional'"),
        ({"kind": ["evaluation"]}, "field 'kind' holds"),
        ({"protocol": {"scores": 1}}, "field 'protocol' holds"),
        ({"method": {}}, "field 'method' has no title"),
        ({"method": {"title": ["a"]}}, "field 'method.title' holds ['a']"),
        ({"method": {"title": "a" * 10_001}}, "field 'method.title' holds 'aaaaaaa"),
        ({"command": "a" * 10_001}, "field 'command' holds 'aaaaaaa"),
        ({"config": {"deviations": ["a" * 10_001]}}, "field 'config.deviations' holds ['aaaaaaa"),
        ({"method": {"title": "a", "backbone": 3}}, "field 'method.backbone' holds 3"),
        ({"weights": {"sha256": []}}, "field 'weights.sha256' holds []"),
        ({"config": {"deviations": "narrow"}}, "field 'config.deviations' holds 'narrow'"),
        ({"config": {"deviations": [1]}}, "field 'config.deviations' holds [1]"),
        ({"curve": "falling"}, "field 'curve' holds"),
        ({"scores": {"miou": {"title": "mIoU", "better": "more", "unit": "%"}}}, "field 'scores' holds"),
        ({"scores": {"miou": {"title": "mIoU", "better": "higher"}}}, "field 'scores' holds"),
        ({"scores": {"miou": {"title": 1, "better": "higher", "unit": ""}}}, "field 'scores' holds"),
        ({"command": "python \ud800"}, "surrogates not allowed"),
        ({"config": {"\udfff": 1}}, "surrogates not allowed"),
    ],
)
def test_broken_records_are_named_in_one_line(
    record: Make, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    good = write_record(record(seed=1), tmp_path)
    bad = tmp_path / "bad.json"
    bad.write_text(broken(record(), **change))
    with pytest.raises(UserError) as refused:
        read_record(bad)
    assert str(refused.value).startswith(f"{bad}: ")
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)
    records, problems = read_records(tmp_path)
    assert [each["name"] for each in records] == [good.stem]
    assert problems == [str(refused.value)]


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", '{"schema": 1}', '{"schema": 1e999}', "[" * 10**5, "1" * 5000, "\xff"]
)
def test_files_that_are_no_records(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(UserError, match=r"x\.json: "):
        read_record(path)


def test_a_copy_under_another_name_does_not_count_twice(record: Make, tmp_path: Path) -> None:
    path = write_record(record(), tmp_path)
    copy = tmp_path / "copy.json"
    copy.write_text(path.read_text())
    records, problems = read_records(tmp_path)
    assert [each["name"] for each in records] == [path.stem]
    assert problems == [f"{copy}: holds the record {path.stem}; give it that name or remove it"]


@pytest.mark.parametrize("field", ["metrics", "seed", "method", "data_fingerprint", "curve", "written"])
def test_a_missing_field_is_named(record: Make, tmp_path: Path, field: str) -> None:
    content = {key: value for key, value in record().items() if key != field}
    path = tmp_path / "x.json"
    path.write_text(json.dumps(content))
    with pytest.raises(UserError, match=f"field '{field}' is missing"):
        read_record(path)


def test_a_record_of_the_first_layout_is_still_read() -> None:
    (path,) = (Path(__file__).parent / "data" / "records").glob("*.json")
    assert json.loads(path.read_text())["schema"] == 1
    found = read_record(path)
    assert (found["schema"], found["resources"], found["scores"]) == (SCHEMA, {}, {})
    assert (found["split"], found["training"]) == ("test", "")
    assert found["metrics"]["accuracy"] == pytest.approx(86.52, abs=0.01)
    ((again,), problems) = read_records(path.parent)
    assert (again, problems) == (found, [])


def test_a_record_says_on_which_split_its_scores_stand(record: Make, tmp_path: Path) -> None:
    made = record(split="val", training="training-x")
    assert made["id"] != record()["id"]
    found = read_record(write_record(made, tmp_path))
    assert (found["split"], found["training"]) == ("val", "training-x")
    older = {name: value for name, value in record().items() if name not in ("split", "training")}
    (tmp_path / f"{record()['name']}.json").write_text(json.dumps(older))
    assert {each["split"] for each in read_records(tmp_path)[0]} == {"test", "val"}
    for field, wrong in (("split", "train"), ("training", 3)):
        with pytest.raises(UserError, match=f"field '{field}' holds"):
            record(**{field: wrong})


def test_numbers_of_different_arithmetic_are_named(record: Make) -> None:
    def by(torch: str, threads: int, accelerator: str = "cpu") -> Record:
        return record(environment={"packages": {"torch": torch}, "threads": threads, "device": accelerator})

    assert of_different_arithmetic([by("2.6.0", 1), by("2.6.0", 1)]) == ""
    assert of_different_arithmetic([by("2.6.0", 1), record(environment={})]) == ""
    assert of_different_arithmetic([by("2.6.0", 1), by("2.11.0", 1)]) == (
        "computed with different arithmetic (torch 2.11.0 and 2.6.0), which rounds differently"
    )
    mixed = of_different_arithmetic([by("2.6.0", 1), by("2.6.0", 2), by("2.6.0", 8, "cuda")])
    assert mixed == "computed with different arithmetic (1 and 2 threads), which rounds differently"
    ran_on = [{"cpu": cpu, "device": device} for cpu, device in (("A", "cpu"), ("B", "cpu"), ("C", "cuda"))]
    assert "(A and B)" in of_different_arithmetic([record(environment=each) for each in ran_on])


def test_memory_and_energy_are_numbers(record: Make, tmp_path: Path) -> None:
    made = record(resources={"peak_memory_bytes": 5e8})
    assert read_record(write_record(made, tmp_path))["resources"] == {"peak_memory_bytes": 5e8}
    with pytest.raises(UserError, match="field 'resources' holds"):
        record(resources={"peak_memory_bytes": "much"})

import gzip
import json
import subprocess
from dataclasses import fields, replace
from typing import Any

import pytest
from made_records import cell, pretraining, record

from tespec.comparison import records
from tespec.comparison.cell import OWN_WEIGHTS, Cell, differences, run_name
from tespec.comparison.records import (
    find_record,
    read_records,
    require_results_folder,
    write_archive,
    write_record,
)
from tespec.core.errors import UserError

OTHERS: dict[str, Any] = {
    "kind": "probe",
    "arch": "feedforward",
    "overrides": {"optimisation.steps": 10},
    "start": pretraining(),
    "split": "val",
    "label_fraction": 0.5,
    "frozen": True,
    "method_version": 2,
    "task_version": 2,
    "results_version": 2,
}


@pytest.mark.parametrize("fact", [field.name for field in fields(Cell)])
def test_each_fact_of_a_cell_changes_the_name_of_its_run(fact):
    first = cell()
    other = replace(first, **{fact: OTHERS.get(fact, "other")})
    assert run_name(other, 0, "data", "start") != run_name(first, 0, "data", "start")
    assert other != first
    assert list(differences(first, other)) == [
        "overrides.optimisation.steps" if fact == "overrides" else fact
    ]


def test_a_fact_of_the_pretraining_changes_the_name_too():
    first = cell(start=pretraining())
    other = cell(start=pretraining(overrides={"objective.mask.ratio": 0.75}))
    assert run_name(other, 0, "data", "start") != run_name(first, 0, "data", "start")
    assert differences(first, other) == {"start.overrides.objective.mask.ratio": (None, 0.75)}


def test_seeds_data_and_initial_weights_are_in_the_name():
    given = [(0, "a", "b"), (1, "a", "b"), (0, "b", "b"), (0, "a", "a"), (0, "ab", "")]
    assert len({run_name(cell(), *facts) for facts in given}) == len(given)


def test_where_and_how_it_ran_changes_no_name():
    other = record(environment={"revision": "f" * 40}, config={"new": 1}, pretraining=3)
    assert other.name == record().name


@pytest.mark.parametrize(
    ("facts", "network", "data", "evaluation"),
    [
        ({}, "Swin-T/7", "-", "full"),
        ({"backbone": "swin_micro"}, "swin_micro", "-", "full"),
        ({"backbone": "resnet50", "frozen": True}, "ResNet50", "-", "frozen"),
        ({"backbone": "", "label_fraction": 0.05}, "-", "-", "5 % of labels"),
        (
            {"start": OWN_WEIGHTS, "frozen": True, "label_fraction": 0.5},
            "Swin-T/7",
            "own weights",
            "frozen, 50 % of labels",
        ),
        ({"start": pretraining()}, "Swin-T/7", "1Mpx (sample world, sample)", "full"),
        (
            {"start": pretraining(task="objects", profile="paper")},
            "Swin-T/7",
            "objects (sample world)",
            "full",
        ),
        ({"start": pretraining(data="1mpx", profile="paper")}, "Swin-T/7", "1Mpx", "full"),
        ({"start": pretraining(data="rain", profile="demo")}, "Swin-T/7", "rain (demo)", "full"),
    ],
)
def test_a_cell_is_named_by_its_facts(facts, network, data, evaluation):
    made = cell(**facts)
    assert (made.network, made.pretraining_data, made.evaluation) == (network, data, evaluation)


def test_a_record_survives_its_file_and_the_archive(tmp_path):
    made = record(curve=[{"step": 10, "loss": 1.5}], miou=None)
    path = write_record(made, tmp_path)
    assert path == tmp_path / "runs" / f"{made.name}.json"
    assert find_record(tmp_path, made.name) == made
    assert read_records(tmp_path) == ([made], [])
    first, second = (
        write_archive([made], tmp_path / name / "records.jsonl.gz") for name in ("one", "two")
    )
    assert first.read_bytes() == second.read_bytes()
    archived = find_record(first.parent, made.name)
    assert archived == made.model_copy(update={"curve": []})
    assert read_records(first.parent) == ([archived], [])
    assert find_record(first.parent, "evaluation-x") is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cell": {"kind": "evaluation"}}, "cell.method"),
        ({"seed": 9}, "its content belongs to evaluation-scratch-ddd17-recurrent-s9-"),
        ({"facts": {"title": 3}}, "facts.title"),
        ({"environment": {"packages": []}}, "environment.packages"),
        ({"metrics": {"miou": "many"}}, "metrics.miou"),
        ({"scores": {"miou": {"better": "more\nthan"}}}, "scores.miou"),
        ({"cell": "\x1b[2J"}, "cell"),
        ({"cell": {"overrides": [1]}}, "cell.kind"),
        ({"seed": "\x1b[2J"}, "seed"),
        ({"written": -1e99}, "written"),
        ({"config": []}, "config"),
        ([], "file: Input should be an object"),
        (b'{"torn', "Invalid JSON"),
        (b'{"name": "\xff"}', "Invalid JSON"),
        (b"[" * 300, "Invalid JSON"),
    ],
)
@pytest.mark.parametrize("place", ["runs", "archive"])
def test_a_damaged_record_is_named_and_left_out(tmp_path, place, change, message):
    good = record(seed=1)
    write_record(good, tmp_path)
    content = json.loads(record().model_dump_json())
    text = change
    if not isinstance(change, bytes):
        text = json.dumps(content | change if change else change).encode()
    if place == "runs":
        (tmp_path / "runs" / "bad.json").write_bytes(text)
    else:
        (tmp_path / "records.jsonl.gz").write_bytes(gzip.compress(text + b"\n\n"))
    found, (problem,) = read_records(tmp_path)
    assert found == [good]
    assert message in problem
    assert problem.isprintable()
    assert ("bad.json" if place == "runs" else "records.jsonl.gz, line 1") in problem
    # A run reads its record before it starts, so running again alone ends in the same message.
    assert problem.endswith("; remove it, or run again with --overwrite")


def test_a_record_of_another_version_is_not_called_damaged(tmp_path):
    path = write_record(record(), tmp_path)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 3}))
    message = "a record of another version; move it out of the results folder, and run again"
    assert read_records(tmp_path) == ([], [f"{path}: {message}"])


def test_lines_of_the_archive_end_only_at_newlines(tmp_path):
    made = [record(seed=seed, command="a\u2028b\u0085c\x0bd") for seed in (0, 1)]
    write_archive(made, tmp_path / "records.jsonl.gz")
    assert read_records(tmp_path) == (made, [])


def test_only_the_records_that_are_asked_for_are_read(tmp_path):
    texts = [record(seed=seed).model_dump_json() for seed in (1, 10, 2)]
    damaged = texts[2].replace('"seed":2', '"seed":"two"')
    lines = [texts[0], damaged, '{"torn', texts[1]]
    (tmp_path / "records.jsonl.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    near = write_record(record(seed=1, profile="paper"), tmp_path)
    write_record(record("tespec", seed=1), tmp_path).write_text("{}")
    matches, (problem,) = read_records(tmp_path, {"evaluation-scratch-ddd17-recurrent-s1-"})
    assert {match.name for match in matches} == {record(seed=1).name, near.stem}
    assert "line 3" in problem  # it may be any record
    assert "line 2" in " ".join(read_records(tmp_path)[1])


@pytest.mark.parametrize("names", [(), ("pictures",), (".evaluation-x", "pictures", "tables")])
def test_a_folder_that_a_killed_run_left_is_a_results_folder(tmp_path, names):
    for name in names:
        (tmp_path / name).mkdir()
    require_results_folder(tmp_path)
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(UserError, match="is not a results folder"):
        require_results_folder(tmp_path)


def test_an_archive_that_is_torn_is_named(tmp_path):
    path = write_archive([record(seed=seed) for seed in range(9)], tmp_path / "records.jsonl.gz")
    path.write_bytes(path.read_bytes()[:200])
    assert read_records(tmp_path)[0] == []
    assert "cannot be read" in read_records(tmp_path)[1][0]


def test_a_copied_file_does_not_answer_for_another_run(tmp_path):
    path = write_record(record(), tmp_path)
    other = path.with_name(f"{record(seed=1).name}.json")
    other.write_text(path.read_text())
    found, (problem,) = read_records(tmp_path)
    assert found == [record().model_copy(update={"written": found[0].written})]
    assert problem == f"{other}: holds the record {path.stem}; rename or remove the file"
    with pytest.raises(UserError, match="holds the record"):
        find_record(tmp_path, other.stem)


@pytest.mark.parametrize("name", ["../../../x", "a/b", "a\x1b[2J", ""])
def test_names_in_a_record_cannot_leave_the_folder(tmp_path, name):
    content = json.loads(record().model_dump_json())
    content["cell"]["method"] = name
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / f"{record().name}.json").write_text(json.dumps(content))
    found, (problem,) = read_records(tmp_path)
    assert found == []
    assert "cell.method" in problem
    assert "\x1b" not in problem


def test_a_record_that_was_computed_again_counts_instead_of_the_archived_one(tmp_path):
    write_archive([record(miou=30.0)], tmp_path / "records.jsonl.gz")
    again = record(miou=31.0)
    write_record(again, tmp_path)
    assert read_records(tmp_path) == ([again], [])
    assert find_record(tmp_path, again.name) == again


def test_what_differs_from_similar_records_is_told_nearest_first(tmp_path):
    near, far = (
        record(profile="smoke"),
        record(profile="paper", overrides={"optimisation.steps": 10}),
    )
    for each in (far, near, record("tespec"), record(arch="feedforward"), record(seed=1)):
        write_record(each, tmp_path)
    assert records.similar_records(tmp_path, cell(), 0) == [near, far]
    assert differences(near.cell, cell()) == {"profile": ("smoke", "sample")}


def test_revision_says_whether_files_were_changed(tmp_path, monkeypatch):
    def revision():
        return tuple(records.environment()[name] for name in ("revision", "modified"))

    def git(*arguments):
        command = [
            "git",
            "-C",
            str(tmp_path),
            "-c",
            "user.name=a",
            "-c",
            "user.email=a@b.c",
            *arguments,
        ]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    monkeypatch.setattr(records, "REPOSITORY", tmp_path)
    assert revision() == ("", None)
    git("init")
    (tmp_path / "tespec").mkdir()
    (tmp_path / "tespec" / "file.py").write_text("one")
    git("add", ".")
    git("commit", "-m", "first")
    (tmp_path / "results.json").write_text("made by a run")
    assert revision() == (git("rev-parse", "HEAD"), False)
    (tmp_path / "tespec" / "file.py").write_text("two")
    assert revision() == (git("rev-parse", "HEAD"), True)

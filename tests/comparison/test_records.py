import gzip
import json
import subprocess

import pytest
from made_records import record

from tespec.comparison import records
from tespec.comparison.records import (
    CHOICES,
    Record,
    find_record,
    identity,
    read_records,
    write_archive,
    write_record,
)
from tespec.core.errors import UserError

OTHERS = {str: "other", int: 7, dict: {"optimisation.steps": 10}}


@pytest.mark.parametrize("choice", CHOICES)
def test_identity_changes_with_each_choice(choice):
    chosen = record().model_dump(include=set(CHOICES))
    assert identity(chosen) == record().id
    assert identity(chosen | {choice: OTHERS[type(chosen[choice])]}) != identity(chosen)


def test_what_was_not_chosen_changes_no_identity():
    first = record()
    other = record(
        environment={"revision": "f" * 40},
        config={"label_fraction": 1.0, "new": 1},
        variant="masking: 25%",
    )
    assert (first.name, first.id) == (other.name, other.id)
    turned = {name: getattr(first, name) for name in reversed(CHOICES)}
    assert identity(turned) == first.id


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
        ({"format": 3}, "format"),
        ({"results_version": 0}, "results_version"),
        ({"metrics": {"miou": "many"}}, "metrics.miou"),
        ({"scores": {"miou": {"better": "more\nthan"}}}, "scores.miou"),
        (None, "Invalid JSON"),
    ],
)
@pytest.mark.parametrize("place", ["runs", "archive"])
def test_a_damaged_record_is_named_and_left_out(tmp_path, place, change, message):
    good = record(seed=1)
    write_record(good, tmp_path)
    content = json.loads(record().model_dump_json())
    text = '{"torn' if change is None else json.dumps(content | change)
    if place == "runs":
        (tmp_path / "runs" / "bad.json").write_text(text)
    else:
        (tmp_path / "records.jsonl.gz").write_bytes(gzip.compress(f"{text}\n".encode()))
    found, (problem,) = read_records(tmp_path)
    assert found == [good]
    assert message in problem
    assert ("bad.json" if place == "runs" else "records.jsonl.gz, line 1") in problem
    assert "\n" not in problem
    # A run reads its record before it starts, so running again alone ends in the same message.
    assert problem.endswith("; remove it, or run again with --overwrite")


def test_an_archive_that_is_torn_is_named(tmp_path):
    path = write_archive([record(seed=seed) for seed in range(9)], tmp_path / "records.jsonl.gz")
    path.write_bytes(path.read_bytes()[:200])
    assert read_records(tmp_path)[0] == []
    assert "cannot be read" in read_records(tmp_path)[1][0]


def test_two_records_of_one_id_are_an_error_with_both_paths(tmp_path):
    path = write_record(record(), tmp_path)
    copy = path.with_name("copy.json")
    copy.write_text(path.read_text())
    with pytest.raises(UserError) as refused:
        read_records(tmp_path)
    assert all(str(each) in str(refused.value) for each in (path, copy))


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
    chosen = record().model_dump(include=set(CHOICES))
    assert records.similar_records(tmp_path, chosen) == [near, far]
    assert records.differing(near, chosen) == {"profile": ("smoke", "sample")}
    assert records.differing(far, chosen)["--set optimisation.steps"] == (10, None)


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


def test_files_from_outside_of_the_package_are_hashed(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    source, settings = tmp_path / "my_method_file.py", tmp_path / "own.yaml"
    source.write_text("class Mine: pass\n")
    settings.write_text("a: 1")
    from my_method_file import Mine

    assert records.plugin_sha256([Record]) == ""
    first = records.plugin_sha256([Mine], [settings])
    assert first == records.plugin_sha256([Mine, Record], [settings])
    settings.write_text("a: 2")
    assert records.plugin_sha256([Mine], [settings]) != first

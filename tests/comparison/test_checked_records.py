"""`tespec tables --check` names what is wrong with records before their numbers are cited."""

import json

import pytest
from made_records import pretraining, record

from tespec.cli.main import main
from tespec.comparison.cell import RESULTS_VERSION
from tespec.comparison.check import LARGEST, check_records
from tespec.comparison.records import REPORTED, write_archive, write_record
from tespec.core.paths import REPOSITORY

PROVENANCE = {"revision": "a" * 40, "modified": False, "packages": {"torch": "2"}}
DEPTH = {
    "abs": {"title": "Abs", "better": "lower", "unit": "m"},
    "delta_1": {"title": "delta", "better": "higher", "unit": ""},
}


def good(*names, **changes):
    return record(*names, **{"environment": PROVENANCE, **changes})


def lines_of(folder, capsys):
    """Exit code and printed lines of `tespec tables --check`."""
    code = main(["tables", "--check", str(folder)])
    return code, capsys.readouterr().out.splitlines()


def test_records_without_a_problem(tmp_path, capsys):
    for made in (
        good(),
        good(seed=1, miou=41.0),
        good("moby", miou=None),
        good("prior", kind="reference"),
    ):
        write_record(made, tmp_path)
    assert lines_of(tmp_path, capsys) == (0, ["4 records, no problem"])


@pytest.mark.parametrize(
    ("made", "problem"),
    [
        (good(environment={}), "has no revision, packages"),
        (
            good(environment=PROVENANCE | {"modified": True}),
            "the sources differed from its revision",
        ),
        (good(command="", data_fingerprint=""), "has no command, data fingerprint"),
        (good(metrics={}), "has no metrics"),
        (good(facts={"title": "A", "pretraining_data": "1Mpx"}), "has no citation"),
        (good("mine"), "the method mine is unknown, and no plug-in file defines it"),
        (good(miou=100.5), "miou 100.5 is out of bounds (all frames)"),
        (good(miou=-1.0), "miou -1 is out of bounds (all frames)"),
        (good(groups={"moving": {"miou": 101.0}}), "miou 101 is out of bounds (moving)"),
        (good(recordings={"dir1": {"miou": 101.0}}), "miou 101 is out of bounds (dir1)"),
        (good(classes={"flat": -2.0}), "miou -2 is out of bounds (class flat)"),
        (good(scores=DEPTH, metrics={"abs": -1.0}), "abs -1 is out of bounds (all frames)"),
        (good(scores={}), "has no unit and direction of mean_class_acc, miou"),
        (
            good(scores={"abs": DEPTH["abs"]}, metrics={"abs": 1.0, "miou": 250.0}),
            "has no unit and direction of miou",
        ),
        (
            good(miou=250.0, scores={"miou": {"title": "m", "better": "lower", "unit": "px"}}),
            "miou is in 'px' and lower is better, not '%' and higher",
        ),
        (
            good(results_version=RESULTS_VERSION + 1),
            f"results version {RESULTS_VERSION + 1} is above {RESULTS_VERSION}, this one",
        ),
        (good(time={"train": -1.0}), "the duration of train is -1 s"),
        (good(scores=DEPTH, metrics={"delta_1": 1.5}), "delta_1 1.5 is out of bounds (all frames)"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_each_problem_of_a_record_is_one_line(made, problem, tmp_path, capsys):
    write_record(made, tmp_path)
    code, lines = lines_of(tmp_path, capsys)
    assert (code, lines[-1]) == (1, f"1 records, {len(lines) - 1} problems")
    assert f"{made.name}: {problem}" in lines


@pytest.mark.parametrize(
    "made",
    [
        good("mine", plugin="0123456789ab"),
        good("mine", kind="predictions"),
        good(scores=DEPTH, metrics={"abs": 30.0, "delta_1": 1.0}),
        good(kind="pretraining", scores={}, metrics={"loss": -3.0}),
        good("tespec", start=pretraining(), environment=PROVENANCE | {"modified": None}),
    ],
)
def test_is_no_problem(made, tmp_path):
    write_record(made, tmp_path)
    assert check_records(tmp_path) == (1, [])


def test_a_record_of_the_future_is_a_problem(tmp_path):
    made = good()
    write_record(made.model_copy(update={"written": made.written.replace(year=2200)}), tmp_path)
    assert [line.partition(" (")[0] for line in check_records(tmp_path)[1]] == [
        f"{made.name}: was written in the future"
    ]


def test_a_folder_with_records_of_others_alone_names_their_folder(tmp_path):
    write_record(good(), tmp_path / REPORTED)
    words = f"holds no records; check {tmp_path / REPORTED} for those of others"
    assert check_records(tmp_path) == (0, [f"{tmp_path}: {words}"])


def test_files_that_are_damaged_renamed_repeated_copied_or_large(tmp_path, capsys):
    first, second = good(), good(seed=1)
    path = write_record(first, tmp_path)
    write_archive([first, second], tmp_path / "records.jsonl.gz")
    content = json.loads(path.read_text())
    (tmp_path / "runs" / "other.json").write_text(json.dumps(content))
    (tmp_path / "runs" / "edited.json").write_text(json.dumps(content | {"seed": 7}))
    (tmp_path / "runs" / "large.json").write_text(" " * (LARGEST + 1))
    code, lines = lines_of(tmp_path, capsys)
    text = "\n".join(lines)
    assert code == 1
    for part in (
        f"other.json: holds the record {first.name}",
        "edited.json: not a record: file: Value error, its content belongs to",
        "large.json: not a record",
        f"{first.name}: is in more than one file",
        f"{second.name}: has exactly the numbers of {first.name}",
        "large.json: is larger than 1 MB",
        "2 records, 6 problems",
    ):
        assert part in text


def test_what_is_no_results_folder_is_refused(tmp_path, capsys):
    assert lines_of(tmp_path, capsys) == (
        1,
        [f"{tmp_path}: holds no records", "0 records, 1 problems"],
    )
    assert main(["tables", "--check", str(REPOSITORY / "docs")]) == 2
    assert main(["tables", "--check", str(tmp_path), "--measured"]) == 2
    assert main(["tables", "--check", str(tmp_path / "nothing")]) == 2

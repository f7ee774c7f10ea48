"""The whole comparison by one command, at a size that says nothing but goes all the way."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.reproduce_jobs import commands, in_order
from benchmarks.reproduce_states import is_measured, jobs_of, recipe_behind, seconds_of, wanted
from benchmarks.reproduction import PRETRAINING, Piece, pieces, pretrainings, read_reproduction, sizes
from tespec.comparison.published import read_published
from tespec.comparison.records import new_record, read_records, write_record
from tespec.core.errors import UserError
from tespec.core.registry import METHODS, register_methods
from tespec.world import world_folder

REPOSITORY = Path(__file__).parents[2]
CODE = "aaaaaaaa"
REPRODUCE = [sys.executable, str(REPOSITORY / "benchmarks" / "reproduce.py"), "--size", "tiny"]


def reproduce(folder, cache, *more):
    places = ["--results", str(folder / "results"), "--runs", str(folder / "runs"), "--processes", "1"]
    environment = {**os.environ, "TESPEC_CACHE": str(cache)}
    return subprocess.run([*REPRODUCE, *places, *more], capture_output=True, text=True, timeout=500, env=environment)


@pytest.fixture(scope="module")
def cache(tiny_world, tmp_path_factory):
    """A cache that holds the tiny world."""
    folder = tmp_path_factory.mktemp("cache")
    (folder / tiny_world.name).symlink_to(tiny_world)
    return folder


@pytest.mark.parametrize("size", sizes())
def test_every_size_is_made_of_pieces_that_can_be_run(size):
    register_methods()
    reproduction = read_reproduction(size)
    every = pieces(reproduction)
    assert len(set(every)) == len({piece.name for piece in every}) == len(every)
    for piece in every:
        assert is_measured(piece, reproduction, [], {}, {CODE}) is False
    before = pretrainings(every)
    assert all(piece.kind == PRETRAINING and recipe_behind(piece, reproduction) for piece in before)


def record_of(piece, reproduction):
    """What a run of a piece would leave."""
    weights = {"recipe": recipe_behind(piece, reproduction), "start_sha256": "ff"}
    fields = {
        "kind": piece.kind,
        "method_name": piece.method,
        "method": {"title": piece.method},
        "task": piece.task,
        "arch": piece.arch,
        "profile": reproduction.profile,
        "data": "sample",
        "data_fingerprint": "0123456789ab",
        "seed": piece.seed,
        "config": wanted(piece, reproduction),
        "weights": weights,
        "command": "",
        "time": {"total": 60.0},
        "code": CODE,
    }
    empty = ("protocol", "metrics", "groups", "recordings", "classes", "environment")
    return new_record(**fields, **{name: {} for name in empty}, curve=[])


@pytest.mark.parametrize("size", sizes())
def test_a_piece_is_measured_by_a_record_of_this_code_on_this_data(size):
    register_methods()
    reproduction = read_reproduction(size)
    every = pieces(reproduction)
    records = [record_of(piece, reproduction) for piece in every]
    data = {piece.task: "0123456789ab" for piece in every}
    for piece in every[:: max(1, len(every) // 20)]:
        # Of all pieces' records, its own and no other one.
        assert is_measured(piece, reproduction, records, data, {CODE})
        others = [record for other, record in zip(every, records, strict=True) if other != piece]
        assert not is_measured(piece, reproduction, others, data, {CODE})
        assert not is_measured(piece, reproduction, records, data | {piece.task: "another"}, {CODE})
        assert not is_measured(piece, reproduction, records, data, {"bbbbbbbb"})
        assert is_measured(piece, reproduction, records, data, {"bbbbbbbb", CODE})


def test_records_of_other_code_do_not_count_and_are_named(tmp_path, cache):
    register_methods()
    reproduction = read_reproduction("tiny")
    every = [piece for piece in pieces(reproduction) if piece.method == "scratch"]
    for piece in every:
        write_record(record_of(piece, reproduction), tmp_path / "results" / "runs")
    done = reproduce(tmp_path, cache, "--dry-run", "--only", "scratch")
    assert done.returncode == 0, done.stderr
    assert f"records of other code do not count: {len(every)} of {CODE}; --accept-code HASH takes" in done.stdout
    assert f": 0 of {len(every)} runs have a record" in done.stdout


@pytest.mark.parametrize("size", ["small"])
def test_every_row_of_the_paper_s_tables_that_can_be_made_here_is_there(size):
    register_methods()
    every = pieces(read_reproduction(size))
    cells = {(piece.method, piece.arch, piece.task) for piece in every if not piece.changes}
    for table in ("detection", "segmentation", "depth"):
        reference = read_published(table)
        for row in reference.rows:
            method = METHODS.get(row.method)
            if method is None or (method.recipe is None and method.pretraining_data != "-") or row.method == "rvt":
                continue
            for task in reference.tasks:
                if any(row.scores[task.name, metric.name] is not None for metric in reference.metrics):
                    assert (row.method, "recurrent" if row.recurrent else "feedforward", task.name) in cells
    seeds = {piece.seed for piece in every}
    assert len(seeds) >= 3


def test_a_pretraining_comes_before_what_waits_for_it_and_long_runs_first():
    register_methods()
    reproduction = read_reproduction("small")
    ordered = in_order(jobs_of(pieces(reproduction)), reproduction, [])
    places = {piece: place for place, piece in enumerate(ordered)}
    waiting = [piece for piece in ordered if piece.kind != PRETRAINING and piece.before() in places]
    assert waiting
    assert all(places[piece.before()] < places[piece] for piece in waiting)


def test_commands_name_nothing_of_this_machine_where_the_world_is_the_usual_one(tmp_path):
    register_methods()
    reproduction = read_reproduction("small")
    piece = Piece("evaluation", "tespec", "dsec", "recurrent", 1, ("objective.mask.ratio=0.0",))
    usual = commands([piece], reproduction, world_folder(), tmp_path, tmp_path)[piece]
    assert usual[1:-5] == ["--method", "tespec", "--task", "dsec", "--arch", "recurrent", "--set",
                           "pretraining.objective.mask.ratio=0.0", "--profile", "small", "--seed", "1",
                           "--no-picture"]  # fmt: skip
    other = commands([piece], reproduction, tmp_path / "world", tmp_path, tmp_path)[piece]
    assert str(tmp_path / "world" / "dsec") in other


def test_what_was_measured_before_says_how_long_it_takes():
    reproduction = read_reproduction("small")
    piece = Piece("evaluation", "scratch", "dsec", "recurrent", 0)
    stated = seconds_of(piece, reproduction, [])
    assert stated is not None
    assert stated > 0


def test_a_dry_run_writes_nothing(tmp_path, cache):
    done = reproduce(tmp_path, cache, "--dry-run")
    assert done.returncode == 0, done.stderr
    assert re.search(r"0 of \d+ runs have a record; \d+ to do, after 4 pre-trainings", done.stdout)
    assert not list(tmp_path.iterdir())


MISTAKES = [
    (["--only", "kitti"], "--only kitti: no such task or method; choose from"),
    (["--seeds", "9"], "--seeds 9: is not part of this size; choose from 0, 1"),
    (["--size", "huge"], "invalid choice: 'huge'|unknown value 'huge'"),
    (["--publish", "--dry-run"], "--publish writes and --dry-run does not"),
]


@pytest.mark.parametrize(("options", "message"), MISTAKES)
def test_mistakes_are_answered_in_one_line(tmp_path, cache, options, message):
    done = reproduce(tmp_path, cache, *options)
    assert done.returncode == 2
    assert re.search(message, done.stderr)
    assert done.stderr.count("\n") == 1


def test_an_unknown_size_is_refused():
    with pytest.raises(UserError, match="--size huge: no such size; choose from medium, small, tiny"):
        read_reproduction("huge")


@pytest.mark.slow
def test_it_runs_to_its_end_goes_on_and_repeats(tmp_path, cache):
    chosen = ["--only", "ddd17", "scratch", "tespec", "frame", "prior", "--seeds", "0"]
    process = subprocess.Popen(
        [
            *REPRODUCE,
            "--results",
            str(tmp_path / "results"),
            "--runs",
            str(tmp_path / "runs"),
            "--processes",
            "1",
            *chosen,
        ],
        env={**os.environ, "TESPEC_CACHE": str(cache)},
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    with process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("done: evaluation"):
                process.send_signal(signal.SIGINT)
                break
        process.wait(180)
    assert process.returncode == 130
    # As in another session: records are there, weights and checkpoints are gone.
    shutil.rmtree(tmp_path / "runs")
    done = reproduce(tmp_path, cache, *chosen)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"[1-6] of 7 runs have a record", done.stdout)
    again = reproduce(tmp_path, cache, *chosen)
    assert "7 of 7 runs have a record; 0 to do, after 0 pre-trainings\nnothing to do" in again.stdout
    results = tmp_path / "results"
    records, problems = read_records(results / "runs")
    assert problems == []
    assert {record["kind"] for record in records} == {"evaluation", "pretraining", "reference"}
    with (results / "tables" / "claims.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert any(row["Task"] == "DDD17" and row["effect"] for row in rows)
    assert (results / "reproduction.png").stat().st_size > 5000
    assert "Claims, comparison by comparison" in (results / "report.html").read_text()
    # The command of a record gives its number again.
    record = next(record for record in records if record["method_name"] == "scratch")
    python, script, *arguments = record["command"].split()
    assert (python, script) == ("python", "benchmarks/run.py")
    assert "--results" not in arguments
    assert "--resume" not in arguments
    elsewhere = ["--results", str(tmp_path / "again"), "--runs", str(tmp_path / "again" / "runs")]
    subprocess.run([sys.executable, str(REPOSITORY / script), *arguments, *elsewhere], check=True, capture_output=True)
    (repeated,) = (tmp_path / "again" / "runs").glob("*.json")
    assert json.loads(repeated.read_text())["metrics"] == record["metrics"]

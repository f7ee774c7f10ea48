"""Plans as one calls them: what is missing is run, each run once, and a stop loses nothing."""

from __future__ import annotations

import csv
import json
import re
import shutil
import signal
import subprocess
import sys

import pytest

from tespec.cli.main import main
from tespec.comparison.records import read_records
from tespec.core.paths import REPOSITORY

CELLS = ["tiny", "--only", "evaluation", "ddd17", "scratch", "--seeds", "0"]
BROKEN = ["--set", "head.min_depth=90.0"]


@pytest.fixture
def told(cache, tmp_path, monkeypatch, capsys):
    """What a plan says that runs nothing, asked in this process."""

    def told(*arguments):
        monkeypatch.setenv("TESPEC_CACHE", str(cache))
        places = ["--results", str(tmp_path / "results"), "--runs", str(tmp_path / "runs")]
        assert main(["plan", *arguments, *places]) == 0
        return capsys.readouterr().out

    return told


def test_a_plan_runs_what_is_missing_and_says_what_failed(plan, told, found, tmp_path):
    assert "0 of 2 runs are done; 2 to do, after 0 pre-trainings" in told(*CELLS, "--status")
    assert not list(tmp_path.iterdir())
    done = plan(*CELLS, "--processes", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 of 2 runs done" in done.stdout
    assert len(found()) == 2
    assert "2 of 2 runs are done; 0 to do, after 0 pre-trainings\nnothing to do" in told(*CELLS)
    more = told(*CELLS, "--seeds", "0", "1", "--dry-run")
    assert re.search(r"2 of 4 runs are done; .*\nestimated .* min for 2 runs, .* GiB of memory of a process", more)
    assert len(re.findall(r"run.py --method scratch .* --seed 1 ", more)) == 2
    failing = plan("tiny", "--only", "mvsec", "scratch", "--seeds", "0", *BROKEN)
    assert failing.returncode == 1
    assert "0 of 2 runs done" in failing.stdout
    assert "failed: evaluation-scratch-mvsec-feedforward-s0: error: head.min_depth: 90 m" in failing.stdout
    assert "0/2 done, 1 failed" in told("tiny", "--only", "mvsec", "scratch", *BROKEN, "--status")


MISTAKES = [
    (["tiny", "--only", "kitti"], "--only kitti: nothing of this plan; choose from"),
    (["huge"], "plan huge: no such plan; choose from"),
    (["tiny", "--checkpoints", "moby"], "--checkpoints moby: is not METHOD=FILE of a file that exists"),
    (["tiny", "--slurm", "partition=gpu"], "--slurm goes with --cluster slurm"),
    (["tiny", "--cluster", "slurm", "--gpus", "0"], "--gpus are this machine's; say --slurm gpus_per_node=1"),
    (["tiny", "--publish", "x", "--dry-run"], "--publish writes; --dry-run and --status do not"),
    (["tiny", "--publish", "x"], "holds no record of this plan's profile; run the plan first"),
    (["tiny", "--world", "small", "--data", "x"], "--world and --data are two places for the same data"),
    (["tables"], "./data/1mpx, ./data/ddd17, ./data/dsec, ./data/gen1, ./data/mvsec: the data of plan tables is not"),
    (["tables", "--data", "/nowhere", "--only", "ddd17"], "/nowhere/ddd17: the data of plan tables is not there"),
]


@pytest.mark.parametrize(("options", "message"), MISTAKES)
def test_mistakes_are_answered_in_one_line(tmp_path, monkeypatch, capsys, options, message):
    monkeypatch.delenv("TESPEC_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    try:
        code = main(["plan", *options, "--results", "results", "--runs", "runs"])
    except SystemExit as ended:
        code = ended.code
    said = capsys.readouterr().err
    assert (code, said.count("\n")) == (2, 1)
    assert message in said
    assert not list(tmp_path.iterdir())


def test_a_table_that_there_is_not_is_refused_before_anything_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text("{title: mine, world: {size: tiny}, cells: [{}], show: segmentatoin}")
    assert main(["plan", "mine.yaml", "--results", "results", "--runs", "runs"]) == 2
    assert "show: segmentatoin: no such table; choose from" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["mine.yaml"]


@pytest.mark.slow
def test_cells_of_both_splits_are_trained_once(plan, found, tmp_path):
    one = "{methods: [scratch], architectures: [feedforward], tasks: [ddd17]"
    (tmp_path / "both.yaml").write_text(
        f"world: {{size: tiny}}\nprofile: tiny\ncells:\n  - {one}, split: val}}\n  - {one}}}\n"
    )
    done = plan(tmp_path / "both.yaml", "--processes", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    (of_test, of_val) = sorted(found().values(), key=lambda each: list(each[1]))
    assert (list(of_test[1]), list(of_val[1])) == (["dir2"], ["dir3"])
    assert of_test[2] == of_val[2]
    log = tmp_path / "runs" / "plans" / "both" / "evaluation-scratch-ddd17-feedforward-val-s0" / "log.txt"
    assert "trained already, for the test split" in log.read_text()
    assert "2 of 2 runs are done" in plan(tmp_path / "both.yaml", "--status").stdout
    other = plan(tmp_path / "both.yaml", "--only", "ddd17", "--seeds", "1", "--split", "val", "--dry-run")
    assert "--split val" in other.stdout


@pytest.mark.slow
def test_two_starts_at_once_end_with_all_runs_each_computed_once(start, tmp_path):
    called = ["tiny", "--only", "evaluation", "ddd17", "scratch", "tespec", "--seeds", "0", "--processes", "2"]
    both = [subprocess.Popen(**start(*called)) for _ in range(2)]
    said = [each.communicate(timeout=500) for each in both]
    assert [each.returncode for each in both] == [0, 0], said
    names = [path.name.partition("-")[0] for path in (tmp_path / "results" / "runs").iterdir()]
    # Of the ablation, the row that is no default has a pre-training of its own.
    assert sorted(names) == ["evaluation"] * 5 + ["pretraining"] * 2


@pytest.mark.slow
def test_a_killed_plan_goes_on_to_the_same_records(start, plan, found):
    called = ["tiny", "--only", "evaluation", "ddd17", "mvsec", "scratch", "--seeds", "0", "--processes", "1"]
    assert plan(*called, folder="straight").returncode == 0
    stops = 0
    for sent in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        with subprocess.Popen(**start(*called, folder="killed")) as process:
            for line in process.stderr:
                if line.startswith("done"):
                    process.send_signal(sent)
                    break
            process.communicate(timeout=180)
        stops += process.returncode != 0
    assert stops == 3
    assert plan(*called, folder="killed").returncode == 0
    assert found("killed") == found("straight")


@pytest.mark.slow
def test_jobs_of_a_cluster_give_the_records_of_processes(plan, found):
    pytest.importorskip("submitit")
    called = ["tiny", "--only", "evaluation", "ddd17", "scratch", "--seeds", "0"]
    cluster = ["--cluster", "local", "--slurm", "cpus_per_task=2"]
    planned = plan(*called, *cluster, "--dry-run")
    assert planned.returncode == 0, planned.stderr
    assert re.search(r"^jobs of local: .*cpus_per_task=2$", planned.stdout, re.MULTILINE)
    done = plan(*called, *cluster, folder="cluster")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "submitted: evaluation-scratch-ddd17-feedforward-s0" in done.stderr
    assert plan(*called, folder="straight").returncode == 0
    assert found("cluster") == found("straight")


@pytest.mark.slow
def test_on_real_data_runs_start_from_the_weights_that_the_plan_made(plan, tmp_path, tiny_world):
    data = tmp_path / "data"
    for name in ("ddd17", "1mpx"):
        shutil.copytree(tiny_world / name, data / name)
        facts = json.loads((data / name / "dataset.json").read_text())
        del facts["data"]
        (data / name / "dataset.json").write_text(json.dumps(facts))
    file = tmp_path / "mine.yaml"
    file.write_text("profile: tiny\ncells: [{methods: [tespec], architectures: [feedforward], tasks: [ddd17]}]\n")
    done = plan(file, "--data", data)
    assert done.returncode == 0, done.stdout + done.stderr
    records, _ = read_records(tmp_path / "results" / "runs")
    made, tuned = sorted(records, key=lambda record: record["kind"] != "pretraining")
    assert tuned["data"] == "ddd17"
    assert tuned["weights"]["sha256"] == made["weights"]["sha256"]
    assert "--checkpoint" in tuned["command"]
    again = plan(file, "--data", data)
    assert "1 of 1 runs are done; 0 to do, after 0 pre-trainings" in again.stdout


@pytest.mark.slow
def test_it_goes_on_elsewhere_with_its_records_alone_and_publishes_them(start, plan, tmp_path):
    called = ["tiny", "--only", "ddd17", "scratch", "tespec", "frame", "prior", "--seeds", "0", "--processes", "1"]
    with subprocess.Popen(**start(*called)) as process:
        for line in process.stderr:
            if line.startswith("done: evaluation"):
                process.send_signal(signal.SIGINT)
                break
        process.communicate(timeout=180)
    assert process.returncode == 130
    # As in another session: records are there, weights and checkpoints are gone.
    shutil.rmtree(tmp_path / "runs")
    done = plan(*called)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"[1-6] of 7 runs are done", done.stdout)
    again = plan(*called)
    assert "7 of 7 runs are done; 0 to do, after 0 pre-trainings\nnothing to do" in again.stdout
    results, folder, page = tmp_path / "results", tmp_path / "pages", tmp_path / "page.md"
    records, problems = read_records(results / "runs")
    assert problems == []
    assert {record["kind"] for record in records} == {"evaluation", "pretraining", "reference"}
    text = (REPOSITORY / "docs" / "closed_world.md").read_text(encoding="utf-8")
    page.write_text(text, encoding="utf-8")
    published = plan("tiny", "--publish", folder, "--page", page)
    assert published.returncode == 0, published.stdout + published.stderr
    with (folder / "tables" / "contrasts.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert any(row["Task"] == "DDD17" and row["effect"] for row in rows)
    assert (folder / "comparison.png").stat().st_size > 5000
    assert "What was shown: the claims" in (folder / "report.html").read_text()
    assert "5 fine-tunings" in page.read_text(encoding="utf-8")
    assert not (results / "tables").exists()
    # The command of a record gives its number again.
    record = next(record for record in records if record["method_name"] == "scratch")
    python, script, *arguments = record["command"].split()
    assert (python, script) == ("python", "benchmarks/run.py")
    assert "--results" not in arguments
    assert "--resume" not in arguments
    elsewhere = ["--results", str(tmp_path / "again"), "--runs", str(tmp_path / "again" / "runs")]
    repeat = start()["env"]
    called = [sys.executable, str(REPOSITORY / script), *arguments, *elsewhere]
    subprocess.run(called, check=True, capture_output=True, env=repeat)
    (repeated,) = (tmp_path / "again" / "runs").glob("*.json")
    assert json.loads(repeated.read_text())["metrics"] == record["metrics"]


@pytest.mark.slow
def test_a_control_starts_from_a_network_of_other_streets(plan, tmp_path):
    (tmp_path / "control.yaml").write_text(
        "world: {size: tiny}\nprofile: tiny\ncells:\n"
        "  - {methods: [labels], architectures: [feedforward], tasks: [ddd17], split: val,\n"
        "     start: {world: {size: tiny, seed: 1}}}\n"
        "  - {methods: [scratch], architectures: [feedforward], tasks: [ddd17], split: val}\n"
    )
    done = plan(tmp_path / "control.yaml")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 of 2 runs done" in done.stdout
    records, _ = read_records(tmp_path / "results" / "runs")
    (start,), _ = read_records(tmp_path / "results" / "starts" / "runs")
    assert sorted(record["method_name"] for record in records) == ["labels", "scratch"]
    assert len({record["data_fingerprint"] for record in records} - {start["data_fingerprint"]}) == 1
    file = tmp_path / "runs" / start["name"] / "model.safetensors"
    assert "nothing to do" in plan(tmp_path / "control.yaml").stdout
    # Its network is made again only where a cell needs it.
    file.unlink()
    assert "nothing to do" in plan(tmp_path / "control.yaml").stdout
    more = plan(tmp_path / "control.yaml", "--only", "labels", "--set", "optimisation.peak_lr=5e-4", "--dry-run")
    assert "--overwrite" not in more.stdout
    (path,) = (tmp_path / "results" / "runs").glob("*-labels-*.json")
    path.unlink()
    again = plan(tmp_path / "control.yaml")
    assert again.returncode == 0, again.stdout + again.stderr
    assert file.is_file()
    assert "2 of 2 runs done" in again.stdout or "1 of 2 runs are done" in again.stdout
    controls = subprocess.run(
        [sys.executable, str(REPOSITORY / "benchmarks" / "tables.py"), "--controls", "--results", "results"],
        cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert controls.returncode == 0, controls.stderr
    assert "Controls of the comparison" in controls.stdout

"""`tespec run --reproduce` computes a record again by its command, and says what differs."""

import shutil
import signal
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from made_records import record

import tespec
from tespec.cli import reproduce
from tespec.cli.main import main
from tespec.cli.reproduce import compare, run_to_end
from tespec.comparison.records import ARCHIVE, REPORTED, read_records, write_archive, write_record
from tespec.core import config

PRIOR = ["run", "--reference", "prior", "--task", "ddd17", "--split=val", "--profile", "smoke"]
PLACES = ["--results", "results", "--runs", "runs"]


@pytest.fixture
def prior(tiny_world, tmp_path, monkeypatch):
    """A record of the label prior, computed in a folder with data; its results are there."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(reproduce, "run_to_end", lambda words: main(words[3:]))
    assert main([*PRIOR, "--data", str(tiny_world / "ddd17"), *PLACES]) == 0
    (made,), _ = read_records(tmp_path / "results")
    return made


@pytest.fixture
def computes(tmp_path, monkeypatch):
    """Function that replaces the computation: it writes these records, and lists the commands."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(config, "_added", {})

    def replace(*records):
        commands = []

        def run(words):
            commands.append(words)
            results = Path(words[words.index("--results") + 1])
            (results / "runs").mkdir(parents=True, exist_ok=True)
            for each in records:
                write_record(each, results)
            return 0

        monkeypatch.setattr(reproduce, "run_to_end", run)
        return commands

    return replace


def contents(folder):
    return {path: path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()}


def test_an_own_record_is_only_compared(prior, tmp_path, capsys):
    before = contents("results")
    assert main(["run", "--reproduce", prior.name, *PLACES]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[-1] for line in lines if line.startswith("miou ")] == ["+0.00"]
    assert "numbers of groups, recordings and classes that differ: 0" in lines
    assert not [line for line in lines if line.startswith(("other ", "written"))]
    assert f"record and weights: runs/reproduced/{prior.name}" in lines
    assert contents("results") == before


@pytest.mark.parametrize("sent", [False, True])
def test_a_pretraining_is_only_compared_as_runs_start_from_its_weights(sent, tmp_path, computes):
    command = "tespec pretrain --method tespec --data sample --seed 0"
    made = record("tespec", kind="pretraining", task="1mpx", command=command)
    computes(made.model_copy(update={"command": f"{command} --threads 1"}))
    path = write_record(made, tmp_path / ("sent" if sent else "results"))
    before = contents("results")
    assert main(["run", "--reproduce", str(path), *PLACES]) == 0
    assert contents("results") == before


@pytest.mark.parametrize("folder", ["results", "results/reported"])
def test_a_record_of_an_archive_is_in_no_second_file(folder, prior, capsys):
    (Path("results") / "runs" / f"{prior.name}.json").unlink()
    write_archive([prior], Path(folder) / ARCHIVE)
    assert main(["run", "--reproduce", f"{folder}/{prior.name}", *PLACES]) == 0
    main(["tables", "--check", folder])
    assert "more than one file" not in capsys.readouterr().out
    frame = tespec.results("results")
    assert set(frame.status) == {"computed" if folder == "results" else "reproduced"}
    assert folder == "results" or (frame.value == frame.reported_value).all()
    assert main(["run", "--reproduce", f"{folder}/evaluation-x", *PLACES]) == 2
    assert "no such record; give its file, or RESULTS_FOLDER/NAME" in capsys.readouterr().err


def test_a_record_of_others_differs_and_the_causes_are_said(prior, tmp_path, tiny_world, capsys):
    """Its data lies elsewhere, so that --data replaces the folder of its command."""
    environment = prior.environment.model_copy(update={"cpu": "Z80", "packages": {"torch": "1"}})
    changed = {name: value + 1 for name, value in prior.metrics.items()}
    command = prior.command.replace(str(tiny_world / "ddd17"), "/theirs/ddd17")
    update = {"metrics": changed, "environment": environment, "command": command}
    sent = prior.model_copy(update=update)
    path = write_record(sent, tmp_path / "sent")
    shutil.rmtree("results")
    code = main(["run", "--reproduce", str(path), *PLACES])
    assert (code, "/theirs/ddd17: no such file" in capsys.readouterr().err) == (2, True)
    data = ["--data", str(tiny_world / "ddd17")]
    assert main(["run", "--reproduce", str(path), *data, *PLACES]) == 1
    out = capsys.readouterr().out
    assert "-1.00" in next(line for line in out.splitlines() if line.startswith("miou "))
    assert "other environment.cpu (Z80 there, " in out
    assert "other environment.packages.torch (1 there, " in out
    frame = tespec.results("results")
    main_score = frame[frame.main].iloc[0]
    assert main_score.status == "reproduced"
    assert main_score.reported_value == pytest.approx(main_score.value + 1)
    assert "Z80" in main_score.reported_on


def test_neither_the_run_nor_its_command_replaces_or_writes_files_of_the_user(prior, tmp_path):
    before = contents("results")
    more = "--results there --runs=there/runs --track files"
    sent = prior.model_copy(update={"command": f"{prior.command} {more}"})
    path = write_record(sent, tmp_path / "sent")
    assert main(["run", "--reproduce", str(path), *PLACES]) == 0
    assert before.items() <= contents("results").items()
    assert not (tmp_path / "there").exists()


@pytest.mark.parametrize("option", ["--import {}", "--import={}"])
def test_a_file_is_imported_only_if_the_user_names_it(prior, option, tmp_path, capsys):
    plugin = tmp_path / "theirs.py"
    plugin.write_text("import pathlib; pathlib.Path('trace').touch()")
    sent = prior.model_copy(update={"command": f"{prior.command} {option.format(plugin)}"})
    path = write_record(sent, tmp_path / "sent")
    assert main(["run", "--reproduce", str(path), *PLACES]) == 2
    message = f"its command has {option.format(plugin)}; read this file, and repeat with it"
    assert capsys.readouterr().err.splitlines()[-1] == f"error: {prior.name}: {message}"
    assert not (tmp_path / "trace").exists()
    assert main(["run", "--reproduce", str(path), *PLACES, "--import", str(plugin)]) == 0
    assert (tmp_path / "trace").exists()


@pytest.mark.parametrize("more", [["--method", "tespec"], ["--set", "bins=5"], ["--seed=3"]])
def test_options_that_change_the_result_are_refused(more, tmp_path, capsys):
    assert main(["run", "--reproduce", "x", *more, "--results", str(tmp_path)]) == 2
    assert f"--reproduce cannot be combined with {more[0].split('=')[0]}" in capsys.readouterr().err


def started(computes, folder, made, *mine):
    """Words of the command that computes a record again; the record is written to a folder."""
    commands = computes(made)
    path = write_record(made, folder)
    assert main(["run", "--reproduce", str(path), *mine, *PLACES]) == 0
    return commands[0]


LAUNCHED = "run --task ddd17 --method tespec --launcher"


@pytest.mark.parametrize(
    ("command", "processes", "start", "end"),
    [
        (f"tespec {LAUNCHED} none", 1, [], []),
        (f"torchrun --nproc-per-node 1 -m tespec.cli {LAUNCHED} pytorch", 1, [], []),
        (f"srun -K --ntasks 1 python -m tespec.cli {LAUNCHED} slurm", 1, [], []),
        *(
            (
                f"{program} -m tespec.cli {LAUNCHED} {launcher}",
                4,
                ["torch.distributed.run", "--nproc-per-node", "4", "-m"],
                ["--launcher", "pytorch"],
            )
            for program, launcher in (
                ("torchrun --nproc-per-node 4", "pytorch"),
                ("torchrun --nnodes 2 --nproc-per-node 2", "pytorch"),
                ("srun -K --ntasks 4 python", "slurm"),
            )
        ),
    ],
)
def test_as_many_processes_are_started(command, processes, start, end, tmp_path, computes):
    made = record("tespec", command=command, environment={"processes": processes})
    words = started(computes, tmp_path / "sent", made)
    options = ["tespec.cli", "run", "--task", "ddd17", "--method", "tespec", "--results"]
    assert words[: 2 + len(start) + 7] == [sys.executable, "-m", *start, *options]
    assert words[2 + len(start) + 10 :] == end


@pytest.mark.parametrize("processes", ["0", '"x"', "1000000", "null"])
def test_other_numbers_of_processes_are_refused(processes, tmp_path, computes, capsys):
    made = record("tespec", command="tespec run --task ddd17 --method tespec")
    commands = computes(made)
    path = write_record(made, tmp_path / "sent")
    text = path.read_text()
    assert '"processes": 1\n' in text
    path.write_text(text.replace('"processes": 1\n', f'"processes": {processes}\n'))
    assert main(["run", "--reproduce", str(path), *PLACES]) == 2
    assert "environment.processes: " in capsys.readouterr().err
    assert not commands


def test_control_characters_of_a_command_do_not_reach_the_terminal(tmp_path, computes, capsys):
    command = "tespec run --task ddd17 --method tespec --set 'bins=\x1b[2J\u202e'"
    started(computes, tmp_path / "sent", record("tespec", command=command))
    assert r"'bins=\x1b[2J\u202e'" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("theirs", "mine"),
    [
        ("--task /theirs/ddd17.yaml", "--task ddd17"),
        ("--task=/theirs/mine.yaml", "--task=mine.yaml"),
        ("--task ddd17 --profile /theirs/sample.yaml", "--profile sample"),
        ("--task ddd17 --checkpoint /theirs/a.pt", "--checkpoint b.pt"),
    ],
)
def test_files_of_another_machine_are_replaced(theirs, mine, tmp_path, computes):
    (tmp_path / "mine.yaml").write_text("base: ddd17\n")
    command = f"tespec run --method scratch --seed 0 {theirs}"
    made = record(task="mine" if "mine" in mine else "ddd17", command=command)
    words = " ".join(started(computes, tmp_path / "sent", made, *mine.split()))
    assert mine in words
    assert "/theirs" not in words


def test_weights_in_a_setting_replace_those_of_another_machine(tmp_path, computes):
    """The last value of a setting counts; other changes remain."""
    theirs = "--set bins=5 --set objective.teacher_weights=/theirs/a.pt"
    command = f"tespec pretrain --method scaleevent --data sample {theirs} --seed 0"
    made = record("scaleevent", kind="pretraining", command=command)
    mine = ["--set", "objective.teacher_weights=b.pt"]
    words = started(computes, tmp_path / "sent", made, *mine)
    assert f"{theirs} --seed 0 {' '.join(mine)} --results" in " ".join(words)


COMMAND = "tespec run --method scratch --task ddd17"
OTHER = "its command is not `tespec run` or `tespec pretrain`: "


@pytest.mark.parametrize(
    ("kind", "command", "message"),
    [
        ("evaluation", "rm -rf /", f"{OTHER}'rm -rf /'"),
        ("evaluation", "tespec data prepare dsec /data", OTHER),
        ("evaluation", "tespec run --data 'x", OTHER),
        ("evaluation", "python evil.py", OTHER),
        ("evaluation", "", OTHER),
        ("evaluation", f"{COMMAND} --seed 1", "its command computes seed 1"),
        ("evaluation", f"{COMMAND} --arch feedforward --seed 0", "computes arch feedforward"),
        ("evaluation", f"{COMMAND} --profile smoke --seed=0", "computes profile smoke"),
        ("evaluation", "tespec run --method moby --task dsec", "computes method moby, task dsec"),
        ("evaluation", "tespec run --reference prior --task ddd17", "method prior, arch feed"),
        ("evaluation", "tespec pretrain --method scratch --seed 0", "computes kind pretraining"),
        ("probe", f"{COMMAND} --probe --seed 2", "computes seed 2"),
        ("pretraining", "tespec pretrain --method scratch --seed 2", "computes seed 2"),
    ],
)
def test_a_command_of_another_run_or_program_is_refused_before_it_starts(
    kind, command, message, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(reproduce, "run_to_end", None)
    path = write_record(record(kind=kind, command=command), tmp_path)
    assert main(["run", "--reproduce", str(path), "--results", str(tmp_path)]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    "command", [COMMAND, "tespec run --help", "tespec run --model x --history"]
)
def test_a_command_without_the_record_is_refused_after_it(command, tmp_path, computes, capsys):
    computes(record("moby"))
    path = write_record(record(command=command), tmp_path / "sent")
    assert main(["run", "--reproduce", str(path), *PLACES]) == 2
    name = path.stem
    message = f"error: {name}: its command computed another run; see runs/reproduced/{name}\n"
    assert capsys.readouterr().err == message


RUN = """
import os, signal, sys, time
stops = []
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
    signal.signal(number, lambda number, frame: stops.append(int(number)))
while not os.path.exists("ready"):
    time.sleep(0.01)
for sent in sys.argv[1:]:
    received = len(stops)
    os.kill(os.getppid(), int(sent))
    while len(stops) == received:
        time.sleep(0.01)
time.sleep(0.4)  # longer than `subprocess.run` waits
open("saved", "w").write(str(stops))
sys.exit(130)
"""


@pytest.mark.parametrize(
    ("sent", "received"),
    [
        ([signal.SIGINT], [signal.SIGINT]),
        ([signal.SIGINT, signal.SIGINT], [signal.SIGINT, signal.SIGINT]),
        ([signal.SIGTERM], [signal.SIGTERM]),
        ([signal.SIGUSR1], [signal.SIGTERM]),
    ],
)
def test_a_stopped_run_saves_before_its_parent_ends(sent, received, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    handlers = [signal.getsignal(number) for number in sent]
    popen = reproduce.subprocess.Popen

    class Ready(popen):
        def wait(self):
            (tmp_path / "ready").touch()  # the handlers are set
            return super().wait()

    monkeypatch.setattr(reproduce.subprocess, "Popen", Ready)
    command = [sys.executable, "-c", RUN, *(str(int(number)) for number in sent)]
    with suppress(KeyboardInterrupt):
        assert run_to_end(command) == 130
    assert (tmp_path / "saved").read_text() == str([int(number) for number in received])
    assert [signal.getsignal(number) for number in sent] == handlers


def test_a_command_that_a_signal_ends_has_the_exit_code_of_a_shell():
    kill = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    assert run_to_end([sys.executable, "-S", "-c", kill]) == 137


def test_a_number_that_is_not_finite_differs_from_one_that_is():
    equal, lines = compare(record(miou=None), record(miou=40.0))
    assert not equal
    assert lines[1].split() == ["miou", "nan", "40.00"]
    assert compare(record(miou=None), record(miou=None))[0]
    assert compare(record(miou=40.0), record(miou=40.001))[0]


@pytest.mark.slow
def test_a_training_repeats_to_the_last_digit_in_a_process_of_its_own(
    tiny_world, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    few = ["--set", "optimisation.steps=2", "--set", "optimisation.warmup_steps=0"]
    words = ["run", "--method", "scratch", "--task", "ddd17", "--data", str(tiny_world / "ddd17")]
    assert main([*words, "--profile", "smoke", *few, *PLACES]) == 0
    (made,), _ = read_records(tmp_path / "results")
    Path("results").rename("sent")
    assert main(["run", "--reproduce", f"sent/{made.name}", *PLACES]) == 0
    (new,), _ = read_records(tmp_path / "results")
    assert (new.metrics, new.recordings) == (made.metrics, made.recordings)
    (reported,), _ = read_records(tmp_path / "results" / REPORTED)
    assert reported == made

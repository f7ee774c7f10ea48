import pytest

from benchmarks import demo
from benchmarks.demo import jobs
from benchmarks.grid_jobs import Job, Places, work
from tespec.core.errors import UserError


def job(folder, name, code, *needs):
    return Job(name, ("-c", f"from pathlib import Path; folder = Path({str(folder)!r}); {code}"), needs)


def test_jobs_wait_for_what_they_need_and_are_heard(tmp_path, capsys):
    first = job(tmp_path, "first", "import time; print('at it', flush=True); time.sleep(1); (folder / 'a').touch()")
    second = job(tmp_path, "second", "assert (folder / 'a').exists(); (folder / 'b').touch()", "first")
    assert work([second, first], Places(tmp_path / "logs", at_once=2, every=0.1)) == {}
    assert (tmp_path / "b").exists()
    said = capsys.readouterr().err
    assert said.index("done: first") < said.index("running: second")
    assert "   first: at it" in said


def test_a_failing_job_is_named_with_its_log(tmp_path, monkeypatch):
    failing = job(tmp_path, "failing", "raise SystemExit('error: the disk is full')")
    waiting = job(tmp_path, "waiting", "(folder / 'never').touch()", "failing")
    monkeypatch.setattr(demo, "jobs", lambda results, seed: [failing, waiting])
    monkeypatch.setattr(demo, "RUNS", tmp_path)
    with pytest.raises(UserError, match=r"failing: failed: error: the disk is full \(exit code 1, .*log\.txt\); read"):
        demo.main(["--results", str(tmp_path)])
    assert not (tmp_path / "never").exists()


def test_the_demo_covers_both_methods_and_architectures(tmp_path):
    planned = jobs(tmp_path, seed=3)
    lines = [" ".join(each.arguments) for each in planned]
    for method in ("scratch", "tespec"):
        for arch in ("recurrent", "feedforward"):
            assert sum(f"--method {method} --task ddd17 --arch {arch} --seed 3" in line for line in lines) == 1
    names = {each.name for each in planned}
    assert all(names.issuperset(each.needs) for each in planned)

import pytest

from benchmarks import demo
from benchmarks.demo import Job, jobs, run_jobs
from tespec.errors import UserError


def job(folder, name, code, *needs):
    return Job(name, ("-c", f"from pathlib import Path; folder = Path({str(folder)!r}); {code}"), needs)


def test_jobs_wait_for_what_they_need(tmp_path, capsys):
    first = job(tmp_path, "first", "(folder / 'a').write_text('done')")
    second = job(tmp_path, "second", "assert (folder / 'a').read_text() == 'done'; (folder / 'b').touch()", "first")
    run_jobs([second, first], tmp_path / "logs", at_once=2)
    assert (tmp_path / "b").exists()
    printed = capsys.readouterr().out
    assert printed.index("ok first") < printed.index("-> second")


def test_a_failing_job_stops_the_others_and_names_its_log(tmp_path, monkeypatch):
    started = []
    original = demo.start
    monkeypatch.setattr(demo, "start", lambda *arguments: started.append(original(*arguments)) or started[-1])
    failing = job(tmp_path, "failing", "raise SystemExit('error: the disk is full')")
    endless = job(tmp_path, "endless", "import time; time.sleep(100)")
    with pytest.raises(UserError, match=r"failing\.log: failing failed: error: the disk is full; read this log"):
        run_jobs([endless, failing], tmp_path / "logs", at_once=2)
    assert all(item.process.wait(timeout=10) != 0 for item in started)


def test_the_demo_covers_both_methods_and_architectures(tmp_path):
    planned = jobs(tmp_path, seed=3)
    lines = [" ".join(each.command) for each in planned]
    for method in ("scratch", "tespec"):
        for arch in ("recurrent", "feedforward"):
            assert sum(f"--method {method} --task ddd17 --arch {arch} --seed 3" in line for line in lines) == 1
    names = {each.name for each in planned}
    assert all(names.issuperset(each.needs) for each in planned)

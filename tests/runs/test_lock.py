import errno
import os
import subprocess
import sys

import pytest

from tespec.runs.run import locked

HOLD = """
import os, sys, time
from pathlib import Path
from tespec.runs.run import locked
with locked(Path(sys.argv[1]), "run"):
    if os.fork():
        time.sleep(60)
    print("held", flush=True)
    os.close(1)
    time.sleep(20)
"""


def test_children_of_a_killed_holder_do_not_keep_it(tmp_path):
    with subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout.readline() == "held\n"
        with locked(tmp_path, "another run") as nobody, locked(tmp_path, "another run") as held_already:
            assert nobody == held_already == ""
        holder.kill()
        holder.wait()
        with locked(tmp_path, "run") as nobody:
            assert nobody == ""


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.ENOTSUP])
def test_a_file_system_without_locks_goes_on_with_one_line(tmp_path, monkeypatch, capsys, code):
    def refuse(*arguments):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("fcntl.flock", refuse)
    with locked(tmp_path, "run") as nobody:
        assert nobody == ""
    said = f"{tmp_path / '.locks'}: this file system has no locks; start each run only once at a time\n"
    assert capsys.readouterr().err == said

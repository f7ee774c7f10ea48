import subprocess
import sys

import pytest

from tespec.errors import UserError
from tespec.training.lock import locked

HOLD = """
import sys, time
from pathlib import Path
from tespec.training.lock import locked
with locked(Path(sys.argv[1]), "run"):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_second_process_is_refused_until_the_first_ends_even_by_a_kill(tmp_path):
    with subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with (
            pytest.raises(UserError, match=rf"run: is being computed by process {holder.pid} on "),
            locked(tmp_path, "run"),
        ):
            pass
        with locked(tmp_path, "another run"):
            pass
        holder.kill()
        holder.wait()
    with locked(tmp_path, "run"):
        pass


def test_one_process_cannot_hold_it_twice(tmp_path):
    with (
        locked(tmp_path, "run"),
        pytest.raises(UserError, match="run: is being computed by this process"),
        locked(tmp_path, "run"),
    ):
        pass
    with locked(tmp_path, "run"):
        pass


def test_children_of_a_killed_holder_do_not_keep_it(tmp_path):
    script = "import os\n" + HOLD.replace(
        'print("held", flush=True)', 'os.fork() or (os.close(1), time.sleep(20)); print("held", flush=True)'
    )
    with subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        holder.kill()
        holder.wait()
        with locked(tmp_path, "run"):
            pass

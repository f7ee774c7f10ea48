"""The state of a run, in a file for people and schedulers."""

from __future__ import annotations

import json
import os
from datetime import datetime, timezone
from pathlib import Path

from tespec.core.files import UNREADABLE, read_json, write_whole

FILE = "status.json"
RUNNING, PREEMPTED, FAILED, DONE = "running", "preempted", "failed", "done"


def write_status(folder: Path, state: str, step: int, reason: str = "") -> None:
    """Replace the status of a run after `step` steps; `state` is one of this module's."""
    written = datetime.now(timezone.utc).isoformat(timespec="seconds")
    content = {"state": state, "step": step, "reason": reason, "process": os.getpid(), "written": written}
    write_whole(folder / FILE, json.dumps(content, indent=1) + "\n")


def read_state(folder: Path) -> str:
    """The state of a run; "" where none was written or it cannot be read."""
    try:
        return str(read_json(folder / FILE)["state"])
    except (*UNREADABLE, LookupError, TypeError):
        return ""

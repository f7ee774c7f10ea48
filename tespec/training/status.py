"""What state a run is in, in a file that tells it to people and to schedulers."""

from __future__ import annotations

import json
import os
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from tespec.core.files import write_whole

FILE = "status.json"
RUNNING, PREEMPTED, FAILED, DONE = "running", "preempted", "failed", "done"


def write_status(folder: Path, state: str, step: int, reason: str = "") -> None:
    """Replace the status of a run in one step.

    Args:
        folder: of the run.
        state: one of this module's.
        step: steps done.
        reason: in words, where there is one.
    """
    content = {
        "state": state,
        "step": step,
        "reason": reason,
        "process": os.getpid(),
        "written": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }
    write_whole(folder / FILE, json.dumps(content, indent=1) + "\n")


def read_status(folder: Path) -> dict[str, Any]:
    """The status of a run; empty where none was written or it cannot be read."""
    try:
        content = json.loads((folder / FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}

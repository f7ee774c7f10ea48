"""Makes targets quick that read the same sound files in every case."""

from __future__ import annotations

import pickle
from functools import lru_cache
from typing import Any


def remember_yaml() -> None:
    """Let each YAML file of one content be parsed once in this process; a damaged one is new, and parsed."""
    from tespec.core import files as documents

    parse = documents.parse_yaml
    if getattr(parse, "remembers", False):
        return
    pickled = lru_cache(maxsize=256)(lambda text: pickle.dumps(parse(text)))

    def remembered(text: str) -> Any:
        return pickle.loads(pickled(text))

    remembered.remembers = True  # type: ignore[attr-defined]
    documents.parse_yaml = remembered

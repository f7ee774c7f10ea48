"""What determines a result, as a hash and a name that are known before it is computed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

SCHEMA = 2
# Part of every identity; unlike the layout of records it stays, so that a new field renames nothing.
IDENTITY = 1


def canonical(value: object) -> str:
    """JSON in which equal values have equal text: sorted keys, no blanks, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def identity(
    *,
    kind: str,
    method: str,
    task: str,
    arch: str,
    profile: str,
    seed: int,
    config: Mapping[str, Any],
    data_fingerprint: str,
    weights_sha256: str,
    code: str,
) -> str:
    """All that determines a result, known before it is computed: twelve hexadecimal digits of SHA-256, "-", and `code`.

    The digits are over all but the code, so that runs which differ in it alone share them.

    Args:
        kind: "evaluation", "pretraining", "probe" or "reference".
        method: registered name.
        task: task of an evaluation, data of a pre-training.
        arch: "recurrent" or "feedforward".
        profile: name of the profile.
        seed: of everything random.
        config: resolved settings, of JSON's types.
        data_fingerprint: hash of the recordings.
        weights_sha256: hash of the weights file the run starts from, "" for none.
        code: see `run_code`.
    """
    parts = {
        "schema": IDENTITY,
        "kind": kind,
        "method": method,
        "task": task,
        "arch": arch,
        "profile": profile,
        "seed": seed,
        "config": dict(config),
        "data_fingerprint": data_fingerprint,
        "weights_sha256": weights_sha256,
    }
    return f"{hashlib.sha256(canonical(parts).encode()).hexdigest()[:12]}-{code}"


def record_name(kind: str, method: str, task: str, arch: str, seed: int, id: str) -> str:
    """Name of a record and of its run's folder."""
    return f"{kind}-{method}-{task}-{arch}-s{seed}-{id}"

"""What determines a result, as a hash and a name that are known before it is computed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import tespec

SCHEMA = 2
# Part of every identity; unlike the layout of records it stays, so that a new field renames nothing.
IDENTITY = 1
# Raised by a change of the harness that changes results; what was computed before is then computed again.
RESULT_VERSION = 3


def code_version() -> str:
    """Version of the code as far as results depend on it."""
    return f"{tespec.__version__}+r{RESULT_VERSION}"


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
) -> str:
    """Twelve hexadecimal digits of SHA-256 over all that determines a result; known before it is computed.

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
    """
    parts = {
        "schema": IDENTITY,
        "code": code_version(),
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
    return hashlib.sha256(canonical(parts).encode()).hexdigest()[:12]


def record_name(kind: str, method: str, task: str, arch: str, seed: int, id: str) -> str:
    """Name of a record and of its run's folder."""
    return f"{kind}-{method}-{task}-{arch}-s{seed}-{id}"

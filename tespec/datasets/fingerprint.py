"""What a data set's files are, in twelve hexadecimal digits."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

from tespec.datasets.recording import LabelledRecording, Recording


def fingerprint(*splits: Sequence[Recording]) -> str:
    """Twelve hexadecimal digits of SHA-256 over what is used of the recordings.

    For each recording: the place of its split among the arguments, its name, the part of the sensor that is used, and
    of each file of its events the name, the size, and the first and last 64 kB; for each label its time, its CRC-32,
    and the camera's speed. Where the files lie, whether events are packed or masks are zipped, how time is cut into
    windows, and what else lies beside them does not count. Events are not read whole, so that it takes seconds at most;
    a change in the middle of their files that keeps the size goes unseen.
    """
    digest = hashlib.sha256()
    for number, recording in ((number, recording) for number, split in enumerate(splits) for recording in split):
        digest.update(f"{number}|{recording.name}|{recording.region}\n".encode())
        digest.update(json.dumps(recording.source.identity(), sort_keys=True).encode())
        if isinstance(recording, LabelledRecording):
            digest.update(recording.label_times.tobytes())
            digest.update(repr(recording.labels.checksums()).encode())
            digest.update(b"" if recording.ego_speed is None else recording.ego_speed.tobytes())
    return digest.hexdigest()[:12]

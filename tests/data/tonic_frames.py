"""Write tonic_frames.npz: frames that tonic computes from a real recording, the reference for our
histograms.

tonic 1.6.0 needs NumPy below 2, and so an environment of its own:

    python -m venv oracle && oracle/bin/pip install tonic==1.6.0 "numpy<2"
    python tests/data/tonic_frames.py events.npy                     # in the project's environment
    oracle/bin/python tests/data/tonic_frames.py events.npy frames   # in the oracle's
"""

import sys
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
WINDOW_US, BINS, SIZE = 50_000, 10, (640, 480, 2)
STARTS_US = (0, 50_000, 733_333, 1_900_001)  # after the first event

if sys.argv[2:] == ["frames"]:
    from tonic.functional import to_frame_numpy

    events, content = np.load(sys.argv[1]), {}
    for number, start in enumerate(STARTS_US):
        first = int(events["t"][0]) + start
        frames = to_frame_numpy(
            events,
            SIZE,
            time_window=WINDOW_US // BINS,
            start_time=first,
            end_time=first + WINDOW_US,
        )
        places = np.flatnonzero(frames)
        content |= {
            f"start_{number}": first,
            f"shape_{number}": frames.shape,
            f"places_{number}": places.astype(np.uint32),
            f"counts_{number}": frames.ravel()[places].astype(np.uint8),
        }
    np.savez_compressed(HERE / "tonic_frames.npz", **content)
else:
    from tespec.events import open_events

    stream = open_events(HERE / "evt3_640x480_2.08s.raw")
    columns = stream.slice(stream.t_first, stream.t_last + 1)
    np.save(
        sys.argv[1],
        np.rec.fromarrays([column.astype("<i8") for column in columns], names="x, y, t, p"),
    )

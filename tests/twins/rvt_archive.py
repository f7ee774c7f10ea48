"""Reference writer of RVT's preprocessed archives, which applies RVT's rules to raw recordings."""

from itertools import pairwise

import numpy as np
from event_files import plain_histogram, whole, write_h5

from tespec.events import open_events

WINDOW_US = 50_000
FIRST_LABEL_US = 100_000
# Time between label frames, windows in between, classes kept, minimum diagonal and side in px.
GEN1 = {
    "factor": 1,
    "period_us": 250_000,
    "windows_per_period": 5,
    "classes": 2,
    "min_diagonal": 12,
    "min_side": 4,
}
ONE_MPX = {
    "factor": 2,
    "period_us": 100_000,
    "windows_per_period": 2,
    "classes": 3,
    "min_diagonal": 0,
    "min_side": 3,
}


def archive(root, factor, period_us, windows_per_period, classes, min_diagonal, min_side):
    """Replace raw recordings by archives with RVT's histograms, window ends and box filters.

    5 windows in 250 ms are right; RVT's public script writes 2.
    """
    for path in root.glob("*/*_td.dat"):
        name, stream = path.name.removesuffix("_td.dat"), open_events(path)
        boxes = np.load(path.with_name(f"{name}_bbox.npy"))
        training = path.parent.name == "train"
        boxes = filtered(
            boxes, classes, stream.height, stream.width, min_diagonal, min_side, training
        )
        stamps = np.unique(boxes["t"][boxes["t"] >= FIRST_LABEL_US])
        stamps = stamps[(stamps - stamps[:1]) % period_us == 0]
        boxes = boxes[np.isin(boxes["t"], stamps)]
        ends = window_ends(stamps, period_us, windows_per_period)
        options = {"bins": 10, "height": stream.height, "width": stream.width, "rule": "rvt"}
        events, windows = whole(stream), [(end - WINDOW_US, end) for end in ends.tolist()]
        frames = np.stack(
            [
                plain_histogram(*events, t_start=start, t_end=end, **options)
                for start, end in windows
            ]
        )
        folder, kept = path.with_name(name), "" if factor == 1 else f"_ds{factor}_nearest"
        place = folder / "event_representations_v2" / "stacked_histogram_dt=50_nbins=10"
        place.mkdir(parents=True)
        frames = frames[:, :, factor // 2 :: factor, factor // 2 :: factor].astype(np.uint8)
        write_h5(place / f"event_representations{kept}.h5", {"data": frames})
        np.save(place / "timestamps_us.npy", ends)
        np.save(place / "objframe_idx_2_repr_idx.npy", np.searchsorted(ends, stamps))
        (folder / "labels_v2").mkdir()
        first_rows = np.searchsorted(boxes["t"], stamps)
        np.savez(
            folder / "labels_v2" / "labels.npz", labels=boxes, objframe_idx_2_label_idx=first_rows
        )
        path.unlink()
        path.with_name(f"{name}_bbox.npy").unlink()


def filtered(boxes, classes, height, width, diagonal, side, training):
    boxes = boxes[boxes["class_id"] < classes].copy()
    last_x, last_y = width - 1, height - 1  # RVT crops at the last pixel, not at its far edge
    left, top = boxes["x"].clip(0, last_x), boxes["y"].clip(0, last_y)
    right, bottom = (
        (boxes["x"] + boxes["w"]).clip(0, last_x),
        (boxes["y"] + boxes["h"]).clip(0, last_y),
    )
    boxes["x"], boxes["y"], boxes["w"], boxes["h"] = left, top, right - left, bottom - top
    kept = (boxes["w"] > 0) & (boxes["h"] > 0) & (np.minimum(boxes["w"], boxes["h"]) >= side)
    kept &= np.sqrt(boxes["w"] ** 2 + boxes["h"] ** 2) >= diagonal
    return boxes[kept & (not training or boxes["w"] <= int(0.9 * width))]


def window_ends(stamps, period_us, windows_per_period):
    """Window ends, backwards from the first label, then evenly between labels."""
    lead = np.arange(stamps[0], 0, -WINDOW_US)[::-1][1:]
    ends = lead if len(lead) else stamps[:1]
    for first, last in pairwise(stamps.tolist()):
        count = round((last - first) / period_us) * windows_per_period
        ends = np.concatenate(
            [ends, np.linspace(first, last, count + 1).round().astype(np.int64)[1:]]
        )
    return ends.astype(np.int64)

"""Benchmark the stages that users wait for, each against a plain reference implementation.

    python benchmarks/speed.py                  # all stages, minutes; results/speed/MACHINE.json
    python benchmarks/speed.py --only metric    # one stage
    python benchmarks/speed.py --quick          # tiny sizes: shows that everything runs

Both must return the same result before they are timed, on one thread. Exit code 1: they differ in a
stage, or it failed. References follow uzh-rpg/RVT (data/utils/representations.py,
models/layers/rnn.py), uzh-rpg/DSEC and pycocotools.
"""

import contextlib
import io
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from functools import partial
from itertools import count
from json import dumps
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, Literal, NamedTuple, cast
from unittest.mock import patch

if not __package__:
    import installed  # noqa: F401  # before the harness

import tespec.core.compat  # noqa: F401  # before timm

import h5py
import hdf5plugin
import numpy as np
import torch
from cyclopts import Parameter
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils import clip_grad_value_
from torch.utils.benchmark import Measurement, Timer

from tespec.cli.main import call, new_app, run
from tespec.comparison.records import environment
from tespec.core.boxes import Boxes, make_boxes
from tespec.core.config import finetuning_settings, pretraining_settings
from tespec.core.errors import one_line
from tespec.core.files import write_all
from tespec.core.paths import RESULTS
from tespec.datasets.augment import apply_maps
from tespec.datasets.recording import Recording
from tespec.datasets.sources import EventSource
from tespec.events import Events, event_histogram, window_histograms
from tespec.events.histogram import Region
from tespec.events.opening import open_reader
from tespec.events.packing import pack
from tespec.events.readers.dat import write_dat
from tespec.events.store import open_store, store_of
from tespec.metrics.detection import BoxFilter, DetectionScorer
from tespec.models import EventSwin
from tespec.pretraining.method import open_pretraining
from tespec.runs.cost import estimate_training
from tespec.training.optimizer import learning_rate
from tespec.training.trainer import Trainer

ROUNDS = 5
SECONDS = 0.4  # minimum time of each implementation per round
BINS, WINDOW_US = 10, 50_000
BUSY = 9_000_000  # events/s of a busy recording of 1Mpx: 540 million in 60 s (evlib)
EVENTS_PER_WINDOW = BUSY * WINDOW_US // 1_000_000
SENSOR_1MPX, SENSOR_DSEC = (720, 1280), (480, 640)
Row = dict[str, Any]
# Options of all scripts that measure.
Tiny = Annotated[bool, Parameter(help="tiny sizes: a smoke test, timings mean nothing")]
Output = Annotated[Path | None, Parameter("--json", help="output file (default: in results/)")]


class Case(NamedTuple):
    """Work that `tespec` and a plain implementation do."""

    name: str  # the input, in words
    ours: Callable[[], Any]
    plain: Callable[[], Any]
    plain_name: str  # in words
    # whether the results of `ours` and `plain`, in this order, are correct
    same: Callable[[Any, Any], bool]
    work: float  # of one call, in `unit`
    unit: str


def make_events(number: int, duration_us: int, height: int, width: int) -> Events:
    """Draw random events in time order, normally distributed around the centre of the sensor.

    Args:
        number: of events.
        duration_us: end of their times, which start at 0.
        height: of the sensor in px.
        width: of the sensor in px.
    """
    generator = np.random.default_rng(0)

    def coordinates(side: int) -> NDArray[np.uint16]:
        values = generator.standard_normal(number, np.float32) * (side / 5) + side / 2
        return values.clip(0, side - 1).astype(np.uint16)

    t = np.sort(generator.integers(0, duration_us, number))
    x, y = coordinates(width), coordinates(height)
    return Events(x, y, t, generator.integers(0, 2, number, np.uint8))


def put_histogram(events: Events, height: int, width: int) -> Tensor:
    """Count the events of the window that starts at 0 us by `put_` from int64 columns.

    Args:
        events: of the window.
        height: of the sensor in px.
        width: of the sensor in px.

    Returns:
        (2 * BINS, height, width) uint8.
    """
    x, y, t, p = (torch.from_numpy(column.astype(np.int64)) for column in events)
    cell = ((p * BINS + t * BINS // WINDOW_US) * height + y) * width + x
    counts = torch.zeros(2 * BINS * height * width, dtype=torch.int16)
    counts.put_(cell, torch.ones_like(cell, dtype=torch.int16), accumulate=True)
    return counts.clamp_(max=10).to(torch.uint8).view(2 * BINS, height, width)


# Each stage below builds a case, at a tiny size if `quick`, with its files in `folder`.


def histogram(quick: bool, folder: Path) -> Case:
    """Histogram of one window of a busy recording, with argument checks."""
    number = 2_000 if quick else EVENTS_PER_WINDOW
    height, width = (24, 32) if quick else (360, 640)
    events = make_events(number, WINDOW_US, height, width)
    count_events = partial(
        event_histogram, t_start=0, t_end=WINDOW_US, bins=BINS, height=height, width=width
    )
    return Case(
        name=f"{number:,} events on {height}x{width} px",
        ours=lambda: count_events(*events),
        plain=lambda: put_histogram(events, height, width).numpy(),
        plain_name="put_ of ones (RVT)",
        same=np.array_equal,
        work=number,
        unit="events",
    )


DAT_RECORD = np.dtype([("t", "<u4"), ("word", "<u4")])  # word: x in 14 bits, y in 14, polarity


def store(quick: bool, folder: Path) -> Case:
    """Packing of a `.dat` file with its SHA-256, against compressed columns in HDF5."""
    number = 20_000 if quick else BUSY
    height, width = (24, 32) if quick else SENSOR_1MPX
    source = folder / "recording.dat"
    numbers = count()
    write_dat(source, *make_events(number, 1_000_000, height, width), height, width)

    def same(packed: Path, columns: Path) -> bool:
        events = open_store(packed).slice(0, 1_000_000)
        with h5py.File(columns) as file:
            return all(np.array_equal(getattr(events, name), file[name]) for name in Events._fields)

    return Case(
        name=f"{number:,} events on {height}x{width} px from .dat, hashes included",
        ours=lambda: pack(open_reader(source), folder / f"{next(numbers)}.store"),
        plain=lambda: write_columns(source, number),
        plain_name="Blosc columns in HDF5 (DSEC)",
        same=same,
        work=number,
        unit="events",
    )


def write_columns(source: Path, number: int) -> Path:
    """Write the columns of a `.dat` file, compressed as in DSEC.

    Args:
        source: the `.dat` file.
        number: of its events.

    Returns:
        Path of the new file.
    """
    header = source.stat().st_size - number * DAT_RECORD.itemsize
    records = np.fromfile(source, DAT_RECORD, offset=header)
    word = records["word"]
    columns = {
        "x": (word & 0x3FFF).astype("u2"),
        "y": (word >> 14 & 0x3FFF).astype("u2"),
        "t": np.maximum.accumulate(records["t"].astype(np.int64)),
        "p": (word >> 28 & 1).astype("u1"),
    }
    filters = hdf5plugin.Blosc(cname="zstd", clevel=1, shuffle=hdf5plugin.Blosc.SHUFFLE)
    path = source.with_suffix(".h5")
    with h5py.File(path, "w") as file:
        for name, values in columns.items():
            file.create_dataset(name, data=values, chunks=(min(number, 1 << 17),), **filters)
    return path


def batch(quick: bool, folder: Path) -> Case:
    """Augmented frames of the paper's pre-training."""
    number = 20_000 if quick else BUSY
    sensor = (64, 64) if quick else SENSOR_1MPX
    path = folder / "recording.dat"
    write_dat(path, *make_events(2 * number, 2_000_000, *sensor), *sensor)
    pack(open_reader(path), store_of(path))
    profile, frames = ("sample", 2) if quick else ("paper", 8)
    settings = pretraining_settings("tespec", profile, ["batch_size=1", f"segments={frames}"])
    steps = open_pretraining(settings, folder).steps(0)
    height, width = steps[0]["histograms"].shape[-2:]
    return Case(
        name=f"{frames} frames of {height}x{width} px with flip and zoom",
        ours=lambda: steps[0]["histograms"],
        plain=lambda: counted_then_mapped(steps),
        plain_name="counted, then flipped and zoomed",
        same=torch.equal,
        work=frames,
        unit="frames",
    )


def counted_then_mapped(steps: Any) -> Tensor:
    """Histograms of step 0 by counting all events first, then flipping and zooming the images."""

    def fill(
        recording: Recording, out: NDArray[np.uint8], first: int, binning: Any, flip_zoom: Any
    ) -> None:
        windows = recording.windows[first : first + len(out)]
        options = {"rule": binning.rule, "region": recording.region}
        counted = window_histograms(recording.stream, windows, binning.bins, **options)
        out[...] = apply_maps(counted, flip_zoom, 0)

    with patch.object(Recording, "fill", fill):
        histograms: Tensor = steps[0]["histograms"]
    return histograms


def rectified(quick: bool, folder: Path) -> Case:
    """A DSEC window with its rectification map, against the same window without it."""
    number = 2_000 if quick else EVENTS_PER_WINDOW
    height, width = (24, 32) if quick else SENSOR_DSEC
    path, map_path = folder / "recording.dat", folder / "rectify_map.h5"
    events = make_events(number, WINDOW_US, height, width)
    write_dat(path, *events, height, width)
    pack(open_reader(path), store_of(path))
    rows, columns = np.mgrid[:height, :width].astype(np.float32)
    rectify_map = np.stack([1.05 * columns - 0.025 * width, 0.95 * rows + 0.025 * height], axis=-1)
    with h5py.File(map_path, "w") as file:
        file["rectify_map"] = rectify_map

    def count_events(rectification: Path | None) -> NDArray[np.uint8]:
        stream = EventSource(path, None, rectification).stream
        window = np.array([[0, WINDOW_US]])
        return window_histograms(stream, window, BINS, region=Region(height, width))

    x, y = np.floor(rectify_map[events.y, events.x] + 0.5).astype(int).T
    inside = (x >= 0) & (x < width) & (y >= 0) & (y < height)
    moved = Events(x[inside], y[inside], events.t[inside], events.p[inside])
    expected = put_histogram(moved, height, width)
    return Case(
        name=f"a rectified window of DSEC, {number:,} events on {height}x{width} px",
        ours=partial(count_events, map_path),
        plain=partial(count_events, None),
        plain_name="the same window, not rectified",
        same=lambda ours, plain: np.array_equal(ours[0], expected),
        work=number,
        unit="events",
    )


def recurrent(quick: bool, folder: Path) -> Case:
    """Forward and backward pass of a recurrent Swin, stage by stage, against frame by frame."""
    lanes, frames, size = (1, 2, (32, 32)) if quick else (4, 6, (96, 160))
    torch.manual_seed(0)
    backbone = EventSwin(backbone="swin_micro", img_size=size)
    histograms = torch.poisson(torch.full((lanes, frames, 2 * BINS, *size), 0.05)).to(torch.uint8)

    def step(forward: Callable[[Tensor], Sequence[Tensor]]) -> Tensor:
        backbone.zero_grad()
        features = forward(histograms)
        torch.stack([feature.square().mean() for feature in features]).sum().backward()
        return features[-1].detach()

    return Case(
        name=f"{lanes} x {frames} frames of {size[0]}x{size[1]} px, Swin micro",
        ours=lambda: step(lambda frames: backbone(frames)[0]),
        plain=lambda: step(partial(frame_by_frame, backbone)),
        plain_name="frame by frame (RVT)",
        # Sums in a different order differ by rounding.
        same=partial(torch.allclose, atol=1e-5),
        work=lanes * frames,
        unit="frames",
    )


def frame_by_frame(backbone: Any, histograms: Tensor) -> list[Tensor]:
    """Compute the features of a backbone; each frame passes all stages before the next one.

    Args:
        backbone: recurrent `EventSwin`.
        histograms: (B, T, 2 * BINS, H, W).

    Returns:
        Features (B, T, C, h, w) of the four stages.
    """
    states: list[Any] = [None] * len(backbone.lstms)
    outputs: list[list[Tensor]] = [[] for _ in states]
    for frame in histograms.unbind(1):
        maps = backbone.embed_patches(frame)
        layers = zip(backbone.stage_modules(), backbone.lstms, strict=True)
        for index, (stage, lstm) in enumerate(layers):
            maps = stage(maps).permute(0, 3, 1, 2)  # (B, C, h, w)
            hidden, cell = states[index] or (torch.zeros_like(maps), torch.zeros_like(maps))
            gates = lstm.gates(torch.cat((maps, hidden), dim=1))
            forget, write, output, candidate = gates.chunk(4, dim=1)
            cell = forget.sigmoid() * cell + write.sigmoid() * candidate.tanh()
            hidden = output.sigmoid() * cell.tanh()
            states[index] = (hidden, cell)
            outputs[index].append(hidden)
            maps = hidden.permute(0, 2, 3, 1)
    return [torch.stack(features, dim=1) for features in outputs]


def frozen_step(quick: bool, folder: Path, *, arch: str) -> Case:
    """Training step of a segmentation head, against the backbone's inference and a head step."""
    size = (32, 32) if quick else (96, 160)
    profile = "smoke" if quick else "study"
    settings = finetuning_settings("ddd17", arch, profile, ["head.dropout=0.0"], frozen=True)
    device = torch.device("cpu")
    torch.manual_seed(0)
    training = estimate_training(settings, size, device)
    network = training.model
    plain_network = deepcopy(network).train()
    batch = training.batch(settings.batch_size)
    batch["histograms"].random_(0, 3)
    trainer = Trainer(network, cast("Any", []), settings.optimisation, seed=0, device=device)
    trainer.model.train()
    rate = learning_rate(settings.optimisation, 0)
    optimizer = torch.optim.Adam(plain_network.head.parameters(), rate, fused=True)

    def step() -> Tensor:
        trainer.train_step(batch)
        return cast("Tensor", network.head.conv_seg.weight.detach().clone())

    frames = settings.batch_size * settings.segments
    return Case(
        name=f"{frames} frames of {size[0]}x{size[1]} px, Swin micro, {arch}, frozen; UPerHead",
        ours=step,
        plain=lambda: head_step(plain_network, optimizer, batch),
        plain_name="inference of the backbone, and a step of the head",
        same=partial(torch.allclose, atol=1e-6),
        work=frames,
        unit="frames",
    )


def head_step(
    network: Any, optimizer: torch.optim.Optimizer, batch: Mapping[str, Tensor]
) -> Tensor:
    """Compute features without gradients, then train the head by one step.

    Args:
        network: of a segmentation task.
        optimizer: of its head.
        batch: histograms and labels.

    Returns:
        The last layer's weights after the step.
    """
    with torch.no_grad():
        features, _ = network.backbone(batch["histograms"])
    network.losses(features, batch)["loss"].backward()
    clip_grad_value_(network.head.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    return cast("Tensor", network.head.conv_seg.weight.detach().clone())


CLASSES = ("pedestrian", "two-wheeler", "car")


def metric(quick: bool, folder: Path) -> Case:
    """AP of a test set with the many detections of a low score threshold, from boxes to scores."""
    frames = make_frames(20 if quick else 500)
    number = sum(len(predicted.label) for predicted, _ in frames)

    def by_scorer() -> list[float]:
        scorer = DetectionScorer(CLASSES, BoxFilter(0, 0, 0))
        for time_us, (predicted, truth) in enumerate(frames, 1):
            scorer.update(predicted, truth, "recording", time_us)
        return list(scorer.overall().metrics().values())

    return Case(
        name=f"AP of {len(frames)} frames with {number:,} detections of {len(CLASSES)} classes",
        ours=by_scorer,
        plain=lambda: by_pycocotools(frames),
        plain_name="pycocotools, all areas alone",
        same=lambda ours, plain: np.allclose(ours, plain, atol=1e-6),
        work=number,
        unit="detections",
    )


def make_frames(number: int) -> list[tuple[Boxes, Boxes]]:
    """Draw (predicted, truth) of 360x640 px frames: up to 10 objects, many detections of each."""
    generator = np.random.default_rng(0)

    def draw(count: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        corner = generator.uniform(0, (640, 360), (count, 2))
        sides = generator.uniform(10, 120, (count, 2))
        boxes = np.concatenate([corner, corner + sides], axis=1)
        return boxes, generator.integers(0, len(CLASSES), count)

    frames = []
    for _ in range(number):
        truth, labels = draw(int(generator.integers(1, 11)))
        # an object may appear repeatedly
        detected = generator.integers(0, len(truth), int(generator.integers(10, 50)))
        wrong, wrong_labels = draw(len(detected))
        near = truth[detected] + generator.uniform(-4, 4, (len(detected), 4))
        corners = np.concatenate([near, wrong])
        predicted_labels = np.concatenate([labels[detected], wrong_labels])
        predicted = make_boxes(corners, predicted_labels, generator.random(len(corners)))
        frames.append((predicted, make_boxes(truth, labels)))
    return frames


def by_pycocotools(frames: Sequence[tuple[Boxes, Boxes]]) -> list[float]:
    """AP, AP50 and AP75 in percent by COCOeval."""
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    def table(boxes_of_frames: Sequence[Boxes]) -> NDArray[np.float64]:
        """(N, 7) frame number from 1, left, top, width, height, score and class."""
        numbers = [np.full(len(boxes.label), n) for n, boxes in enumerate(boxes_of_frames, 1)]
        corners, labels, scores = map(np.concatenate, zip(*boxes_of_frames, strict=True))
        sides = corners[:, 2:] - corners[:, :2]
        return np.column_stack([np.concatenate(numbers), corners[:, :2], sides, scores, labels])

    predicted, truth = map(table, zip(*frames, strict=True))
    with contextlib.redirect_stdout(io.StringIO()):
        coco = COCO()
        coco.dataset = {
            "images": [{"id": number} for number in range(1, len(frames) + 1)],
            "categories": [{"id": label} for label in range(len(CLASSES))],
        }
        coco.createIndex()
        evaluation = COCOeval(coco.loadRes(truth), coco.loadRes(predicted), "bbox")
        # All areas only, as in the scorer: pycocotools would repeat the matching for small, medium
        # and large boxes.
        evaluation.params.areaRng = evaluation.params.areaRng[:1]
        evaluation.params.areaRngLbl = ["all"]
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return [100 * float(score) for score in evaluation.stats[:3]]


Stage = Literal[
    "histogram",
    "store",
    "batch",
    "rectified",
    "recurrent",
    "frozen_feedforward",
    "frozen_recurrent",
    "metric",
]
STAGES: dict[Stage, Callable[[bool, Path], Case]] = {
    "histogram": histogram,
    "store": store,
    "batch": batch,
    "rectified": rectified,
    "recurrent": recurrent,
    "frozen_feedforward": partial(frozen_step, arch="feedforward"),
    "frozen_recurrent": partial(frozen_step, arch="recurrent"),
    "metric": metric,
}
app = new_app("speed.py", __doc__)


@app.default
def measure_stages(
    *,
    only: Annotated[Stage | None, Parameter(help="one stage")] = None,
    quick: Tiny = False,
    path: Output = None,
) -> int:
    """Measure the stages, print their rows and write them to a file."""
    torch.set_num_threads(1)
    default = None if only or quick else results_file("speed")
    stages = [only] if only else STAGES
    cases = [(stage, "", partial(measure, stage, quick)) for stage in stages]
    return measure_rows(cases, "cpu", path or default)


def measure(stage: Stage, quick: bool) -> Row:
    """Check that both implementations of a stage agree, then time them.

    Args:
        stage: key of `STAGES`.
        quick: tiny sizes, and one round of one call each.

    Returns:
        Row of results: medians and interquartile ranges in s, the rate, and the ratio of the times.
    """
    with TemporaryDirectory() as folder:
        case = STAGES[stage](quick, Path(folder))
        row: Row = {"case": case.name, "plain": case.plain_name}
        if not case.same(case.ours(), case.plain()):
            note = "the two implementations give different results"
            return row | {"failed": True, "note": note}
        rounds, seconds = (1, 0.0) if quick else (ROUNDS, SECONDS)
        ours, plain = time_alternately(case.ours, case.plain, rounds, seconds)
    return row | {
        "seconds": ours.median,
        "iqr": ours.iqr,
        "runs": len(ours.times),
        "rate": case.work / ours.median,
        "unit": f"{case.unit}/s",
        "plain_seconds": plain.median,
        "plain_iqr": plain.iqr,
        "ratio": plain.median / ours.median,
    }


def time_alternately(
    ours: Callable[[], Any], plain: Callable[[], Any], rounds: int, seconds: float
) -> list[Measurement]:
    """Time two functions by turns, so that a slow phase of the machine affects both.

    Args:
        ours: first function.
        plain: second function.
        rounds: number of turns of each.
        seconds: minimum time of a turn.

    Returns:
        Times of each.
    """
    timers = [Timer("work()", globals={"work": work}) for work in (ours, plain)]
    times: list[list[Measurement]] = [[], []]
    for _ in range(rounds):
        for timer, measurements in zip(timers, times, strict=True):
            measurements.append(timer.blocked_autorange(min_run_time=seconds))
    return [Measurement.merge(measurements)[0] for measurements in times]


def measure_rows(
    cases: Iterable[tuple[str, str, Callable[[], Row]]], device: str, path: Path | None
) -> int:
    """Measure rows one by one, print each, and write those so far with the machine and versions.

    Args:
        cases: stage and case of each row, and a function that returns its other values; an
            exception becomes a failed row with the error as its note.
        device: name of the measured device.
        path: JSON file to write; None: none.

    Returns:
        Exit code, 1 if a row failed.
    """
    facts = {"threads": 1, "load_before": os.getloadavg()[0], "environment": environment(device)}
    rows: list[Row] = []
    for stage, case, work in cases:
        row: Row = {"stage": stage, "case": case, "failed": False}
        try:
            row |= work()
        except Exception as error:
            row |= {"failed": True, "note": f"{type(error).__name__}: {one_line(str(error))[:300]}"}
        rows.append(row)
        show(row)
        if path:
            write_all({path: dumps(facts | {"rows": rows}, indent=1) + "\n"})
    if path:
        print(f"written: {path}")
    failed = [f"{row['stage']} ({row['case']})" for row in rows if row["failed"]]
    print(f"{len(rows)} rows; failed: {', '.join(failed) or 'none'}")
    return 1 if failed else 0


def show(row: Row) -> None:
    """Print a row of results."""
    texts = [
        f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in row.items()
        if name not in ("stage", "case", "failed")
    ]
    status = "FAILED" if row["failed"] else "ok"
    print(f"{row['stage']} ({row['case']}): {status}; {', '.join(texts)}", flush=True)


def results_file(folder: str, gpu: str = "") -> Path:
    """Path of the results of this machine, named by its GPU or CPU and its number of cores."""
    facts = environment()
    name = f"{gpu or facts['cpu']} {facts['cores']} cores".lower()
    return RESULTS / folder / f"{re.sub(r'[^a-z0-9]+', '-', name).strip('-')}.json"


if __name__ == "__main__":
    sys.exit(run(lambda: call(app, sys.argv[1:])))

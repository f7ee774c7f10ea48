"""`python -m tespec.sample`: make a sample world, or a picture of some of its streets."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

from tespec.core.errors import UserError
from tespec.events.stream import Events
from tespec.sample.ddd17 import CLASSES, mask
from tespec.sample.make import DEFAULT, make_world
from tespec.sample.recordings import CONTENTS, DATASETS
from tespec.sample.street import Street

HEIGHT, WIDTH = 260, 346
STREETS = ((3, False), (5, False), (8, True))  # seed, and whether it is night
SECONDS = 0.6
SHOWN_FRAMES = 3  # whose events are shown
NEAREST, FARTHEST = 2.0, 95.0  # m
COLUMNS = ("grey frame", "events of 30 ms", "classes", "depth")


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tespec.sample", description=__doc__)
    parser.add_argument("--size", choices=sorted(CONTENTS), default="small", help="how much to make")
    parser.add_argument("--seed", type=int, default=0, help="streets of different seeds differ")
    parser.add_argument("--root", type=Path, help="folder in which worlds are kept (default: the cache)")
    parser.add_argument("--processes", type=int, help="recordings made at once (default: one per processor)")
    parser.add_argument("--datasets", nargs="+", choices=DATASETS, default=DEFAULT, metavar="NAME",
                        help=f"layouts to make (default: {' '.join(DEFAULT)}; all: {' '.join(DATASETS)})")  # fmt: skip
    parser.add_argument("--picture", type=Path, metavar="FILE", help="save a picture instead of making a world")
    chosen = parser.parse_args(arguments)
    try:
        if chosen.picture:
            draw_streets(chosen.picture)
            made = chosen.picture
        else:
            made = make_world(chosen.size, chosen.seed, chosen.root, chosen.processes, _show, chosen.datasets)
            for dataset in [each for each in chosen.datasets if each != "objects"]:
                sys.stdout.write(f"label prior, {dataset}: {label_prior(made / dataset, dataset)}\n")
    except UserError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    except OSError as error:
        sys.stderr.write(f"error: {error.filename or 'writing'}: {error.strerror}; name another place with --root\n")
        return 2
    sys.stdout.write(f"{made}\n")
    return 0


def label_prior(root: Path, dataset: str) -> str:
    """Scores on the test split of the most frequent labels of the training split, whatever the input."""
    import torch

    from tespec.runs.data import SAMPLE, Data, settings_of
    from tespec.runs.references import Constant, prior_of
    from tespec.tasks import build_task

    task = build_task(settings_of(Data(root, SAMPLE), dataset, "feedforward", SAMPLE), root)
    metrics = task.evaluate(Constant(prior_of(task)), torch.device("cpu")).metrics
    return ", ".join(f"{name} {value:.2f}" for name, value in metrics.items())


def draw_streets(path: Path) -> None:
    """Save a PNG with a row for each of some streets: grey frame, events, classes and depth."""
    from tespec.pictures import panels as draw  # needs matplotlib

    colours = draw.POLARITIES | draw.class_colours(CLASSES) | {"no depth: sky, or farther than the bar": draw.UNKNOWN}
    figure, panels = draw.make_panels(len(STREETS), 4, (HEIGHT, WIDTH), 16.0, bars=1, legend=len(colours))
    for axis, title in zip(panels[0], COLUMNS, strict=True):
        axis.set_title(title)
    for (grey, dots, classes, depth), (seed, night) in zip(panels, STREETS, strict=True):
        street = Street(seed, SECONDS, night)
        film = list(street.record(street.camera(HEIGHT, WIDTH)))
        frame = film[-1][0]
        events = Events(*map(np.concatenate, zip(*(each for _, each in film[-SHOWN_FRAMES:]), strict=True)))
        shown = np.ones((HEIGHT, WIDTH, 3), np.float32)
        shown[events.y, events.x] = np.where(events.p[:, None] == 1, draw.POSITIVE, draw.NEGATIVE)
        grey.imshow(frame.grey, cmap="gray", vmin=0, vmax=255)
        grey.set_ylabel(f"street {seed}, {frame.ego_speed:.1f} m/s")
        dots.imshow(shown, interpolation="nearest")
        draw.draw_label(classes, mask(frame.label, HEIGHT))
        drawn = draw.draw_label(depth, np.where(frame.depth < FARTHEST, frame.depth, np.nan))
        assert drawn is not None
        drawn.set_clim(NEAREST, FARTHEST)
        draw.add_bar(depth, drawn, str(drawn.get_label()))
    draw.add_legend(figure, colours)
    draw.save_figure(figure, path, dpi=80)


def _show(done: int, total: int) -> None:
    sys.stderr.write(f"\rmaking recordings {done}/{total}" + ("\n" if done == total else ""))
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())

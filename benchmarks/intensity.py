"""Draw the intensity of Eq. 6 above that of Eq. 7, at some moments of one recording.

python benchmarks/intensity.py drive.raw                         # the busiest moment, and the quietest after it
python benchmarks/intensity.py drive.raw --at 1.1 1.35 2.0 --crop 200 0 320 480 --norm-events 500 --out drive.png
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if not __package__:
    import installed  # noqa: F401  # before the harness

from tespec.cli.command import Parser, run
from tespec.core.errors import UserError

if TYPE_CHECKING:
    from tespec.events.spatial import Region

WINDOW_MS = 50.0


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recording", type=Path, metavar="RECORDING", help="a recording of any kind that can be read")
    parser.add_argument("--at", type=float, nargs="+", metavar="S", help="moments, in s since the first event")
    parser.add_argument("--crop", type=int, nargs=4, metavar=("LEFT", "TOP", "WIDTH", "HEIGHT"),
                        help="part of the image that is drawn, in px (default: all)")  # fmt: skip
    parser.add_argument("--alpha", type=above_zero, default=5.0, metavar="A", help="decay in 1/s (default 5)")
    parser.add_argument("--norm-events", type=above_zero, default=5000.0, metavar="N",
                        help="N of Eq. 7; the paper's 5000 goes with 1Mpx, whose bins of 5 ms hold tens of thousands "
                             "of events (default 5000)")  # fmt: skip
    parser.add_argument("--out", type=Path, default=Path("intensity.png"), metavar="FILE",
                        help="the PNG (default: intensity.png)")  # fmt: skip
    return parser.parse_args()


def above_zero(text: str) -> float:
    """A finite number above 0."""
    number = float(text)
    if not 0 < number < float("inf"):
        raise ValueError("not above 0")
    return number


def main() -> None:
    """Draw what the command line says."""
    options = parse()
    from tespec.core.settings import Downsample
    from tespec.datasets.unlabelled import cut
    from tespec.pictures.intensity import busiest_and_quiet, draw_instants, instants, windows_at

    recording = cut(options.recording, options.recording, WINDOW_MS, Downsample(factor=1, keep="all"))
    if not len(recording):
        raise UserError(options.recording, f"is shorter than a window of {WINDOW_MS:g} ms", "give a longer one")
    crop = cropped(options.crop, recording.region)
    windows = windows_at(recording, options.at) if options.at else busiest_and_quiet(recording)
    shown = instants(recording, windows, options.alpha, options.norm_events)
    draw_instants(shown, options.out, options.norm_events, crop)
    print(f"written: {options.out}")


def cropped(crop: list[int] | None, region: Region) -> tuple[slice, slice] | None:
    """Rows and columns of a crop (left, top, width, height).

    Raises:
        UserError: it does not lie inside of the image.
    """
    if crop is None:
        return None
    left, top, width, height = crop
    inside = 0 <= left < left + width <= region.width and 0 <= top < top + height <= region.height
    if not inside:
        what = f"does not lie inside of {region.width}x{region.height} px"
        raise UserError(f"--crop {' '.join(map(str, crop))}", what, "give LEFT TOP WIDTH HEIGHT")
    return slice(top, top + height), slice(left, left + width)


if __name__ == "__main__":
    sys.exit(run(main))

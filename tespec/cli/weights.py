"""Look at weights files of any known naming, convert them, and make folders to pass on.

python benchmarks/weights.py inspect swin_tiny_patch4_window7_224.pth
python benchmarks/weights.py convert TESPEC_pretrained.ckpt tespec.safetensors
python benchmarks/weights.py convert tespec.safetensors plain.safetensors --to timm
python benchmarks/weights.py export runs/NAME/weights.safetensors to_share --licence MIT
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tespec.cli.command import Parser
from tespec.cli.options import add_own, bring_in, positive
from tespec.core.settings import parse_size

if TYPE_CHECKING:
    from tespec.weights.inspection import Contents

LISTED = 20


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command that the command line names.

    Raises:
        UserError: a file that cannot be read or converted, or a place that is taken.
    """
    options = parse(arguments)
    bring_in(options, only_given=True)
    {"inspect": show, "convert": convert_file, "export": export_folder}[options.command](options)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = Parser(verb="weights", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="inspect|convert|export")
    inspect = commands.add_parser("inspect", help="format, contents, hash, and which networks it fills")
    convert = commands.add_parser("convert", help="write it in our naming, with a recipe, or in timm's")
    convert.add_argument("--to", choices=("tespec", "timm"), default="tespec", help="naming (default: tespec)")
    export = commands.add_parser("export", help="write a folder: our weights, timm's, and a model card")
    for command in (inspect, convert, export):
        command.add_argument("file", type=Path, metavar="FILE", help="weights")
        command.add_argument("--bins", type=positive, metavar="N", help="time bins (default: the recipe's, else 10)")
        command.add_argument("--sensor", type=parse_size, metavar="WIDTHxHEIGHT",
                             help="in px (default: the recipe's or source's)")  # fmt: skip
        add_own(command)
        command.add_argument("--rescale", action="store_true", help="scale repeated input channels down")
    convert.add_argument("out", type=Path, metavar="OUT", help="file.safetensors to write")
    export.add_argument("out", type=Path, metavar="OUTDIR", help="folder to write")
    for command in (convert, export):
        command.add_argument("--overwrite", action="store_true", help="replace what is there")
    export.add_argument("--title", help="heading of the model card (default: the file's name)")
    export.add_argument("--method", help="how the weights were made (default: the recipe's)")
    export.add_argument("--data", help="what they were trained on (default: the recipe's)")
    export.add_argument("--licence", help="licence they are passed on under (default: not stated)")
    return parser.parse_args(arguments)


def show(options: argparse.Namespace) -> None:
    """Print what a file holds."""
    contents = _inspect(options)
    converted = contents.converted
    print(f"{contents.path.name}\n  format   {contents.source.name}: {contents.source.title}")
    print(f"  sha256   {contents.sha256}")
    print(f"  tensors  {contents.count:,} with {contents.numbers:,} values; {len(converted.tensors)} of the backbone")
    if contents.recipe:
        shown = ("method", "width", "recurrent", "bins", "sensor", "data", "seed")
        told = [f"{key} {contents.recipe[key]}" for key in shown if key in contents.recipe]
        print(f"  recipe   {', '.join(told)}")
    print("  shapes")
    for name, text in shapes(contents).items():
        print(f"    {name:24} {text}")
    if converted.unused:
        more = len(converted.unused) - LISTED
        rest = f" and {more} more" if more > 0 else ""
        print(f"  unused   {', '.join(converted.unused[:LISTED])}{rest}")
    print("  fills")
    for fit in contents.coverage:
        share = f"{fit.present} of {fit.total} tensors"
        fresh = f"; the ConvLSTMs ({fit.fresh} tensors) start at random" if fit.fresh else ""
        print(f"    {fit.network:24} " + (f"no: {share}; {fit.reason}" if fit.reason else f"yes: {share}{fresh}"))


def shapes(contents: Contents) -> dict[str, str]:
    """Per part of the network, its number of tensors and of values; for its stem, the shape."""
    parts: dict[str, list[int]] = {}
    for name, tensor in contents.converted.tensors.items():
        part = re.match(r"swin\.layers\.\d+|lstms\.\d+|resnet\.layer\d+|[^.]+\.[^.]+", name)
        parts.setdefault(part[0] if part else name, []).append(tensor.numel())
    counted = {part: f"{len(sizes):4} tensors, {sum(sizes):12,} values" for part, sizes in parts.items()}
    stem = contents.source.stem or "swin.patch_embed.proj.weight"
    if stem in contents.converted.tensors:
        repeated = ", its input channels repeated" if contents.converted.repeated else ""
        counted = {"stem": f"{tuple(contents.converted.tensors[stem].shape)}{repeated}"} | counted
    return counted


def convert_file(options: argparse.Namespace) -> None:
    """Write a file in another naming."""
    from tespec.weights.publish import refuse_existing, rewrite, timm_state, write_file

    refuse_existing(options.out, options.overwrite)
    contents = _inspect(options)
    rewritten = rewrite(contents, options.bins, options.sensor)
    plain = options.to == "timm"
    tensors, recipe = (timm_state(rewritten.tensors), {}) if plain else (rewritten.tensors, rewritten.recipe)
    sha256 = write_file(options.out, tensors, recipe, options.overwrite)
    left = len(rewritten.tensors) - len(tensors)
    print(f"{options.file} ({contents.source.name}) -> {options.out}: {len(tensors)} tensors, sha256 {sha256}")
    if left:
        print(f"left out, as timm has no place for them: {left} tensors of the ConvLSTMs")


def export_folder(options: argparse.Namespace) -> None:
    """Write a folder to pass on."""
    from tespec.weights.publish import NOT_STATED, Card, refuse_existing, rewrite, write_folder

    refuse_existing(options.out, options.overwrite)
    contents = _inspect(options)
    rewritten = rewrite(contents, options.bins, options.sensor)
    card = Card(
        title=options.title or options.file.stem,
        method=options.method or rewritten.recipe.get("method", NOT_STATED),
        data=options.data or rewritten.recipe.get("data", NOT_STATED),
        licence=options.licence or NOT_STATED,
        files={},
        origin=f"`{contents.path.name}` ({contents.source.title}), SHA-256 `{contents.sha256}`",
        recipe={},
    )
    written = write_folder(options.out, rewritten, card, options.overwrite)
    print(f"written: {', '.join(map(str, written))}")
    if card.licence == NOT_STATED:
        print("the model card states no licence; give --licence before it is passed on")


def _inspect(options: argparse.Namespace) -> Contents:
    from tespec.weights.inspection import inspect

    return inspect(options.file, options.bins, options.sensor, options.rescale)

"""Inspect checkpoints of any known format and convert them.

python benchmarks/weights.py inspect swin_tiny_patch4_window7_224.pth
python benchmarks/weights.py convert TESPEC_pretrained.ckpt tespec.safetensors
python benchmarks/weights.py convert tespec.safetensors plain.safetensors --to timm
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tespec.cli.command import Parser
from tespec.cli.options import add_own, load_plugins, positive
from tespec.core.errors import UserError
from tespec.core.settings import parse_size

if TYPE_CHECKING:
    from tespec.weights.export import Contents

LISTED = 20


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command that the command line names.

    Raises:
        UserError: a file that cannot be read or converted, or a place that is taken.
    """
    options = parse(arguments)
    load_plugins(options, only_given=True)
    {"inspect": show, "convert": convert_file}[options.command](options)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = Parser(verb="weights", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="inspect|convert")
    inspect = commands.add_parser("inspect", help="format, contents, hash, and which networks it fills")
    convert = commands.add_parser("convert", help="write it as tespec.load reads it, or in timm's naming")
    convert.add_argument("--to", choices=("tespec", "timm"), default="tespec", help="naming (default: tespec)")
    for command in (inspect, convert):
        command.add_argument("file", type=Path, metavar="FILE", help="weights")
        command.add_argument("--bins", type=positive, metavar="N", help="time bins (default: the recipe's, else 10)")
        command.add_argument("--sensor", type=parse_size, metavar="WIDTHxHEIGHT",
                             help="in px (default: the recipe's or format's)")  # fmt: skip
        add_own(command)
    convert.add_argument("out", type=Path, metavar="OUT", help="file.safetensors to write")
    convert.add_argument("--overwrite", action="store_true", help="replace an existing file")
    return parser.parse_args(arguments)


def show(options: argparse.Namespace) -> None:
    """Print what a file holds."""
    from tespec.weights.export import FALLBACK

    contents = _inspect(options)
    converted = contents.converted
    values = sum(tensor.numel() for tensor in contents.tensors.values())
    print(f"{contents.path.name}\n  format   {converted.format.name}: {converted.format.title}")
    print(f"  sha256   {contents.sha256}")
    print(f"  tensors  {len(contents.tensors):,} with {values:,} values; {len(converted.tensors)} of the backbone")
    if contents.recipe:
        shown = ("method", "width", "recurrent", "bins", "sensor", "data", "seed")
        print("  recipe   " + ", ".join(f"{key} {contents.recipe[key]}" for key in shown if key in contents.recipe))
    print("  parts")
    parts: dict[str, list[int]] = {}
    for name, tensor in converted.tensors.items():
        found = re.match(r"swin\.layers\.\d+|lstms\.\d+|resnet\.layer\d+|[^.]+\.[^.]+", name)
        parts.setdefault(found[0] if found else name, []).append(tensor.numel())
    for part, sizes in parts.items():
        print(f"    {part:24} {len(sizes):4} tensors, {sum(sizes):12,} values")
    for name in converted.repeated:
        print(f"  repeated {name} to {converted.tensors[name].shape[1]} input channels")
    if converted.unused:
        more = len(converted.unused) - LISTED
        rest = f" and {more} more" if more > 0 else ""
        print(f"  unused   {', '.join(converted.unused[:LISTED])}{rest}")
    print("  fills")
    for name, match in contents.matches.items():
        share = f"{len(match.tensors)} of {match.total} tensors"
        random = f"; the ConvLSTMs ({len(match.random)} tensors) start at random" if match.random else ""
        result = f"no: {share}; {match.problems[0]}" if match.problems else f"yes: {share}{random}"
        print(f"    {f'{contents.arch or FALLBACK}, {name}':24} {result}")


def convert_file(options: argparse.Namespace) -> None:
    """Write a file in another naming."""
    from tespec.weights.export import rewrite, timm_state
    from tespec.weights.files import write_weights

    out = options.out
    if out.suffix != ".safetensors":
        raise UserError(out, "is not named .safetensors, which is what is written", "name it so")
    if out.exists() and not (options.overwrite and out.is_file()):
        raise UserError(out, "exists already", "name another place, or give --overwrite")
    contents = _inspect(options)
    tensors, recipe = rewrite(contents)
    written = timm_state(tensors) if options.to == "timm" else tensors
    sha256 = write_weights(out, written, {} if options.to == "timm" else recipe)
    print(f"{options.file} ({contents.converted.format.name}) -> {out}: {len(written)} tensors, sha256 {sha256}")
    if len(written) < len(tensors):
        print(f"left out, as timm has no place for them: {len(tensors) - len(written)} tensors of the ConvLSTMs")


def _inspect(options: argparse.Namespace) -> Contents:
    from tespec.weights.export import inspect

    return inspect(options.file, options.bins, options.sensor)

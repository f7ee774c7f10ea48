"""Look into weights files, convert published ones, and export one's own.

python benchmarks/weights.py inspect swin_tiny_patch4_window7_224.pth
python benchmarks/weights.py convert TESPEC_pretrained.ckpt tespec.safetensors
python benchmarks/weights.py export runs/pretraining-.../backbone.safetensors shared --title "My backbone" --licence MIT
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks.cli import Parser, run
from tespec.errors import UserError


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = Parser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    inspect = commands.add_parser("inspect", help="format, hash, and which backbones it covers")
    inspect.add_argument("file", type=Path)
    convert = commands.add_parser("convert", help="write it as the harness, or timm, names it")
    convert.add_argument("file", type=Path)
    convert.add_argument("out", type=Path, help="ends in .safetensors, or in .pth for timm's names")
    export = commands.add_parser("export", help="both forms with a model card")
    export.add_argument("file", type=Path)
    export.add_argument("out", type=Path, help="folder")
    export.add_argument("--title", required=True, help="heading of the model card")
    export.add_argument("--licence", required=True, help="under which the weights are passed on")
    for command in (convert, export):
        command.add_argument("--overwrite", action="store_true", help="replace what is there")
    return parser.parse_args()


def main() -> None:
    """Run what the command line says."""
    options = parse()
    if options.command == "inspect":
        inspect(options.file)
    elif options.command == "convert":
        convert(options.file, options.out, options.overwrite)
    else:
        export(options)


def inspect(file: Path) -> None:
    """Print what a file holds."""
    from tespec.weights.export import coverage
    from tespec.weights.files import sha256_of
    from tespec.weights.load import read_backbone

    source = read_backbone(file)
    tensors, unused = source.renamed.tensors, source.renamed.unused
    print(f"file        {file}\nSHA-256     {sha256_of(file)}\nformat      {source.renamed.format}")
    print(f"backbone    {len(tensors)} tensors, {sum(tensor.numel() for tensor in tensors.values()):,} numbers")
    if source.recipe:
        print("recipe      " + ", ".join(f"{name}: {source.recipe[name]}" for name in sorted(source.recipe)
                                          if not isinstance(source.recipe[name], (dict, list))))  # fmt: skip
    if unused:
        print(f"unused      {len(unused)}: {', '.join(unused[:6])}" + (", ..." if len(unused) > 6 else ""))
    for each in coverage(source):
        kind = "recurrent" if each.recurrent else "feed-forward"
        print(f"{each.share:7.1%}     of {each.arch}, {kind}" + (f"; lacks {each.lacks}, ..." if each.lacks else ""))


def convert(file: Path, out: Path, overwrite: bool) -> None:
    """Write a file under other names."""
    from tespec.weights.export import converted, write_timm
    from tespec.weights.files import write_weights

    if out.suffix not in (".safetensors", ".pth"):
        raise UserError(out, "ends in neither .safetensors nor .pth", "choose one: the harness's names, or timm's")
    refuse_existing([out], overwrite)
    tensors, recipe = converted(file)
    if out.suffix == ".pth":
        write_timm(out, tensors)
    else:
        write_weights(out, tensors, recipe)
    print(f"{out}: {recipe['width']}, {'recurrent' if recipe['recurrent'] else 'feed-forward'}, {len(tensors)} tensors")


def export(options: argparse.Namespace) -> None:
    """Write both forms and a model card."""
    from tespec.weights.export import OURS, TIMM, export

    refuse_existing([options.out / name for name in (OURS, TIMM, "README.md")], options.overwrite)
    for path in export(options.file, options.out, options.title, options.licence):
        print(path)


def refuse_existing(paths: list[Path], overwrite: bool) -> None:
    """Refuse to replace files unless it is asked for.

    Raises:
        UserError: one of them exists.
    """
    for path in paths:
        if path.exists() and not overwrite:
            raise UserError(path, "exists already", "name another place, or give --overwrite")


if __name__ == "__main__":
    sys.exit(run(main))

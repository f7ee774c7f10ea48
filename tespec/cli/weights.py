"""Inspect checkpoints of any known format and convert them."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from tespec.cli.main import examples, new_app, output
from tespec.cli.options import Plugins
from tespec.core.errors import UserError
from tespec.core.settings import Size, parse_size
from tespec.registry import import_files
from tespec.runs.setup import PositiveInt

LISTED = 20
app = new_app(
    "weights",
    "Inspect checkpoints of any known format and convert them.",
    help_epilogue=examples("weights inspect FILE", "weights convert FILE backbone.safetensors"),
)
File = Annotated[Path, Parameter(help="weights file")]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class NetworkOptions:
    """Options of the network that weights belong to, for files that do not specify it."""

    bins: Annotated[
        PositiveInt | None, Parameter(help="time bins (default: the recipe's, else 10)")
    ] = None
    sensor: Annotated[
        Size | None,
        Parameter(
            converter=lambda _, tokens: parse_size(tokens[0].value),
            n_tokens=1,
            help="WIDTHxHEIGHT in px (default: the recipe's or format's)",
        ),
    ] = None
    plugins: Plugins = ()


@app.command(
    name="inspect",
    help_epilogue=examples("weights inspect FILE", "weights inspect FILE --bins 5"),
)
def show(file: File, /, *, network: NetworkOptions = NetworkOptions()) -> None:
    """Print a file's format, contents, hash and matching networks."""
    import_files(network.plugins)
    from tespec.weights.load import inspect, random_parts

    contents = inspect(file, network.bins, network.sensor)
    converted = contents.converted
    values = sum(tensor.numel() for tensor in contents.tensors.values())
    print(f"{contents.path.name}\n  format   {converted.format.name}: {converted.format.title}")
    print(f"  sha256   {contents.sha256}")
    print(
        f"  tensors  {len(contents.tensors):,} with {values:,} values; "
        f"{len(converted.tensors)} of the backbone"
    )
    if contents.recipe:
        facts = [
            f"{key} {contents.recipe[key]}"
            for key in ("method", "backbone", "recurrent", "bins", "sensor", "data", "seed")
            if key in contents.recipe
        ]
        print(f"  recipe   {', '.join(facts)}")
    for title, text in converted.format.facts().items():
        print(f"  {title:8} {text}")
    print("  parts")
    parts: dict[str, list[int]] = {}
    for name, tensor in converted.tensors.items():
        part = re.match(r"swin\.layers\.\d+|lstms\.\d+|resnet\.layer\d+|[^.]+\.[^.]+", name)
        parts.setdefault(part[0] if part else name, []).append(tensor.numel())
    for title, sizes in parts.items():
        print(f"    {title:24} {len(sizes):4} tensors, {sum(sizes):12,} values")
    for name in converted.repeated:
        print(f"  repeated {name} to {converted.tensors[name].shape[1]} input channels")
    if converted.unused:
        more = len(converted.unused) - LISTED
        listed = ", ".join(converted.unused[:LISTED])
        print(f"  unused   {listed}" + (f" and {more} more" if more > 0 else ""))
    print("  fills")
    for name, match in contents.matches.items():
        notes = match.problems[:1] or ([random_parts(match.random)] if match.random else [])
        filled = "; ".join([f"{len(match.tensors)} of {match.total} tensors", *notes])
        answer = "no" if match.problems else "yes"
        print(f"    {f'{contents.compared}, {name}':24} {answer}: {filled}")


@app.command(name="list")
def list_formats() -> None:
    """List the published weights that can be loaded, and those that cannot."""
    from tespec.weights.released import FORMATS, REFUSED, UNAVAILABLE

    for known in FORMATS:
        print(f"{known.name:15} {known.title}: {', '.join(known.networks) or 'any backbone'}")
        for title, text in known.facts().items():
            print(f"  {title:8} {text}")
    print("refused: a file that")
    for refused in REFUSED:
        print(f"  {refused.reason}")
    for name, reason in UNAVAILABLE.items():
        print(f"  {name}: {reason}")


@app.command(
    help_epilogue=examples(
        "weights convert FILE backbone.safetensors",
        "weights convert FILE swin.safetensors --to timm",
    )
)
def convert(
    file: File,
    out: Annotated[Path, output(".safetensors"), Parameter(help="file.safetensors to write")],
    /,
    *,
    to: Annotated[Literal["tespec", "timm"], Parameter(help="naming of the tensors")] = "tespec",
    overwrite: Annotated[bool, Parameter(help="replace an existing file")] = False,
    network: NetworkOptions = NetworkOptions(),
) -> None:
    """Convert a file for tespec.load, or to timm's naming."""
    if out.exists() and not (overwrite and out.is_file()):
        raise UserError(out, "already exists", "choose another path, or give --overwrite")
    import_files(network.plugins)
    from tespec.weights.files import write_weights
    from tespec.weights.load import inspect, rewrite, timm_state

    contents = inspect(file, network.bins, network.sensor)
    tensors, recipe = rewrite(contents)
    written = timm_state(tensors) if to == "timm" else tensors
    sha256 = write_weights(out, written, {} if to == "timm" else recipe)
    source = f"{file} ({contents.converted.format.name})"
    print(f"{source} -> {out}: {len(written)} tensors, sha256 {sha256}")
    if omitted := len(tensors) - len(written):
        print(f"not written, as timm has no ConvLSTMs or necks: {omitted} tensors")

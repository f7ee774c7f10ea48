"""Inspect checkpoints of any known format and convert them."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from tespec.cli.main import examples, new_app, output
from tespec.cli.options import Plugins
from tespec.core.errors import one_line, require
from tespec.core.settings import Size, parse_size
from tespec.registry import import_files
from tespec.runs.setup import PositiveInt

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
    from tespec.core.files import sha256_of
    from tespec.weights.load import inspect

    contents = inspect(file, network.bins, network.sensor)
    checkpoint = contents.checkpoint
    matches = {"recurrent": contents.match(True), "feed-forward": contents.match(False)}
    values = sum(tensor.numel() for tensor in checkpoint.tensors.values())
    print(f"{file.name}\n  format   {checkpoint.format.name}: {checkpoint.format.title}")
    print(f"  sha256   {sha256_of(file)}")
    print(f"  tensors  {len(checkpoint.tensors):,} of the backbone, with {values:,} values")
    if recipe := checkpoint.recipe:
        keys = ("method", "backbone", "recurrent", "bins", "sensor", "data", "seed")
        facts = ", ".join(f"{key} {recipe[key]}" for key in keys if key in recipe)
        print(f"  recipe   {one_line(facts)}")
    for title, text in checkpoint.format.facts().items():
        print(f"  {title:8} {text}")
    print("  parts")
    parts: dict[str, list[int]] = {}
    for name, tensor in checkpoint.tensors.items():
        part = re.match(r"swin\.layers\.\d+|lstms\.\d+|resnet\.layer\d+|[^.]+\.[^.]+", name)
        parts.setdefault(part[0] if part else name, []).append(tensor.numel())
    for title, sizes in parts.items():
        print(f"    {one_line(title):24} {len(sizes):4} tensors, {sum(sizes):12,} values")
    if checkpoint.unused:
        print(f"  unused   {one_line(', '.join(checkpoint.unused))}")
    print("  fills")
    for name, match in matches.items():
        summary = match.report.summary()
        answer = f"no: {summary}; {match.problems[0]}" if match.problems else f"yes: {summary}"
        print(f"    {contents.settings['backbone']}, {name:12} {one_line(answer)}")


@app.command(name="list")
def list_formats() -> None:
    """List the published weights that can be loaded, and those that cannot."""
    from tespec.weights.released import FORMATS, REFUSED, UNAVAILABLE

    for known in FORMATS:
        print(f"{known.name:15} {known.title}: {', '.join(known.networks) or 'any backbone'}")
        for title, text in known.facts().items():
            print(f"  {title:8} {text}")
    print("refused: a file that")
    for reason in REFUSED.values():
        print(f"  {reason}")
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
    may_write = not out.exists() or (overwrite and out.is_file())
    require(may_write, out, "already exists", "choose another path, or give --overwrite")
    import_files(network.plugins)
    from tespec.weights.files import write_weights
    from tespec.weights.load import inspect, rewrite, timm_state

    contents = inspect(file, network.bins, network.sensor)
    tensors, recipe = rewrite(contents)
    written = timm_state(tensors) if to == "timm" else tensors
    sha256 = write_weights(out, written, {} if to == "timm" else recipe)
    source = f"{file} ({contents.checkpoint.format.name})"
    print(f"{source} -> {out}: {len(written)} tensors, sha256 {sha256}")
    if omitted := len(tensors) - len(written):
        print(f"not written, as timm has no ConvLSTMs or necks: {omitted} tensors")

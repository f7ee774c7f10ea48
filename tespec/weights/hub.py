"""Weights by their name in timm's hub, where there is a network; kept in the cache."""

from __future__ import annotations

from pathlib import Path

import tespec.compat  # noqa: F401  # before timm

from tespec.errors import UserError
from tespec.paths import cache_root
from tespec.weights.files import write_weights

PREFIX = "timm:"


def fetched(given: Path | None) -> Path | None:
    """A weights file: `given` itself, or for "timm:NAME" a file in the cache, downloaded where it is not there yet.

    Raises:
        UserError: timm knows no such weights, or they cannot be reached.
    """
    if given is None or not str(given).startswith(PREFIX):
        return given
    name = str(given).removeprefix(PREFIX)
    path = cache_root() / "weights" / f"{name.replace('/', '_')}.safetensors"
    if path.is_file():
        return path
    import timm

    if not timm.is_model_pretrained(name):
        raise UserError(f"--checkpoint {given}", "timm knows no such weights", "give timm:NAME as timm lists it")
    try:
        network = timm.create_model(name, pretrained=True, num_classes=0)
    # What goes wrong on the way differs from version to version of the hub's client.
    except Exception as error:
        what = f"cannot be fetched ({type(error).__name__})"
        raise UserError(f"--checkpoint {given}", what, "download the file elsewhere and give its path") from error
    write_weights(path, network.state_dict(), {})
    return path

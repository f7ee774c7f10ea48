"""Earlier names of settings and of their values, in weights and files of users."""

from collections.abc import Mapping
from typing import Any

SETTINGS = {
    "width": "backbone",
    "label_share": "label_fraction",
    "zoom_in_share": "zoom_in_fraction",
}
VALUES = {
    "backbone": {
        "tiny": "swin_tiny",
        "micro": "swin_micro",
        "resnet-micro": "resnet_micro",
        "maxvit-micro": "maxvit_micro",
        "maxvit-base": "maxvit_base",
    },
    "sampling": {"streams": "stream", "clips": "random"},
    "profile": {"tiny": "smoke"},
}


def renamed(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested settings, or settings by dotted name, under their present names.

    >>> renamed({"width": "tiny", "augmentation.zoom_in_share": 0.8})
    {'backbone': 'swin_tiny', 'augmentation.zoom_in_fraction': 0.8}
    """
    current: dict[str, Any] = {}
    for path, value in settings.items():
        *groups, name = path.split(".")
        name = SETTINGS.get(name, name)
        if isinstance(value, Mapping):
            value = renamed(value)
        elif isinstance(value, str):
            value = VALUES.get(name, {}).get(value, value)
        current[".".join([*groups, name])] = value
    return current


def present_names(name: str) -> list[str]:
    """List the present names of a setting or value that had another name earlier."""
    return [names[name] for names in (SETTINGS, *VALUES.values()) if name in names]

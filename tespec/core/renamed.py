"""Earlier names of settings and of their values, in files that users have."""

from collections.abc import Mapping
from typing import Any

SETTINGS = {"width": "backbone", "label_share": "label_fraction"}
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
    """Return nested settings, or settings by dotted name, under their present names."""
    current: dict[str, Any] = {}
    for name, value in settings.items():
        *groups, last = name.split(".")
        last = SETTINGS.get(last, last)
        if isinstance(value, Mapping):
            value = renamed(value)
        elif isinstance(value, str):
            value = VALUES.get(last, {}).get(value, value)
        current[".".join([*groups, last])] = value
    return current

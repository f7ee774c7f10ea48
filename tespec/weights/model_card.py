"""The page that goes with weights: what they are, where they come from, how to load them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from tespec.models.padding import padded_size

NOT_STATED = "not stated"


@dataclass(frozen=True)
class Card:
    """What a model card says.

    Attributes:
        title: heading.
        method: how the weights were made.
        data: what they were trained on.
        licence: under which they are passed on.
        files: SHA-256 of each file, by name.
        origin: file and naming they were converted from.
        recipe: settings, as stored in the weights.
    """

    title: str
    method: str
    data: str
    licence: str
    files: dict[str, str]
    origin: str
    recipe: dict[str, Any]


def render_card(card: Card, weights: str, plain: str) -> str:
    """Markdown with the header that model hubs read; `weights` and `plain` are names in `card.files`."""
    licence = [] if card.licence == NOT_STATED else [f"license: {json.dumps(card.licence)}"]
    header = ["---", *licence, "library_name: tespec", "tags: [event-camera, self-supervised]", "---"]
    facts = {"Method": card.method, "Data": card.data, "Licence": card.licence, "Converted from": card.origin}
    hashes = [f"| `{name}` | `{sha256}` |" for name, sha256 in card.files.items()]
    return "\n".join(
        [
            *header,
            "",
            f"# {card.title}",
            "",
            *(f"- {name}: {value}" for name, value in facts.items()),
            "",
            "## Files",
            "",
            "| file | SHA-256 |",
            "|---|---|",
            *hashes,
            "",
            "## Loading",
            "",
            "```python",
            *_loading(card.recipe, weights),
            "```",
            "",
            f"`{plain}` is the network in timm's naming (0.8 and later), without ConvLSTMs, classifier and final norm:",
            "",
            "```python",
            *_loading_plain(card.recipe, plain),
            "```",
            "",
            "## Recipe",
            "",
            "```json",
            json.dumps(card.recipe, indent=2, sort_keys=True),
            "```",
            "",
        ]
    )


def _loading(recipe: dict[str, Any], weights: str) -> list[str]:
    if "width" not in recipe:
        return [f'tensors = safetensors.torch.load_file("{weights}")']
    channels = 2 * recipe["bins"]
    return [
        "import tespec",
        "",
        f'backbone = tespec.load("{weights}")',
        f"features, state = backbone.step(histogram)  # (1, {channels}, H, W) counts of events",
        "features, state = backbone.step(next_histogram, state)",
    ]


def _loading_plain(recipe: dict[str, Any], plain: str) -> list[str]:
    made = f"in_chans={2 * recipe['bins']}, num_classes=0"
    lines = ["import timm", "import torch", "from safetensors.torch import load_file", ""]
    filled = f'model.load_state_dict(load_file("{plain}"))'
    if "width" not in recipe:
        return [*lines, f'model = timm.create_model("resnet50", {made})', filled]
    if recipe["width"] != "tiny":
        return [*lines, f'tensors = load_file("{plain}")']
    made += f", img_size={padded_size(*recipe['sensor'])}"
    lines.append(f'model = timm.create_model("swin_tiny_patch4_window7_224", {made})')
    return [*lines, "model.norm = torch.nn.Identity()", filled]

"""The page around the sections: one file, nothing loaded from elsewhere, no script but its own."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Section:
    """A part of the report: its anchor, its heading, and its content as HTML, escaped already."""

    anchor: str
    title: str
    html: str


def page(title: str, lead: Sequence[str], sections: Sequence[Section]) -> str:
    """The whole page; sections without content are left out."""
    style = (HERE / "style.css").read_text(encoding="utf-8")
    script = (HERE / "script.js").read_text(encoding="utf-8")
    shown = [section for section in sections if section.html]
    contents = "".join(f'<li><a href="#{each.anchor}">{escape(each.title)}</a></li>' for each in shown)
    return (
        "\n".join(
            [
                "<!doctype html>",
                '<html lang="en"><head><meta charset="utf-8">',
                f'<meta http-equiv="Content-Security-Policy" content="{_policy(style, script)}">',
                '<meta name="viewport" content="width=device-width, initial-scale=1">',
                f"<title>{escape(title)}</title><style>{style}</style></head><body>",
                f"<h1>{escape(title)}</h1>",
                *(f'<p class="lead">{escape(line)}</p>' for line in lead),
                f"<nav><ul>{contents}</ul></nav>",
                *(
                    f'<section id="{each.anchor}"><h2>{escape(each.title)}</h2>\n{each.html}\n</section>'
                    for each in shown
                ),
                f"<script>{script}</script></body></html>",
            ]
        )
        + "\n"
    )


def _policy(style: str, script: str) -> str:
    """What a browser may do with the page: show its own pictures and style, run its own script, load nothing."""
    return (
        f"default-src 'none'; img-src data:; style-src '{_digest(style)}'; script-src '{_digest(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"

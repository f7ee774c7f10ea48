"""Pictures inside the page."""

from __future__ import annotations

import base64
import io
import warnings
from html import escape
from pathlib import Path

from PIL import Image

WIDEST = 1200  # px
QUALITY = 82


def figure(path: Path, caption: str) -> str:
    """A picture file with its caption; a line in its place where the file cannot be read."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            # Other formats hide behind the name as well, and some are handed to programs outside.
            with Image.open(path, formats=("PNG",)) as picture:
                shown = picture.convert("RGB")
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        return f'<p class="notes">{escape(path.name)} cannot be shown ({escape(type(error).__name__)}).</p>'
    if shown.width > WIDEST:
        shown = shown.resize((WIDEST, max(1, round(shown.height * WIDEST / shown.width))))
    data = io.BytesIO()
    shown.save(data, "WEBP", quality=QUALITY)
    source = base64.b64encode(data.getvalue()).decode()
    return (
        f'<figure><img src="data:image/webp;base64,{source}" width="{shown.width}" height="{shown.height}" '
        f'alt="{escape(caption)}" loading="lazy"><figcaption>{escape(caption)}</figcaption></figure>'
    )

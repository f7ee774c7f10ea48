"""Helpers for DDD17: PNG masks, and extracted mask archives."""

import io
import struct
import zlib

from PIL import Image
from twins.layouts import extracted


def png(image):
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "PNG")
    return buffer.getvalue()


def png_of(depth, colour, row, palette=b"", size=(4, 1)):
    """PNG file of `size` (width, height) px with these pixel bytes (PNG specification, sections 5.3
    and 11.2).
    """

    def chunk(kind, content):
        return (
            struct.pack(">I", len(content))
            + kind
            + content
            + struct.pack(">I", zlib.crc32(kind + content))
        )

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", *size, depth, colour, 0, 0, 0))
    colours = chunk(b"PLTE", palette) if palette else b""
    return (
        b"\x89PNG\r\n\x1a\n"
        + head
        + colours
        + chunk(b"IDAT", zlib.compress(b"\0" + row))
        + chunk(b"IEND", b"")
    )


def extract(recording):
    """Extract the masks of a data set from their zip archives, and return the folder of this
    recording's.
    """
    extracted(recording.parent)
    return recording / "segmentation_masks"

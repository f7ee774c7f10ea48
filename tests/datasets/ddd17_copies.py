"""Helpers for DDD17: PNG masks, extracted mask archives, and a recording in the official sizes."""

import io
import struct
import zipfile
import zlib

import numpy as np
from event_files import ddd17, random_events
from PIL import Image
from twins.layouts import extracted


def png(image):
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "PNG")
    return buffer.getvalue()


def png_of(depth, colour, row, palette=b"", size=(4, 1)):
    """PNG file of `size` (width, height) px with these pixel bytes (PNG specification, sections 5.3 and 11.2)."""

    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", *size, depth, colour, 0, 0, 0))
    colours = chunk(b"PLTE", palette) if palette else b""
    return b"\x89PNG\r\n\x1a\n" + head + colours + chunk(b"IDAT", zlib.compress(b"\0" + row)) + chunk(b"IEND", b"")


def extract(recording):
    """Extract the masks of a data set from their zip archives, and return the folder of this recording's."""
    extracted(recording.parent)
    return recording / "segmentation_masks"


def official_mask(number):
    mask = np.random.default_rng(number).integers(0, 6, (200, 346), np.uint8)
    mask[0] = 255
    return mask


def write_official(root, ticks=1000, masks=range(1, 9), start_us=5_000_000):
    """Write a recording like an official one: 346x260 px, an image every 30 ms, masks of 200 rows, no dataset.json."""
    events = random_events(4000, height=260, width=346, start=start_us, end=start_us + 320_000)
    folder = ddd17(root / "dir1", events, ticks_per_us=ticks, frame_period_us=30_000, images=10)
    with zipfile.ZipFile(folder / "segmentation_masks.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for number in masks:
            archive.writestr(f"segmentation_masks/segmentation_{number:08d}.png", png(official_mask(number)))
    return events, events.t[0] + 30_000 * np.arange(1, 11)

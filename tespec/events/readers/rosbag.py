"""ROS 1 bags and folders of ROS 2 bags, read with the package rosbags (`pip install tespec[ros]`).

The messages are decoded here: rosbags would execute code that it generates from the types that a
bag describes.
"""

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tespec.core.errors import UserError
from tespec.core.settings import Size
from tespec.events.readers import Events, Reader, resolve_size
from tespec.events.readers.arrays import as_events

SUFFIX, METADATA, STORAGE = ".bag", "metadata.yaml", (".db3", ".mcap")
# uzh-rpg/rpg_dvs_ros, dvs_msgs/msg and prophesee-ai/prophesee_ros_wrapper,
# prophesee_event_msgs/msg: the same fields
MESSAGES = ("dvs_msgs/msg/EventArray", "prophesee_event_msgs/msg/EventArray")
ROS1_EVENT = np.dtype([("x", "<u2"), ("y", "<u2"), ("s", "<u4"), ("ns", "<u4"), ("p", "u1")])
# ROS 2 aligns each field to its size. So events are 16 bytes apart, with x and y of the first two
# bytes late.
ROS2_EVENT = np.dtype(
    [
        ("x", "<u2"),
        ("y", "<u2"),
        ("gap", "V2"),
        ("s", "<u4"),
        ("ns", "<u4"),
        ("p", "u1"),
        ("end", "V1"),
    ]
)


def reads(path: Path) -> bool:
    """Whether a file is named as a bag of ROS 1, or a folder holds a bag of ROS 2."""
    if path.suffix.lower() == SUFFIX and path.is_file():
        return True
    return (path / METADATA).is_file() and any(file.suffix in STORAGE for file in path.iterdir())


def open_recording(path: Path, sensor: Size | None = None, default: Size | None = None) -> Reader:
    """Open a bag with one topic of events, whose first message names the sensor's size.

    Args:
        path: file of ROS 1 or folder of ROS 2.
        sensor: (height, width) in px given by the user.
        default: (height, width) in px if nothing else names it, see `resolve_size`.
    """
    is_ros2 = path.is_dir()
    named = None
    with _messages(path) as messages:
        for content in messages:
            height, width, _ = decode_message(content, is_ros2)
            named = (height, width) if height and width else None
            break
    size = resolve_size(path, sensor, named, default)
    files = filter(Path.is_file, path.iterdir()) if is_ros2 else [path]
    count = sum(file.stat().st_size for file in files) // ROS1_EVENT.itemsize

    def chunks() -> Iterator[Events]:
        with _messages(path) as messages:
            for content in messages:
                _, _, events = decode_message(content, is_ros2)
                if len(events):
                    times = events["s"] * np.int64(1_000_000) + events["ns"] // 1000
                    yield as_events(path, events["x"], events["y"], times, events["p"])

    return Reader(path, *size, count, chunks)


@contextmanager
def _messages(path: Path) -> Iterator[Iterator[bytes]]:
    """Open a bag, and iterate over the messages of its topic of events."""
    try:
        from rosbags import rosbag1, rosbag2
    except ImportError as error:
        raise UserError(
            path,
            "ROS bags are read with the package rosbags, which is not installed",
            "pip install 'tespec[ros]'",
        ) from error
    try:
        with (rosbag2 if path.is_dir() else rosbag1).Reader(path) as bag:
            connections = [link for link in bag.connections if link.msgtype in MESSAGES]
            topics = sorted({link.topic for link in connections})
            if not topics:
                types = ", ".join(sorted({link.msgtype for link in bag.connections}))
                raise UserError(
                    path,
                    f"has no topic of events ({types or 'no messages'})",
                    f"give a bag with {' or '.join(MESSAGES)}",
                )
            if len(topics) > 1:
                raise UserError(
                    path,
                    f"has events of {len(topics)} topics: {', '.join(topics)}",
                    f"keep one: rosbags-convert --src {path.name} --dst OUTPUT "
                    f"--include-topic {topics[0]}",
                )
            yield (content for _, _, content in bag.messages(connections))
    except UserError:
        raise
    except Exception as error:  # of many types, on damaged bags
        raise UserError(path, f"not a readable ROS bag ({error})", "copy it again") from error


def decode_message(content: bytes, is_ros2: bool) -> tuple[int, int, NDArray[Any]]:
    """Decode a serialised `EventArray`.

    Args:
        content: The message in the format of ROS 1, or in ROS 2's, little-endian CDR.
        is_ros2: Whether it is in ROS 2's.

    Returns:
        Height and width of the sensor in px, 0 if unknown, and the events (N,) with fields x, y, s,
        ns, p.

    Raises:
        ValueError: The content is not a message of this type.
    """
    # A number (of the message, or of the encoding), two words of time, and the frame's name with
    # its length
    begin = 16 + int.from_bytes(content[12:16], "little")
    begin += -begin % 4 if is_ros2 else 0
    height, width, count = struct.unpack_from("<3I", content, begin)
    begin += 12
    end = begin + (max(16 * count - 3, 0) if is_ros2 else 13 * count)
    if not 0 <= len(content) - end < 4 or (is_ros2 and content[:2] != b"\0\1"):
        raise ValueError(
            f"a message of {len(content)} bytes is not an EventArray of {count} events"
        )
    if not is_ros2:
        return height, width, np.frombuffer(content, ROS1_EVENT, count, begin)
    events = np.frombuffer(content + b"\0", ROS2_EVENT, count, begin - 2).copy()
    if count:
        events[["x", "y"]][0] = struct.unpack_from("<2H", content, begin)
    return height, width, events

"""ROS bags: messages by their published definition, bags written by rosbags, and bad bags."""

import struct
import sys

import numpy as np
import pytest
from event_files import assert_refused, assert_same_events, cut, random_events, read

from tespec.datasets.folder import find_recordings
from tespec.events import Events
from tespec.events.opening import open_reader
from tespec.events.readers.rosbag import decode_message, reads

EVENTS = random_events(
    1_001, height=48, width=64, start=1_600_000_000_000_000, end=1_600_000_001_000_000
)
PARTS = [
    Events(*part)
    for part in zip(*(np.split(column, [0, 1, 3, 500]) for column in EVENTS), strict=True)
]
TYPE = "dvs_msgs/msg/EventArray"


def ros1_message(events, size=(48, 64), frame="cam"):
    """Serialise as ROS 1: fields one after the other, wiki.ros.org/msg, ROS/Technical Overview."""
    head = (
        struct.pack("<IIII", 7, 1, 2, len(frame))
        + frame.encode()
        + struct.pack("<III", *size, len(events.t))
    )
    records = zip(*(column.tolist() for column in events), strict=True)
    pack = struct.Struct("<HHIIB").pack
    return head + b"".join(
        pack(x, y, t // 10**6, t % 10**6 * 1000 + 999, p) for x, y, t, p in records
    )


def ros2_message(events, size=(48, 64), frame="cam"):
    """Serialise as ROS 2 does: OMG's CDR, every field at a multiple of its size."""
    content = bytearray()

    def put(code, value):
        content.extend(
            bytes(-len(content) % struct.calcsize(code)) + struct.pack(f"<{code}", value)
        )

    for value in (1, 2, len(frame) + 1):
        put("I", value)
    content.extend(frame.encode() + b"\0")
    for value in (*size, len(events.t)):
        put("I", value)
    for x, y, t, p in zip(*(column.tolist() for column in events), strict=True):
        for code, value in zip("HHIIB", (x, y, t // 10**6, t % 10**6 * 1000 + 999, p), strict=True):
            put(code, value)
    return b"\0\1\0\0" + bytes(content)


@pytest.mark.parametrize("frame", ["", "c", "cam", "cam0"])
@pytest.mark.parametrize("is_ros2", [False, True])
def test_messages_are_decoded_as_defined(is_ros2, frame):
    for part in PARTS:
        content = (ros2_message if is_ros2 else ros1_message)(part, (48, 64), frame)
        height, width, events = decode_message(content, is_ros2)
        assert (height, width) == (48, 64)
        times = events["s"] * np.int64(10**6) + events["ns"] // 1000
        for found, expected in zip(
            (events["x"], events["y"], times, events["p"]), part, strict=True
        ):
            np.testing.assert_array_equal(found, expected)
        for damaged in (
            content[:-1] if len(part.t) else content[:-4],
            content + bytes(4),
            content[:20],
        ):
            with pytest.raises((ValueError, struct.error)):
                decode_message(damaged, is_ros2)


def write_bag(path, version, topics=("/dvs/events",), size=(48, 64), parts=PARTS, kind=TYPE):
    """Write a bag of ROS 1, or of ROS 2 in SQLite (2) or MCAP (3)."""
    rosbags = pytest.importorskip("rosbags.typesys", reason="needs the extra tespec[ros]")
    from rosbags import rosbag1, rosbag2

    if version == 1:
        writer, encode = rosbag1.Writer(path), ros1_message
        writer.set_compression(rosbag1.Writer.CompressionFormat.LZ4)
    else:
        plugin = rosbag2.StoragePlugin.SQLITE3 if version == 2 else rosbag2.StoragePlugin.MCAP
        writer, encode = rosbag2.Writer(path, version=9, storage_plugin=plugin), ros2_message
    store = rosbags.get_typestore(
        rosbags.Stores.ROS1_NOETIC if version == 1 else rosbags.Stores.ROS2_HUMBLE
    )
    time = "time" if version == 1 else "builtin_interfaces/Time"
    package = kind.split("/")[0]
    store.register(
        rosbags.get_types_from_msg(
            "std_msgs/Header header\nuint32 height\nuint32 width\nEvent[] events\n", kind
        )
        | rosbags.get_types_from_msg(
            f"uint16 x\nuint16 y\n{time} ts\nbool polarity\n", f"{package}/msg/Event"
        )
    )
    with writer:
        other = writer.add_connection("/imu", "sensor_msgs/msg/Imu", typestore=store)
        writer.write(other, 0, bytes(400))
        for topic in topics:
            connection = writer.add_connection(topic, kind, typestore=store)
            for number, part in enumerate(parts):
                writer.write(connection, number, encode(part, size))
    return path


@pytest.mark.parametrize("kind", [TYPE, "prophesee_event_msgs/msg/EventArray"])
@pytest.mark.parametrize("version", [1, 2, 3])
def test_bags_of_ros_1_and_2(tmp_path, version, kind):
    path = write_bag(tmp_path / ("a.bag" if version == 1 else "a"), version, kind=kind)
    assert_same_events(read(path), EVENTS)
    assert (open_reader(path).height, open_reader(path).width) == (48, 64)
    assert find_recordings(tmp_path) == [path]
    assert_refused(path, "its sensor is 64x48 px, not 48x64; omit --sensor", (64, 48))
    if version > 1:
        events = open_reader(path).events
        (path / "images").mkdir()
        (path / "notes.txt").symlink_to("missing")
        assert open_reader(path).events == events


BAD = {
    "two": (
        {"topics": ("/b/events", "/a/events")},
        "has events of 2 topics: /a/events, /b/events; keep one: rosbags",
    ),
    "none": (
        {"topics": ()},
        r"has no topic of events \(sensor_msgs/msg/Imu\); give a bag with dvs_msgs/msg/EventA",
    ),
    "size": ({"size": (0, 0)}, "does not specify the sensor's size; give --sensor"),
    "empty": ({"parts": PARTS[:1]}, "holds no events; give"),
}


@pytest.mark.parametrize("version", [1, 2, 3])
@pytest.mark.parametrize("name", BAD)
def test_bags_without_one_stream_of_events_are_refused(tmp_path, name, version):
    changes, message = BAD[name]
    assert_refused(write_bag(tmp_path / "a.bag", version, **changes), message)


@pytest.mark.parametrize("version", [1, 2, 3])
@pytest.mark.parametrize("share", [0.98, 0.9, 0.5, 0.02])
def test_damaged_bags_are_refused(tmp_path, version, share):
    path = write_bag(tmp_path / "a.bag", version)
    cut(
        path
        if version == 1
        else next(file for file in path.iterdir() if file.suffix in (".db3", ".mcap")),
        share,
    )
    assert_refused(path, "not a readable ROS bag|holds no events")


@pytest.mark.parametrize("is_folder", [False, True])
def test_without_the_extra_one_line_names_it(tmp_path, monkeypatch, is_folder):
    monkeypatch.setitem(sys.modules, "rosbags", None)
    path = tmp_path / "a.bag"
    if is_folder:
        path = tmp_path / "bag"
        path.mkdir()
        (path / "metadata.yaml").touch()
        assert not reads(path)
        (path / "bag_0.db3").touch()
    else:
        path.write_bytes(b"#ROSBAG V2.0\n")
    assert reads(path)
    assert find_recordings(tmp_path) == [path]
    assert_refused(path, "rosbags, which is not installed; pip install 'tespec.ros.'")

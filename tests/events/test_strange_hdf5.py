import resource
import zlib

import h5py
import hdf5plugin
import numpy as np
import pytest
import zstandard
from event_cases import random_events
from h5_files import dsec, mvsec, rvt, write

from tespec.core.errors import UserError
from tespec.datasets.rectification import read_rectification
from tespec.events import open_events
from tespec.events.readers.hdf5 import dataset, part, recording_kind

EVENTS = random_events(300, height=48, width=64, end=12_000)
SECRET = np.arange(300, dtype="<u2")


@pytest.fixture
def secret(tmp_path):
    return write(tmp_path / "secret.h5", {"values": SECRET, "events/x": SECRET})


def replaced(path, name, put):
    with h5py.File(path, "r+") as file:
        if name in file:
            del file[name]
        put(file)
    return path


def external_link(file, secret):
    file["events/x"] = h5py.ExternalLink(str(secret), "/values")


def soft_link_to_an_external_one(file, secret):
    file["away"] = h5py.ExternalLink(str(secret), "/")
    file["events/x"] = h5py.SoftLink("/away/values")


def virtual(file, secret):
    layout = h5py.VirtualLayout((300,), "<u2")
    layout[:] = h5py.VirtualSource(str(secret), "values", (300,))
    file.create_virtual_dataset("events/x", layout)


def external_storage(file, secret):
    file.create_dataset("events/x", (300,), "<u2", external=[(str(secret), 0, 600)])


@pytest.mark.parametrize(
    ("put", "said"),
    [
        (external_link, "holds no events"),
        (soft_link_to_an_external_one, "holds no events"),
        (virtual, "events/x lies in other files"),
        (external_storage, "events/x lies in other files"),
    ],
)
def test_no_other_file_is_read(tmp_path, secret, put, said):
    path = replaced(rvt(tmp_path / "a.h5", *EVENTS), "events/x", lambda file: put(file, secret))
    with pytest.raises(UserError, match=said):
        open_events(path)
    with pytest.raises(UserError, match=r"in (an)?other file"):
        dataset(path, "events/x", "iu")


def test_a_group_in_another_file_is_not_entered(tmp_path, secret):
    def put(file):
        file["events"] = h5py.ExternalLink(str(secret), "/events")

    path = replaced(rvt(tmp_path / "a.h5", *EVENTS), "events", put)
    assert recording_kind(path) is None
    with pytest.raises(UserError, match="events/x lies in another file"):
        part(path, "events/x")


def test_links_within_the_file_are_followed_and_circles_end(tmp_path):
    def put(file):
        file["kept/x"] = EVENTS.x
        file["to"] = h5py.SoftLink("kept")
        file["events/x"] = h5py.SoftLink("/to/x")
        file["circle"] = h5py.SoftLink("circle")

    path = replaced(rvt(tmp_path / "a.h5", *EVENTS), "events/x", put)
    np.testing.assert_array_equal(open_events(path).slice(0, 20_000).x, EVENTS.x)
    with pytest.raises(UserError, match="circle is a link that leads nowhere"):
        dataset(path, "circle", "iu")


@pytest.mark.parametrize("shape", [(10**12,), (2**62,)])
def test_events_that_no_file_holds_are_refused_before_they_are_read(tmp_path, shape):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        for name in "xytp":
            file.create_dataset(f"events/{name}", shape, "<u2", chunks=(1 << 16,))
        file["events/height"], file["events/width"] = 48, 64
    with pytest.raises(UserError, match=r"events/x claims [\d,]+ bytes in a file of [\d,]+"):
        open_events(path)


def test_rows_that_no_file_holds_are_refused(tmp_path):
    path = tmp_path / "a_data.hdf5"
    with h5py.File(path, "w") as file:
        file.create_dataset("davis/left/events", (10**11, 4), "<f8", chunks=(1 << 12, 4))
    with pytest.raises(UserError, match="davis/left/events claims"):
        open_events(path)


def test_an_index_larger_than_any_is_refused(tmp_path):
    def put(file):
        file.create_dataset("ms_to_idx", (10**11,), "<u8", chunks=(1 << 16,))

    path = replaced(dsec(tmp_path / "a.h5", *EVENTS), "ms_to_idx", put)
    with pytest.raises(UserError, match="ms_to_idx has 800,000,000,000 bytes"):
        open_events(path)


def test_an_array_larger_than_the_sensor_is_refused_before_it_is_read(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("rectify_map", (10**6, 10**6, 2), "<f4", chunks=(64, 64, 2))
    with pytest.raises(UserError, match=r"has items of 8,000,000 bytes|has chunks of|has the shape"):
        read_rectification(tmp_path / "a.h5", 9, 12)


def test_frames_and_chunks_larger_than_any_are_refused(tmp_path):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("item", (3, 1 << 15, 1 << 15), "u1", chunks=(1, 1024, 1024))
        file.create_dataset("chunk", (1 << 30,), "u1", chunks=(1 << 29,))
        file.create_dataset("crumbs", (3, 1 << 14), "u1", chunks=(1, 1))
    for name, said in (("item", "items of 1,073,741,824 bytes"), ("chunk", "has chunks"), ("crumbs", "has chunks")):
        with pytest.raises(UserError, match=said):
            part(path, name)


def test_chunks_by_the_hundred_thousand_are_not_read_at_once(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("a", (1 << 18,), "<f4", chunks=(1,))
        file.create_dataset("numbers", data=np.arange(40_000).reshape(-1, 2), chunks=(1, 1))
    numbers = part(tmp_path / "a.h5", "numbers")
    np.testing.assert_array_equal(numbers[7:19_990], np.arange(40_000).reshape(-1, 2)[7:19_990])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    crumbs = part(tmp_path / "a.h5", "a")
    assert crumbs.whole().shape == (1 << 18,)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # kB


@pytest.mark.parametrize("kind", [h5py.string_dtype(), h5py.vlen_dtype(np.int32), np.dtype([("a", "<i4")]), "S4"])
def test_values_that_are_no_numbers_are_refused(tmp_path, kind):
    path = replaced(
        rvt(tmp_path / "a.h5", *EVENTS), "events/x", lambda file: file.create_dataset("events/x", (300,), kind)
    )
    with pytest.raises(UserError, match="not what it should be"):
        open_events(path)


@pytest.mark.parametrize("kind", [h5py.vlen_dtype(np.int32), h5py.ref_dtype, "<c8", ("<f8", (1000,)), "S7", "<i8"])
@pytest.mark.parametrize("shape", [(), (2,), (0, 9), (1 << 40, 1 << 14)])
def test_a_size_that_is_no_number_is_refused_before_it_is_read(tmp_path, kind, shape):
    path = replaced(
        rvt(tmp_path / "a.h5", *EVENTS),
        "events/height",
        lambda file: (
            file.create_dataset("events/height", shape, np.dtype(kind), chunks=(1,) * len(shape) or None)
            if 0 not in shape
            else file.create_dataset("events/height", shape, np.dtype(kind))
        ),
    )
    with pytest.raises(UserError, match=r"its height is|names a sensor of 64x0 px"):
        open_events(path)


def deflated(size):
    packer = zlib.compressobj(9)
    return b"".join([packer.compress(bytes(1 << 20)) for _ in range(size >> 20)] + [packer.flush()])


def zstd(size):
    return zstandard.ZstdCompressor().compress(bytes(size))


def sizeless_zstd(size):
    packer = zstandard.ZstdCompressor().compressobj()
    return packer.compress(bytes(size)) + packer.flush()


def claiming(size):
    return size.to_bytes(8, "big") + (4096).to_bytes(4, "big") + bytes(500)


BOMBS = {
    "gzip": ({"compression": "gzip"}, deflated),
    "zstd": (hdf5plugin.Zstd(), zstd),
    "zstd without a size": (hdf5plugin.Zstd(), sizeless_zstd),
    "lz4": (hdf5plugin.LZ4(), claiming),
    "bitshuffle": (hdf5plugin.Bitshuffle(), claiming),
    "blosc": (hdf5plugin.Blosc(), lambda size: b"\2\1\0\2" + size.to_bytes(4, "little") + bytes(500)),
    "lzf": ({"compression": "lzf"}, lambda size: bytes(size >> 6)),
}


@pytest.mark.parametrize("codec", BOMBS)
def test_chunks_that_unpack_to_more_than_they_should_are_refused(tmp_path, codec):
    options, pack = BOMBS[codec]

    def put(file):
        column = file.create_dataset("events/x", (300,), "<u2", chunks=(300,), **options)
        column.id.write_direct_chunk((0,), pack(300 << 20))

    path = replaced(rvt(tmp_path / "a.h5", *EVENTS), "events/x", put)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(UserError, match=r"a chunk of events/x unpacks to more than 600 bytes|is compressed by"):
        open_events(path).slice(0, 20_000)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # kB


@pytest.mark.parametrize("options", [{"scaleoffset": 4}, hdf5plugin.Blosc2()])
def test_filters_whose_sizes_cannot_be_checked_are_refused(tmp_path, options):
    def put(file):
        file.create_dataset("events/x", data=EVENTS.x, chunks=(100,), **options)

    path = replaced(rvt(tmp_path / "a.h5", *EVENTS), "events/x", put)
    with pytest.raises(UserError, match="whose sizes cannot be checked; write it with one of blosc"):
        open_events(path)


CODECS = {
    "gzip": {"compression": "gzip", "shuffle": True, "fletcher32": True},
    "lzf": {"compression": "lzf"},
    "zstd": hdf5plugin.Zstd(),
    "lz4": hdf5plugin.LZ4(),
    "bitshuffle with lz4": hdf5plugin.Bitshuffle(),
    "bitshuffle with zstd": hdf5plugin.Bitshuffle(cname="zstd"),
    "bitshuffle alone": hdf5plugin.Bitshuffle(cname="none"),
    "checked": {"fletcher32": True},
}


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("write_recording", [rvt, mvsec])
def test_every_codec_that_is_read_gives_every_event(tmp_path, codec, write_recording):
    path = write_recording(tmp_path / "a.h5", *EVENTS)
    with h5py.File(path, "r+") as file:
        name = "davis/left/events" if write_recording is mvsec else "events/x"
        values = file[name][()]
        del file[name]
        file.create_dataset(name, data=values, chunks=(64, *values.shape[1:]), **CODECS[codec])
    stream = open_events(path, height=48, width=64)
    found = stream.slice(stream.t_first, stream.t_last + 1)
    np.testing.assert_array_equal(found.x, EVENTS.x)
    np.testing.assert_array_equal(found.p, EVENTS.p)


def test_chunks_that_packed_badly_are_read(tmp_path):
    noise = np.random.default_rng(0).integers(0, 64, 300).astype("<u2")
    path = rvt(tmp_path / "a.h5", *EVENTS._replace(x=noise))

    def put(file):
        column = file.create_dataset("events/x", (300,), "<u2", chunks=(300,), **hdf5plugin.Zstd())
        column.id.write_direct_chunk((0,), noise.tobytes(), filter_mask=1)

    replaced(path, "events/x", put)
    np.testing.assert_array_equal(open_events(path).slice(0, 20_000).x, noise)

import h5py
import hdf5plugin
import numpy as np
import pytest
from event_cases import random_events
from h5_files import dsec, mvsec, rvt, write

from tespec.core.errors import UserError
from tespec.events import open_events
from tespec.events.readers.hdf5 import dataset, part

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
        (external_link, "events/x lies in another file"),
        (soft_link_to_an_external_one, "lies in another file"),
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
    with pytest.raises(UserError, match="lies in another file"):
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


def grown(file, name, options):
    """A column that was made as long as the others, of which a third was written."""
    values = file[name][()]
    del file[name]
    column = file.create_dataset(
        name, (0, *values.shape[1:]), values.dtype, maxshape=(None, *values.shape[1:]), **options
    )
    column.resize(len(values), axis=0)
    column[:100] = values[:100]


def contiguous(file, name, options):
    shape, dtype = file[name].shape, file[name].dtype
    del file[name]
    file.create_dataset(name, shape, dtype)


@pytest.mark.parametrize("damage", [grown, contiguous])
@pytest.mark.parametrize(
    ("write_recording", "name"),
    [(dsec, "events/t"), (dsec, "ms_to_idx"), (rvt, "events/x"), (rvt, "events/p"), (mvsec, "davis/left/events")],
)
def test_what_was_never_written_is_refused(tmp_path, write_recording, name, damage):
    columns = EVENTS._replace(t=1_000 * np.arange(300)) if name == "ms_to_idx" else EVENTS
    path = write_recording(tmp_path / "a.h5", *columns)
    options = {"chunks": (50, 4) if name.startswith("davis") else (50,)}
    with h5py.File(path, "r+") as file:
        damage(file, name, options)
    with pytest.raises(UserError, match=rf"{name} was never written whole \([02] of [167] chunks are there\)"):
        open_events(path, height=48, width=64)


@pytest.mark.parametrize("kind", [h5py.string_dtype(), h5py.vlen_dtype(np.int32), np.dtype([("a", "<i4")]), "S4"])
def test_values_that_are_no_numbers_are_refused(tmp_path, kind):
    path = replaced(
        rvt(tmp_path / "a.h5", *EVENTS), "events/x", lambda file: file.create_dataset("events/x", (300,), kind)
    )
    with pytest.raises(UserError, match=r"events/x (is|was never written)"):
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
    with pytest.raises(UserError, match=r"its height is|height was never written"):
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

"""Data sets opened by themselves: items, their docstrings' examples, published values, loaders, and
mistakes.
"""

import doctest
import pickle
import re
import shutil

import numpy as np
import pytest
from matplotlib import pyplot
from torch.utils.data import DataLoader

from tespec import pictures
from tespec.core.config import finetuning_settings, names
from tespec.core.errors import UserError
from tespec.core.paths import REPOSITORY
from tespec.core.settings import Downsample
from tespec.datasets import Ddd17, Dsec, Gen1, Mvsec, OneMpx
from tespec.datasets.base import LabelledDataset
from tespec.events import Events, event_histogram

KINDS = {kind.title.casefold(): kind for kind in (Ddd17, Dsec, Gen1, Mvsec, OneMpx)}
KIND = pytest.mark.parametrize("name", KINDS)


@pytest.fixture
def cache(tiny_world, monkeypatch):
    """The sample world in the cache, where `make_world` looks for it."""
    monkeypatch.setenv("TESPEC_CACHE", str(tiny_world.parent))


def opened(world, name, split="test", **options):
    return KINDS[name](world / name, split, **({"window_ms": 50} | options))


@pytest.mark.usefixtures("cache")
@KIND
def test_the_example_of_its_docstring_prints_what_it_says(name):
    kind = KINDS[name]
    (example,) = doctest.DocTestFinder(recurse=False).find(kind, globs={kind.__name__: kind})
    assert len(example.examples) == 5
    assert doctest.DocTestRunner().run(example).failed == 0
    assert "Args:" in kind.__doc__


@KIND
def test_an_item_is_the_label_its_time_and_the_histogram_of_the_window_before_it(tiny_world, name):
    data, with_events = opened(tiny_world, name), opened(tiny_world, name, events=True)
    recordings = data.recordings("test")
    assert len(data) == sum(len(recording.labels) for recording in recordings) == len(list(data))
    index, recording = len(data) - 1, recordings[-1]
    histogram, label, title, time = data[index]
    np.testing.assert_equal(label, recording.labels[len(recording.labels) - 1])
    assert (title, time) == (recording.name, recording.label_times[-1])
    events = with_events[-1].events
    assert isinstance(events, Events)
    assert time - 50_000 <= events.t[0] < events.t[-1] < time
    region, stream = recording.region, recording.stream
    size = {"height": stream.height, "width": stream.width}
    whole = event_histogram(*events, t_start=time - 50_000, t_end=time, bins=10, **size)
    start = region.factor // 2
    expected = whole[:, start :: region.factor, start :: region.factor][
        :, : region.height, : region.width
    ]
    np.testing.assert_array_equal(histogram, expected)
    with pytest.raises(IndexError):
        data[len(data)]


@pytest.mark.parametrize("name", names("tasks"))
@pytest.mark.parametrize("arch", ["recurrent", "feedforward"])
def test_values_that_are_not_given_are_the_published_ones(tmp_path, name, arch):
    published = finetuning_settings(name, arch, "paper")
    (tmp_path / "train").mkdir()
    data = KINDS[name](tmp_path, window_ms=published.window_ms, contiguous=published.recurrent)
    assert (data.binning, data.classes, data.downsample) == (
        published.binning,
        published.classes,
        published.downsample,
    )
    assert vars(data.protocol).items() == {**published.protocol, **vars(data.protocol)}.items()
    assert set(vars(data.protocol)) == set(published.protocol)
    assert data.split == "train"


def test_given_values_replace_only_the_published_ones_of_their_name(tiny_world):
    (test,) = Dsec(tiny_world / "dsec", window_ms=50).splits["test"]
    data = Dsec(
        tiny_world / "dsec",
        test,
        window_ms=50,
        protocol={"labels": "ess"},
        splits={test: [test], "test": []},
    )
    everything = opened(tiny_world, "dsec")
    assert (data.protocol.labels, data.protocol.rows) == ("ess", everything.protocol.rows)
    assert len(data) == len(range(6, len(everything), 2))
    for index, item in enumerate(data):
        np.testing.assert_equal(item, everything[6 + 2 * index])


@KIND
def test_a_copy_made_by_pickling_gives_the_same_items(tiny_world, name):
    new, read = opened(tiny_world, name), opened(tiny_world, name)
    item = read[1]
    for data in (new, read):
        np.testing.assert_equal(pickle.loads(pickle.dumps(data))[1], item)


@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # Python 3.12 on
@pytest.mark.parametrize("name", ["dsec", "mvsec"])
def test_a_loader_with_workers_gives_the_same_items(tiny_world, name):
    data = opened(tiny_world, name)
    loader = DataLoader(
        data, batch_size=2, num_workers=2, multiprocessing_context="fork", sampler=range(2, 6)
    )
    for first, (histograms, labels, titles, times) in zip((2, 4), loader, strict=True):
        for lane, item in enumerate((data[first], data[first + 1])):
            np.testing.assert_array_equal(histograms[lane], item.events)
            np.testing.assert_array_equal(labels[lane], item.label)
            assert (titles[lane], times[lane]) == item[2:]


def test_it_packs_recordings_of_its_split_that_have_no_store(tiny_world, tmp_path, monkeypatch):
    monkeypatch.setenv("TESPEC_CACHE", str(tmp_path / "cache"))
    root = shutil.copytree(
        tiny_world / "mvsec", tmp_path / "mvsec", ignore=shutil.ignore_patterns("*.store")
    )
    data = Mvsec(root, "val", window_ms=50)
    assert not (tmp_path / "cache").exists()
    np.testing.assert_equal(data[3], opened(tiny_world, "mvsec", "val")[3])
    assert len(list((tmp_path / "cache").rglob("header.json"))) == len(data.files("val"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        *(
            (
                {"window_ms": length},
                f"window_ms: {length!r} is not a length of at least 1 us; give a number of ms",
            )
            for length in (1e-5, float("nan"), "50")
        ),
        ({"bins": 0}, r"histograms\.bins: 0 is not allowed"),
        ({"rule": "sum"}, r"histograms\.rule: 'sum' is not allowed; it should be 'edges' or 'rvt'"),
        ({"protocol": {"row": 3}}, r"protocol: unknown setting 'row'; did you mean 'rows'\?"),
        (
            {"downsample": Downsample(2, "nearest")},
            r"downsample\.factor: labels of DSEC cannot be downsampled",
        ),
        (
            {"classes": ["road"]},
            "holds no masks of 1 classes in any known layout; list 11 or 19 classes, and copy",
        ),
        (
            {"split": "trian"},
            "DSEC has no trian split: no recordings are listed; list some",
        ),
        ({"splits": {"train": ["a"], "val": ["a"]}}, "dsec: a is in train and again in val"),
    ],
)
def test_mistakes_are_named_in_a_line(tiny_world, options, message):
    with pytest.raises(UserError, match=message) as refused:
        opened(tiny_world, "dsec", **options)[0]
    assert "\n" not in str(refused.value)


def test_a_class_without_a_config_needs_the_values_that_have_none(tmp_path):
    class Drives(LabelledDataset):
        title, layout = "Rides", "a folder of rides"
        find = open = None

    given = {"classes": (), "splits": {}, "downsample": Downsample(1, "nearest"), "protocol": {}}
    assert (
        Drives(tmp_path, window_ms=50, **given).describe()["events"] == "the 50 ms before the label"
    )
    with pytest.raises(UserError, match="rides: no such file in configs/tasks"):
        Drives(tmp_path, window_ms=50)


@KIND
def test_the_lines_of_the_guide_read_an_item_that_can_be_drawn(tiny_world, name):
    text = (REPOSITORY / "docs" / "datasets.md").read_text()
    (program,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    program = program.replace("Dsec(", f"{KINDS[name].__name__}(")
    scope = {}
    exec(program.replace("/data/dsec", str(tiny_world / name)), scope)
    assert scope["histogram"].shape[0] == 20
    axis = pyplot.figure().add_subplot()
    pictures.show_faded(axis, scope["histogram"])
    pictures.draw_label(axis, scope["label"])
    pyplot.close("all")
    assert axis.images

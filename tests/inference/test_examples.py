"""Examples in docstrings of functions that users call print what they show; `dir` and `help`."""

import doctest
import pydoc
import shutil
from dataclasses import asdict

import pytest
import torch

import tespec
from tespec.core.config import as_facts, pretraining_settings
from tespec.core.paths import REPOSITORY
from tespec.core.settings import HistogramSpec
from tespec.models import EventSwin
from tespec.weights.files import write_weights

FUNCTIONS = [tespec.load, tespec.stream, tespec.results]


@pytest.fixture
def user_folder(tmp_path, monkeypatch):
    """Work in a folder with the files that the examples name."""
    torch.manual_seed(0)
    settings = pretraining_settings("tespec", "smoke")
    spec = HistogramSpec.from_settings(settings, (64, 96), settings.window_ms)
    recipe = as_facts(settings) | {
        "backbone": "swin_micro",
        "in_channels": 20,
        "sensor": [64, 96],
        "histograms": asdict(spec),
    }
    backbone = EventSwin("swin_micro", recurrent=True, img_size=(64, 96))
    write_weights(tmp_path / "backbone.safetensors", backbone.state_dict(), recipe)
    shutil.copy(REPOSITORY / "tests" / "data" / "davis.aedat4", tmp_path / "drive.aedat4")
    shutil.copytree(REPOSITORY / "results" / "sample", tmp_path / "results")
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("user_folder")
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_an_example_prints_what_it_shows(function):
    (example,) = doctest.DocTestFinder(recurse=False).find(function, globs={})
    assert example.examples
    assert doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(example).failed == 0
    assert "Args:" in function.__doc__
    assert "Returns:" in function.__doc__ or "Yields:" in function.__doc__


def test_the_package_lists_what_users_may_call():
    assert {function.__name__ for function in FUNCTIONS} <= set(dir(tespec))
    page = pydoc.render_doc(tespec, renderer=pydoc.plaintext)
    assert "__getattr__" not in page
    assert page.index("Users call three functions") < page.index("load(path:")

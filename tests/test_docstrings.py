"""The examples in docstrings run."""

import doctest
import importlib
from pathlib import Path

import pytest

MODULES = (
    "tespec.events.histogram",
    "tespec.events.intensity",
    "tespec.events.opening",
    "tespec.models.event_swin",
    "tespec.models.event_vit",
)


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module_run(monkeypatch, name):
    monkeypatch.chdir(Path(__file__).parents[1])
    results = doctest.testmod(importlib.import_module(name))
    assert results.attempted > 0
    assert results.failed == 0

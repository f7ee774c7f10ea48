import sys

import tespec.core.compat  # noqa: F401  # before mmengine

import pytest

from tespec.core.errors import UserError
from tespec.core.registry import DATASETS, TASKS, find_registered, import_modules


@pytest.mark.parametrize("name", ["", "counting", "os.system", "this.d", "mmengine.hooks.Hook", "tespec."])
@pytest.mark.parametrize("registry", [TASKS, DATASETS])
def test_a_name_finds_what_is_registered_and_imports_nothing(registry, name):
    with pytest.raises(UserError, match="choose from"):
        find_registered(registry, name, "kind")
    assert "this" not in sys.modules


def test_what_is_registered_is_found():
    import_modules("tespec.tasks")
    assert find_registered(TASKS, "depth", "kind").__name__ == "DepthTask"

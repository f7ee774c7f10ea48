import pytest

from tespec.core.errors import UserError
from tespec.core.registry import METHODS, register_methods
from tespec.pretraining.method import find_method

PLUGIN = '''
from tespec.pretraining.method import Method
from tespec.core.registry import METHODS

@METHODS.register_module(name="from_a_file")
class FromAFile(Method):
    """A method in one file."""

    title = "From a file"
'''


def test_repository_methods_are_found_and_described():
    register_methods()
    assert {"scratch", "tespec"} <= set(METHODS.module_dict)
    for name in METHODS.module_dict:
        method = find_method(name)
        assert method.title, name
        assert method.summary, name


def test_unknown_method_names_the_nearest():
    register_methods()
    with pytest.raises(UserError, match="unknown method; did you mean 'tespec'"):
        find_method("tespek")
    with pytest.raises(UserError, match=r"choose from .*scratch, tespec"):
        find_method("zzz")


@pytest.mark.parametrize("text", ["import nothing_of_that_name", "def broken(:", "undefined + 1"])
def test_a_file_that_cannot_be_imported_is_named(tmp_path, text):
    file = tmp_path / "broken.py"
    file.write_text(text)
    with pytest.raises(UserError, match=r"broken\.py: cannot be imported"):
        register_methods([file])


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(UserError, match=r"gone\.py: no such file; check the path given to --import"):
        register_methods([tmp_path / "gone.py"])


def test_a_method_without_a_title_is_refused_before_it_trains(tmp_path):
    file = tmp_path / "untitled.py"
    file.write_text(PLUGIN.replace("from_a_file", "untitled").replace('title = "From a file"', ""))
    register_methods([file])
    try:
        with pytest.raises(
            UserError, match="--method untitled: has no title for its table row; give FromAFile a title"
        ):
            find_method("untitled")
    finally:
        METHODS.module_dict.pop("untitled")

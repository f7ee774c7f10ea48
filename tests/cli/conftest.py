"""What tests of the command lines share."""

import pytest

from tespec.cli.main import main


@pytest.fixture
def call(capsys):
    """Call `tespec ...` in this process; gives its exit code, stdout and stderr."""

    def called(*words):
        code = main([str(word) for word in words])
        said = capsys.readouterr()
        return code, said.out, said.err

    return called

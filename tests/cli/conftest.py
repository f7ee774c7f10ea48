import pytest

from tespec.cli.main import main


@pytest.fixture
def call(capsys):
    """Function that runs `tespec ...` in this process; returns exit code, stdout and stderr."""

    def called(*words):
        code = main([str(word) for word in words])
        return code, *capsys.readouterr()

    return called

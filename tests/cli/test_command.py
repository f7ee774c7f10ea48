from __future__ import annotations

import pytest

from tespec.cli.command import Parser, run
from tespec.core.errors import UserError


def test_a_mistake_is_one_line_with_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    def mistaken() -> None:
        raise UserError("a.yaml", "two\n  lines", "write\none")

    assert run(mistaken) == 2
    assert capsys.readouterr().err == "error: a.yaml: two lines; write one\n"


@pytest.mark.parametrize(("said", "shown"), [((), ""), (("stopped at step 3",), "stopped at step 3\n")])
def test_an_interruption_has_exit_code_130(
    said: tuple[str, ...], shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt(*said)

    assert run(interrupted) == 130
    assert capsys.readouterr().err == shown


def test_success_is_0_and_defects_pass_through() -> None:
    def defective() -> None:
        raise RuntimeError("a defect")

    assert run(lambda: None) == 0
    with pytest.raises(RuntimeError, match="a defect"):
        run(defective)


def test_parser_takes_no_abbreviations(capsys: pytest.CaptureFixture[str]) -> None:
    parser = Parser()
    parser.add_argument("--results")
    with pytest.raises(SystemExit) as left:
        parser.parse_args(["--result", "x"])
    assert left.value.code == 2
    assert capsys.readouterr().err == "error: unknown argument '--result'; did you mean '--results'?; see --help\n"

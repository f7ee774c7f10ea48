"""Equation numbers in code, configs and documentation are those of the paper."""

import re

import pytest

from tespec.core.paths import REPOSITORY

# Of Eq. 3, 5 and 8, a line or one of its neighbours names the subject; Eq. 6 and 7, the targets, have names.
SUBJECTS = {3: r"histogram|border|bins|edges", 5: r"recurren|backbone|memory", 8: r"loss"}
TARGETS = {6, 7}
PLACES = ("tespec", "baselines", "benchmarks", "configs", "docs", "README.md")


def lines():
    for place in PLACES:
        path = REPOSITORY / place
        for file in [path] if path.is_file() else sorted(path.rglob("*")):
            if file.suffix in (".py", ".yaml", ".md"):
                text = file.read_text(encoding="utf-8").splitlines()
                for number, line in enumerate(text):
                    for equation in re.findall(r"\bEq\. ?\(?(\d+)", line):
                        around = " ".join(text[max(0, number - 1) : number + 2])
                        yield f"{file.relative_to(REPOSITORY)}:{number + 1}", int(equation), around


@pytest.mark.parametrize("equation", SUBJECTS)
def test_an_equation_is_named_with_its_subject(equation):
    wrong = [where for where, each, around in lines() if each == equation and not re.search(SUBJECTS[equation], around)]
    assert wrong == []


def test_no_other_equation_is_named():
    assert {where: each for where, each, _ in lines() if each not in {*SUBJECTS, *TARGETS}} == {}

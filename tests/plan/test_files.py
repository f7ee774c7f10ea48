"""Plans as they are written."""

from __future__ import annotations

import subprocess

import pytest

from tespec.comparison.identity import package_code
from tespec.core.config import names
from tespec.core.errors import UserError
from tespec.core.paths import REPOSITORY, RESULTS
from tespec.plan.files import read_plan

MISTAKES = [
    ("cells: [{metods: [tespec]}]", r"cells.0.metods: no such setting; did you mean 'methods'\?"),
    ("seeds: [a]", "seeds.0: "),
    ("seeds: []", "seeds: "),
    ("world: {seed: 0}", "world.size: Field required"),
    ("cells: [{seeds: []}]", "cells.0.seeds: "),
    ("cells: [{start: {seed: 1}}]", "cells.0.start.seed: no such setting; it belongs elsewhere in a plan"),
    ("cells: [{start: {set: []}}]", "cells.0.start.world: Field required"),
    ("ablations: [{tabels: [masking]}]", "no such setting; did you mean 'tables'"),
    ("[1]", "holds no settings by name"),
    ("a: [", "not a readable YAML file"),
]


@pytest.mark.parametrize(("text", "message"), MISTAKES)
def test_a_plan_that_is_not_as_it_has_to_be_is_named(tmp_path, text, message):
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    with pytest.raises(UserError, match=message):
        read_plan(str(file))


def test_an_unknown_plan_is_answered_with_the_nearest():
    with pytest.raises(UserError, match="plan smal: no such plan; did you mean 'small'"):
        read_plan("smal")
    with pytest.raises(
        UserError, match="plan huge: no such plan; choose from ablations, controls, curves, demo, medium, rates, small"
    ):
        read_plan("huge")


@pytest.mark.skipif(not (REPOSITORY / ".git").exists(), reason="not a git checkout")
@pytest.mark.parametrize("name", names("plans"))
def test_no_plan_writes_over_a_file_that_git_tracks(name):
    plan = read_plan(name)
    folder = RESULTS.parent / (plan.results or RESULTS.name)
    asked = ["git", "-C", str(REPOSITORY), "ls-files", str(folder)]
    tracked = set(subprocess.run(asked, capture_output=True, text=True, check=True).stdout.splitlines())
    place = folder.relative_to(REPOSITORY).as_posix()
    # Its records end in the hash of this code, and it writes no tables but those it shows.
    assert not [
        path for path in tracked if path.startswith(f"{place}/runs/") and path.endswith(f"{package_code()}.json")
    ]
    assert not [path for path in tracked if plan.show and path.startswith(f"{place}/tables/{plan.show}")]

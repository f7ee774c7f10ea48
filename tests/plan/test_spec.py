"""Plans as files."""

from __future__ import annotations

from pathlib import Path

import pytest

from tespec.core.config import names
from tespec.core.errors import UserError
from tespec.plan.spec import read_plan


@pytest.mark.parametrize("name", names("plans"))
def test_every_plan_of_the_project_can_be_read(name: str) -> None:
    plan = read_plan(name)
    assert plan.name == name
    assert plan.title
    assert plan.cells or plan.ablations


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("title: a\ncelsl: []", ": unknown setting 'celsl'; did you mean 'cells'?"),
        ("cells: [{methods: [scratch], task: [ddd17]}]", ", cells.0: unknown setting 'task'; did you mean 'tasks'?"),
        ("ablations: [masking, {table: [steps]}]", ", ablations.1: unknown setting 'table'; did you mean 'tables'?"),
        ("world: {size: small}", ": unknown setting 'world'; choose from"),
        ("cells: [{tasks: [ddd17]}]", ": setting 'cells.0.methods' is missing"),
        ("cells: [{methods: []}]", ", cells.0.methods: [] is not allowed; it should have at least 1 item"),
        ("cells: [{methods: [a], label_share: [0]}]", ", cells.0.label_share: 0 is not allowed; it should be greater"),
        (
            "cells: [{methods: [a], architectures: [b]}]",
            ", cells.0.architectures: 'b' is not allowed; it should be 'rec",
        ),
        ("seeds: [0, -1]", ", seeds: -1 is not allowed; it should be greater than or equal to 0"),
        ("at_once: 0", ", at_once: 0 is not allowed; it should be greater than 0"),
        ("split: train", ", split: 'train' is not allowed; it should be 'test' or 'val'"),
        ("name: mine", "not a readable YAML file of settings (dict() got multiple values for keyword argument 'name')"),
        ("- a\n- b", "not a readable YAML file of settings"),
        ("cells: [", "not a readable YAML file of settings"),
    ],
)
def test_mistakes_are_named_with_their_place(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(UserError) as error:
        read_plan(str(path))
    assert str(error.value).startswith(f"{path}")
    assert message in str(error.value)


def test_an_unknown_plan_names_the_nearest_or_all(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"plan sampl: no such plan; did you mean 'sample'"):
        read_plan("sampl")
    with pytest.raises(UserError, match=r"plan huge: no such plan; choose from ablations, demo, .*, FILE.yaml"):
        read_plan("huge")
    with pytest.raises(UserError, match="not a readable YAML file"):
        read_plan(str(tmp_path / "none.yaml"))

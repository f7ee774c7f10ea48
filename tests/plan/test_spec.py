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
        ("title: a\ncelsl: []", "celsl: no such setting; did you mean 'cells'?"),
        (
            "cells:\n  - methods: [scratch]\n    task: [ddd17]",
            "cells.0.task: no such setting; did you mean 'task",
        ),
        (
            "ablations:\n- masking\n- {table: [steps]}",
            "ablations.1.table: no such setting; did you mean 'tables'",
        ),
        ("world: {size: small}", "world: no such setting; choose from name, title, data, profile"),
        ("title: a\ncells:\n  - {tasks: [ddd17]}", "cells.0.methods: Field required"),
        ("cells: [{methods: []}]", "cells.0.methods: Tuple should have at least 1 item"),
        ("cells: [{methods: [scratch], label_share: [0]}]", "cells.0.label_share.0: should be greater than 0"),
        ("cells: [{methods: [scratch], architectures: [transformer]}]", "should be 'recurrent' or 'feedforward'"),
        ("title: a\n\nseeds: [0, -1]", "seeds.1: should be greater than or equal to 0"),
        ("at_once: 0", "at_once: should be greater than 0"),
        ("split: train", "split: should be 'test' or 'val'"),
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
    with pytest.raises(UserError, match=r"plan smal: no such plan; did you mean 'small'.*, or give FILE.yaml"):
        read_plan("smal")
    with pytest.raises(UserError, match=r"plan huge: no such plan; choose from ablations, demo, .*, or give FILE.yaml"):
        read_plan("huge")
    with pytest.raises(UserError, match="not a readable YAML file"):
        read_plan(str(tmp_path / "none.yaml"))

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tespec.comparison.deviations import deviations
from tespec.comparison.published import PAPER, TABLES, edited, read_published
from tespec.comparison.records import Record
from tespec.core.config import as_facts, finetuning_settings, tolerances

Make = Callable[..., Record]
REAL = {"profile": "paper", "data": "ddd17"}
PAPERS = 65.187  # TESPEC, recurrent, DDD17


def test_a_number_near_the_papers_is_within(record: Make) -> None:
    found = deviations([record("tespec", miou=PAPERS + 0.9, seed=seed, **REAL) for seed in range(2)])
    miou, accuracy = found
    assert miou.within
    assert (miou.runs, miou.paper) == (2, PAPERS)
    assert not accuracy.within
    assert "within ± 1" in str(miou)
    assert "OUTSIDE" in str(accuracy)


@pytest.mark.parametrize(
    "changes", [{"profile": "sample"}, {"data": "sample"}, {"kind": "probe"}, {"config": {"label_share": 0.05}}]
)
def test_what_is_not_the_papers_setting_is_not_held_against_it(record: Make, changes: dict[str, Any]) -> None:
    assert deviations([record("tespec", **(REAL | changes))]) == []


def test_test_time_augmentation_has_to_be_as_published(record: Make) -> None:
    resnet = {"method": {"title": "ECDDP", "backbone": "ResNet50", "pretraining_data": "E-TartanAir"}}
    config = as_facts(finetuning_settings("dsec", "feedforward", "paper"))
    for augmentation, held in (("none", False), ("ecddp", True)):
        own = {"config": config | {"test_time_augmentation": augmentation}, "task": "dsec", "data": "dsec"}
        found = deviations([record("ecddp_resnet", "feedforward", **(REAL | resnet | own))])
        assert bool(found) == held


def test_methods_without_a_published_number_are_passed_over(record: Make) -> None:
    assert deviations([record("mine", **REAL)]) == []


def test_every_task_states_a_tolerance_for_every_published_metric() -> None:
    for name in TABLES:
        reference = read_published(name)
        for task in reference.tasks:
            stated = tolerances(task.name)
            assert set(stated) == {metric.name for metric in reference.metrics}
            assert all(value > 0 for value in stated.values())


def test_shipped_numbers_are_the_listed_ones() -> None:
    assert edited() == []


def test_an_edited_number_is_found(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(PAPER, tmp_path / "paper"))
    path = folder / "depth.yaml"
    path.write_text(path.read_text(encoding="utf-8").replace("0.", "1.", 1), encoding="utf-8")
    (folder / "claims.yaml").unlink()
    (folder / "more.yaml").write_text("a: 1")
    assert edited(folder) == ["claims.yaml", "depth.yaml", "more.yaml"]

"""What a kind of task says of its scores is what the tables of the paper say."""

import pytest
import yaml

from tespec.core.paths import REPOSITORY
from tespec.core.registry import TASKS
from tespec.metrics.depth import NAMES
from tespec.tasks import import_tasks

MAIN = {"segmentation": "miou", "detection": "map", "depth": "abs"}


@pytest.mark.parametrize("kind", MAIN)
def test_titles_and_directions_are_those_of_the_paper(kind):
    import_tasks()
    scores = TASKS.module_dict[kind].scores
    published = yaml.safe_load((REPOSITORY / "results" / "paper" / f"{kind}.yaml").read_text())
    for metric in published["metrics"]:
        assert (scores[metric["name"]].title, scores[metric["name"]].better) == (metric["title"], metric["better"])
    assert next(iter(scores)) == MAIN[kind]
    for score in scores.values():
        assert score.facts() == {"title": score.title, "better": score.better, "unit": score.unit}
        assert score.title.endswith("↑" if score.better == "higher" else "↓")


def test_every_error_of_depth_has_a_title():
    import_tasks()
    assert set(TASKS.module_dict["depth"].scores) == set(NAMES)

"""Tasks within runs: what an evaluation remembers, and settings that do not go together."""

import pytest
import torch

from tespec.core.errors import UserError
from tespec.runs.data import Data, settings_of
from tespec.tasks import build_task


def played_one_by_one(task, model, *, carried):
    """Scores of a model that sees one label's events at a time, since the one before or in a clip of three windows."""
    scorer, settings = task.scorer(), task.settings
    for recording in task.scored:
        state, seen = None, 0
        for label, end in enumerate(recording.labelled.tolist()):
            first = seen if carried else max(0, end - 2)
            histograms = recording.histograms(first, end + 1 - first, settings.bins, settings.rule)
            place = torch.tensor([[0, end - first]])
            predictions, after = model.predict(torch.from_numpy(histograms)[None], state, place)
            state, seen = (after, end + 1) if carried else (None, 0)
            task.score(scorer, task.read(predictions)[0], recording.labels[label], recording, label)
    return scorer.overall().metrics()


@torch.no_grad()
def test_what_is_trained_on_clips_is_evaluated_on_clips(tiny_world):
    data, found = Data(tiny_world / "mvsec", "sample"), {}
    said = {
        "clips": "state zero at the start of a clip of 3 windows that ends at the label",
        "mixed": "state carried through the whole recording",
        "streams": "state carried through the whole recording",
    }
    for sampling, words in said.items():
        settings = settings_of(data, "mvsec", "recurrent", None, [f"sampling={sampling}", "segments=3", "batch_size=2"])
        task = build_task(settings, data.root)
        torch.manual_seed(0)
        model = task.model().eval()
        for memory in model.backbone.lstms.parameters():
            memory.mul_(4)  # a fresh memory hardly shows
        found[sampling] = task.evaluate(model, torch.device("cpu")).overall().metrics()
        alone = played_one_by_one(task, model, carried=sampling != "clips")
        assert found[sampling] == pytest.approx(alone, rel=1e-3)
        assert task.protocol()["events"] == f"all events since the previous label, {words}"
    assert found["mixed"] == found["streams"]
    assert found["mixed"]["abs"] != pytest.approx(found["clips"]["abs"], rel=1e-4)


MISTAKES = [
    ("mvsec", "augmentation.zoom=0.5", r"augmentation.zoom: zoom augmentation is not supported for depth; set it to 0"),
    ("mvsec", "protocol.depth=rect", r"protocol.depth: 'rect' is not allowed; it should be 'raw'"),
    ("dsec", "classes=[a, b]", r"classes: 2 are named, DSEC has masks of 11 and 19"),
    ("mvsec", "head.min_depth=90.0", r"head.min_depth: 90 m is not below head.max_depth, 80 m"),
    ("dsec", "protocol.labels=some", r"protocol\.labels: 'some' is not allowed; it should be 'all' or 'ess'"),
    (
        "gen1",
        "head.min_diagonal=-1.0",
        r"head.min_diagonal: -1.0 is not allowed; it should be greater than or equal to",
    ),
    ("ddd17", "protocol.rows=many", r"protocol\.rows: 'many' is not allowed"),
]


@pytest.mark.parametrize(("task", "change", "message"), MISTAKES)
def test_settings_that_do_not_go_together_are_named(tiny_world, task, change, message):
    data = Data(tiny_world / task, "sample")
    with pytest.raises(UserError, match=message):
        build_task(settings_of(data, task, "recurrent", None, [change]), data.root)

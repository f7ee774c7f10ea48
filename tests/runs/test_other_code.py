"""Results of other code are never taken for this one's, unless they are accepted by name."""

import dataclasses
import json

import pytest
from guides import forgotten_afterwards
from short_runs import setup_in, stopped_after

from tespec.comparison import identity as code
from tespec.core.config import pretraining_settings
from tespec.core.registry import register_methods
from tespec.pretraining.method import find_method
from tespec.runs import train
from tespec.runs.data import Data, settings_of
from tespec.runs.finetune import Wanted, finetune
from tespec.runs.pretrain import pretrain
from tespec.training.hooks import CheckpointHook
from tespec.training.status import read_status

SETTINGS = pretraining_settings("tespec", "tiny", ["optimisation.steps=5", "recurrent=false"])
PLUGIN = """
from tespec.pretraining.method import Method
from tespec.core.registry import METHODS


@METHODS.register_module(name="edited", force=True)
class Edited(Method):
    title = "Edited"
    sign = 1
"""


def pretrained(world, folder, by, monkeypatch, **changes):
    """A pre-training by the code of that hash."""
    register_methods()
    monkeypatch.setattr(code, "package_code", lambda: by)
    data = Data(world / "1mpx", "sample")
    return pretrain("tespec", find_method("tespec"), SETTINGS, data, 0, setup_in(folder, **changes))


@pytest.fixture
def _forgetful():
    """The methods there were before a test are those after it."""
    register_methods()
    with forgotten_afterwards():
        yield


@pytest.mark.usefixtures("_forgetful")
def test_a_plugin_that_was_edited_is_run_again(tiny_world, tmp_path, capsys):
    path = tmp_path / "mine.py"
    data = Data(tiny_world / "ddd17", "sample")
    settings = settings_of(data, "ddd17", "feedforward", "tiny")

    def run(text, **changes):
        path.write_text(text)
        register_methods([path])
        setup = setup_in(tmp_path, plugins=(path,), **changes)
        record = finetune(Wanted("edited", find_method("edited"), settings, data, None, 0, setup))
        return record, capsys.readouterr().err

    first, _ = run(PLUGIN)
    assert list(first["environment"]["plugins"]) == ["mine.py"]
    commented, said = run(f"# better explained\n{PLUGIN}")
    assert (commented, "is complete already" in said) == (first, True)
    negated = PLUGIN.replace("sign = 1", "sign = -1")
    other = first["id"].partition("-")[2]
    second, said = run(negated)
    assert second["name"] != first["name"]
    # Rows of the tables stand side by side whatever plug-ins they come from.
    assert second["code"] == first["code"]
    (line,) = [line for line in said.splitlines() if "other code" in line]
    revision = first["environment"]["revision"][:12] or "unknown"
    place = tmp_path / "results" / "runs" / f"{first['name']}.json"
    assert line == (
        f"{second['name']}: there is a complete result of the same run by other code ({other}, revision {revision}, "
        f"{place}), so it is computed again; --accept-code {other} takes it"
    )
    (tmp_path / "results" / "runs" / f"{second['name']}.json").unlink()
    accepted, said = run(negated, accept_code=(other,))
    assert accepted == first
    assert f"the result of other code ({other}) is taken" in said


def test_weights_of_other_code_are_taken_only_where_they_are_accepted(tiny_world, tmp_path, monkeypatch, capsys):
    first = pretrained(tiny_world, tmp_path, "aaaaaaaa", monkeypatch)
    capsys.readouterr()
    second = pretrained(tiny_world, tmp_path, "bbbbbbbb", monkeypatch)
    assert second.weights != first.weights
    said = capsys.readouterr().err
    assert said.count("other code") == 1
    assert "--accept-code aaaaaaaa takes it" in said
    third = pretrained(tiny_world, tmp_path, "cccccccc", monkeypatch, accept_code=("aaaaaaaa",))
    assert third == first
    first.weights.unlink()
    fourth = pretrained(tiny_world, tmp_path, "cccccccc", monkeypatch, accept_code=("aaaaaaaa",))
    assert fourth.weights.parent.name.endswith("-cccccccc")
    assert "are gone, computed again" in capsys.readouterr().err
    record = json.loads((tmp_path / "results" / "runs" / f"{fourth.weights.parent.name}.json").read_text())
    assert record["environment"]["accept_code"] == ["aaaaaaaa"]


def test_an_unfinished_run_of_other_code_goes_on_only_where_it_is_accepted(tiny_world, tmp_path, monkeypatch, capsys):
    with stopped_after(3), pytest.raises(KeyboardInterrupt):
        pretrained(tiny_world, tmp_path, "aaaaaaaa", monkeypatch)
    capsys.readouterr()
    anew = pretrained(tiny_world, tmp_path, "bbbbbbbb", monkeypatch, resume=True)
    said = capsys.readouterr().err
    assert "an unfinished run of the same by other code (aaaaaaaa, " in said
    assert "no checkpoint, starting from the first step" in said
    on = pretrained(tiny_world, tmp_path, "cccccccc", monkeypatch, resume=True, accept_code=("aaaaaaaa",))
    said = capsys.readouterr().err
    assert "by other code (aaaaaaaa), as --accept-code says" in said
    assert "going on at step 3" in said
    assert on.metrics == anew.metrics


def test_the_status_tells_the_step_while_a_run_is_trained(tiny_world, tmp_path, monkeypatch):
    original, seen = CheckpointHook.after_train_iter, []

    def look(hook, loop, *arguments):
        seen.append((loop.step, read_status(hook._folder)))
        original(hook, loop, *arguments)

    monkeypatch.setattr(train, "SECONDS_BETWEEN_STATUSES", 0.0)
    monkeypatch.setattr(CheckpointHook, "after_train_iter", look)
    pretrained(tiny_world, tmp_path, "aaaaaaaa", monkeypatch)
    assert [step for step, _ in seen] == [1, 2, 3, 4, 5]
    assert all((status["step"], status["state"]) == (step, "running") for step, status in seen)


def test_settings_of_a_run_stay_in_its_name(tiny_world, tmp_path, monkeypatch):
    """Another setting is another run, not the same one by other code."""
    register_methods()
    pretrained(tiny_world, tmp_path, "aaaaaaaa", monkeypatch)
    changed = dataclasses.replace(SETTINGS, batch_size=2 * SETTINGS.batch_size)
    setup, data = setup_in(tmp_path, accept_code=("aaaaaaaa",)), Data(tiny_world / "1mpx", "sample")
    monkeypatch.setattr(code, "package_code", lambda: "bbbbbbbb")
    result = pretrain("tespec", find_method("tespec"), changed, data, 0, setup)
    assert result.weights.parent.name.endswith("-bbbbbbbb")

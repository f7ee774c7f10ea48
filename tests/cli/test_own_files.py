"""Configs of one's own, from any folder, on every command."""

import pytest

from tespec.cli.command import VERBS
from tespec.cli.main import main
from tespec.core import config
from tespec.core.paths import CONFIGS


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder laid out like configs/, with a task and a plan; what is read from it is forgotten afterwards."""
    monkeypatch.setattr(config, "_added", {})
    for kind, name, text in (
        ("tasks", "mine", (CONFIGS / "tasks" / "ddd17.yaml").read_text().replace("name: ddd17", "name: mine")),
        ("plans", "mine_too", "data: sample\nprofile: tiny\ncells: [{methods: [scratch], tasks: [ddd17]}]\n"),
    ):
        (tmp_path / kind).mkdir()
        (tmp_path / kind / f"{name}.yaml").write_text(text)
    return tmp_path


@pytest.mark.parametrize("verb", sorted({*VERBS} - {"tables", "report"}))  # which read records alone
def test_every_command_takes_code_and_configs_of_one_s_own(verb, capsys):
    with pytest.raises(SystemExit):
        main([verb, *({"data": ["check"], "weights": ["inspect"]}.get(verb, [])), "--help"])
    shown = capsys.readouterr().out
    assert "--import FILE" in shown
    assert "--configs DIR" in shown


def test_a_task_from_another_folder_is_found_by_name(folder, capsys):
    assert main(["run", "--configs", str(folder), "--describe", "mine"]) == 0
    assert capsys.readouterr().out.startswith("mine:")
    assert main(["data", "download-guide", "mine", "--configs", str(folder)]) == 0
    assert capsys.readouterr().out.startswith("DDD17 with EV-SegNet's labels")


def test_a_task_may_be_a_file(folder, tmp_path, capsys):
    file = folder / "tasks" / "mine.yaml"
    refused = main(["run", "--method", "scratch", "--task", str(file), "--data", "/nowhere", "--profile", "tiny"])
    assert (refused, capsys.readouterr().err) == (
        2,
        "error: /nowhere: no such file or folder; check the path given to --data\n",
    )


def test_a_plan_from_another_folder_is_found_by_name(folder, tmp_path, capsys):
    places = ["--results", str(tmp_path / "results"), "--runs", str(tmp_path / "runs")]
    assert main(["plan", "mine_too", "--configs", str(folder), "--dry-run", *places]) == 0
    shown = capsys.readouterr().out
    assert "mine_too: 0 of 2 runs done" in shown
    assert f"--configs {folder}" in shown


def test_a_folder_without_configs_is_refused(tmp_path, capsys):
    assert main(["run", "--list", "--configs", str(tmp_path / "none")]) == 2
    assert "no folder of configs" in capsys.readouterr().err

"""Recipes stand in the methods' files: what is read, and what is refused in one line."""

import shutil
import sys
import textwrap

import pytest

from tespec.core import config
from tespec.core import recipes as module
from tespec.core.config import as_facts, names, objective_facts, pretraining_settings
from tespec.core.errors import UserError
from tespec.core.recipes import add_recipe, recipes

TEXT = """
name: mine
version: 1
objective: {type: coding, width: 8, ahead: 2}
dataset: 1mpx
recurrent: true
bins: 10
rule: edges
window_ms: 50
segments: 15
batch_size: 8
downsample: {factor: auto, keep: nearest, to_width: 640}
sampling: streams
drop_path: 0.0
optimisation:
  {optimizer: Adam, peak_lr: 2.0e-4, schedule: linear, start_divisor: 25, end_divisor: 1000, steps: 4000,
  warmup_steps: 200, clip: {by: value, at: 1.0}, weight_decay: {start: 0.0, end: 0.0, exempt: []}, patch_embed_lr: 1.0,
  precision: auto, non_finite: stop}
augmentation: {flip: 0.5, zoom: 0.8, zoom_in_share: 0.8, zoom_in: [1.0, 1.5], zoom_out: [1.0, 1.2]}
"""


@pytest.fixture
def imported(tmp_path, monkeypatch):
    """Write a file and read its recipe, for one test."""
    monkeypatch.setattr(module, "_imported", [])

    def write(text, name="mine.py"):
        path = tmp_path / name
        path.write_text(text)
        add_recipe(path)
        return path

    return write


def file_of(text):
    return f'import a_package_that_nobody_has\n\nRECIPE = """{text}"""\n'


def test_every_recipe_of_the_repository_is_in_its_methods_file():
    assert {name: recipe.file.name for name, recipe in recipes().items()} == {
        "cm3ae": "cm3ae.py", "ecddp": "ecddp.py", "ecdp": "ecdp.py", "imagenet": "imagenet.py", "mem": "mem.py",
        "moby": "moby.py", "tespec": "tespec.py",
    }  # fmt: skip
    assert names("pretraining") == sorted(recipes())


def test_a_file_is_read_and_not_run_and_profiles_hold_for_it(imported):
    imported(file_of(TEXT))
    assert "mine" in names("pretraining")
    paper = pretraining_settings("mine", "paper")
    assert (paper.objective, paper.optimisation.steps) == ({"type": "coding", "width": 8, "ahead": 2}, 4000)
    assert paper.deviations == ()
    # Nothing is said of a profile: its general values.
    sample, tespec = (pretraining_settings(recipe, "sample") for recipe in ("mine", "tespec"))
    assert sample.batch_size == tespec.batch_size != paper.batch_size
    assert sample.optimisation.steps == tespec.optimisation.steps
    assert sample.objective == paper.objective
    changed = pretraining_settings("mine", "tiny", ["objective.width=4", "batch_size=3"])
    assert (changed.objective["width"], changed.batch_size, changed.optimisation.steps) == (4, 3, 3)
    assert as_facts(changed)["name"] == "mine"


def test_what_differs_under_a_profile_stands_over_what_differs_under_its_base(imported):
    imported(file_of(TEXT + "profiles:\n  sample: {batch_size: 2, objective: {width: 3}}\n  small: {segments: 5}\n"))
    found = {name: pretraining_settings("mine", name) for name in ("paper", "sample", "small", "tiny")}
    assert {name: each.batch_size for name, each in found.items()} == {"paper": 8, "sample": 2, "small": 2, "tiny": 2}
    assert {name: each.segments for name, each in found.items()} == {"paper": 15, "sample": 4, "small": 5, "tiny": 4}
    assert [each.objective["width"] for each in found.values()] == [8, 3, 3, 3]
    assert objective_facts("coding", "small")["width"] == 3


def test_another_objective_takes_the_settings_that_its_own_file_gives(imported):
    imported(file_of(TEXT))
    assert pretraining_settings("tespec", "sample", ["objective=coding"]).objective["width"] == 8
    assert pretraining_settings("mine", "sample", ["objective=cpc"]).objective == objective_facts("cpc", "sample")


def test_an_objective_by_name_alone_is_that_of_another_file(imported):
    text = TEXT.replace("{type: coding, width: 8, ahead: 2}", "cpc")
    imported(file_of(text + "profiles: {sample: {objective: {places: 7}}}\n"))
    assert pretraining_settings("mine", "paper").objective == objective_facts("cpc", "paper")
    assert pretraining_settings("mine", "sample").objective == objective_facts("cpc", "sample") | {"places": 7}


def test_a_profile_holds_no_recipes(tmp_path, monkeypatch):
    shutil.copytree(config.CONFIGS, tmp_path / "configs")
    monkeypatch.setattr(config, "CONFIGS", tmp_path / "configs")
    (tmp_path / "configs" / "profiles" / "third.yaml").write_text("name: third\nbase: sample\nrecipes: {moby: {}}\n")
    with pytest.raises(UserError, match=r"profile third: unknown group 'recipes'; choose from name, base, networks"):
        pretraining_settings("moby", "third")


def test_an_edited_file_is_read_again(imported):
    path = imported(file_of(TEXT))
    assert pretraining_settings("mine", "paper").batch_size == 8
    path.write_text(file_of(TEXT.replace("batch_size: 8", "batch_size: 16")))
    assert pretraining_settings("mine", "paper").batch_size == 16


MISTAKES = {
    "a name twice": (
        file_of(TEXT.replace("name: mine", "name: moby")),
        r"mine\.py: .*moby\.py has a recipe 'moby' already; rename one of them$",
    ),
    "not literal": (
        "TEXT = 'a'\nRECIPE = f'name: {TEXT}'\n",
        r'mine\.py, line 2: RECIPE is no literal text; write RECIPE = """..."""$',
    ),
    "read from elsewhere": ("RECIPE: str = open('x').read()\n", r"line 1: RECIPE is no literal text"),
    "twice": ("RECIPE = 'a: 1'\nRECIPE = 'b: 1'\n", r"mine\.py, line 2: RECIPE is set twice; keep one of them$"),
    "no YAML": (
        'RECIPE = """\nname: mine\nobjective: {type: cpc\nbins: 10\n"""\n',
        r"mine\.py, line 4: RECIPE is not YAML \(expected ',' or '}', but got ':'\); mend it$",
    ),
    "an alias": ('RECIPE = """\na: &x [1]\nb: *x\n"""\n', r"mine\.py, line 1: RECIPE is not YAML"),
    "a list": ("RECIPE = '[1, 2]'\n", r"line 1: RECIPE holds no settings by name; write `name: \.\.\.`"),
    "no objective": ("RECIPE = 'name: mine'\n", r"line 1: RECIPE names no objective; write `objective: {type: NAME"),
    "a profile that is none": (
        "RECIPE = 'name: mine\\nobjective: cpc\\nprofiles: {sample: 3}'\n",
        r"RECIPE has profiles that are no groups of settings",
    ),
    "a name that is none": ("RECIPE = 'name: [1]\\nobjective: cpc'\n", r"RECIPE has a name that is no text; quote it"),
    "no Python": ("RECIPE = (\n", r"mine\.py: not a Python file \("),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_mistakes_in_a_file_are_named(imported, case):
    text, message = MISTAKES[case]
    imported(text)
    with pytest.raises(UserError, match=message) as caught:
        names("pretraining")
    assert "\n" not in str(caught.value)


WRONG_SETTINGS = {
    "a profile that nobody has": (TEXT + "profiles: {smple: {}}", r"there is no profile 'smple'; choose from"),
    "a setting less": (TEXT.replace("bins: 10\n", ""), r"mine\.py: setting 'bins' is missing in RECIPE; add it$"),
    "a setting more": (TEXT + "lanes: 3", r"unknown setting 'lanes'"),
    "a change of nothing": (
        TEXT + "profiles: {sample: {lanes: 3}}",
        r"profile sample, recipe mine: unknown setting 'lanes'",
    ),
    "an objective of nobody": (
        TEXT.replace("{type: coding, width: 8, ahead: 2}", "mae"),
        r"objective mae: no file gives its settings",
    ),
}


@pytest.mark.parametrize("case", WRONG_SETTINGS)
def test_settings_that_do_not_fit_are_named(imported, case):
    text, message = WRONG_SETTINGS[case]
    imported(file_of(text))
    with pytest.raises(UserError, match=message):
        pretraining_settings("mine", "sample")


def test_unknown_recipes_and_objectives_name_those_there_are():
    with pytest.raises(
        UserError, match=r"recipe mobi: there is none; choose from cm3ae, ecddp, ecdp, imagenet, mem, moby"
    ):
        pretraining_settings("mobi", "sample")
    with pytest.raises(UserError, match=r"objective cp: no file gives its settings; choose from classification, cpc"):
        objective_facts("cp", "sample")


def test_packages_offer_recipes_by_their_entry_points(tmp_path, monkeypatch):
    for name, text in {
        "offered_package/__init__.py": "raise RuntimeError('nobody imports this')\n",
        "offered_package/method.py": file_of(TEXT),
        "offered_package/another.py": file_of(TEXT.replace("mine", "another")),
        "offered-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: offered\nVersion: 1.0\n",
        "offered-1.0.dist-info/entry_points.txt": "[tespec.methods]\nmine = offered_package.method\n",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(textwrap.dedent(text))
    assert "mine" not in recipes()
    monkeypatch.syspath_prepend(tmp_path)
    found = recipes()
    assert "mine" in found
    assert "another" not in found
    entry = tmp_path / "offered-1.0.dist-info" / "entry_points.txt"
    entry.write_text("[tespec.methods]\nmine = offered_package\n")
    module._installed.cache_clear()
    assert {"mine", "another"} <= set(recipes())
    assert "offered_package" not in sys.modules
    monkeypatch.undo()
    assert "mine" not in recipes()

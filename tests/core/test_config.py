import dataclasses
import shutil

import pytest

from tespec.core import config
from tespec.core.config import (
    changed_finetuning,
    changed_pretraining,
    finetuning_settings,
    names,
    pretraining_settings,
)
from tespec.core.errors import UserError
from tespec.core.registry import pretrained_methods
from tespec.core.settings import ARCHITECTURES, merge


def test_paper_pretraining_settings_are_those_of_the_appendix():
    settings = pretraining_settings("tespec", "paper")
    assert (settings.batch_size, settings.segments, settings.window_ms) == (8, 15, 50)
    objective = settings.objective
    assert objective["mask"] == {"unit": 32, "ratio": 0.5}
    assert objective["target"] == {"kind": "intensity", "alpha": 5.0, "norm_events": 5000.0, "contrast": 1.0}
    assert settings.optimisation.schedule == "linear"
    assert objective["visible_weight"] == 0
    assert objective["decoder"] == {"type": "LastStageDecoder"}


def test_every_profile_resolves_every_task_and_recipe():
    for profile in names("profiles"):
        for task in names("tasks"):
            for arch in ARCHITECTURES:
                assert finetuning_settings(task, arch, profile).profile == profile
        for recipe in pretrained_methods():
            assert pretraining_settings(recipe, profile).profile == profile


def test_changes_win_over_profiles():
    settings = finetuning_settings("ddd17", "recurrent", "sample", ["optimisation.steps=70", "window_ms=40"])
    assert settings.optimisation.steps == 70
    assert settings.window_ms == 40.0


def test_what_a_user_changed_is_what_differs_from_the_defaults():
    of_data = {"protocol": {"rows": 64}}
    given = ["optimisation.steps=70", "batch_size=4", "label_share=0.5"]
    settings = finetuning_settings("ddd17", "recurrent", "sample", given, of_data)
    assert changed_finetuning(settings, of_data, "swin") == {"optimisation.steps": 70, "label_share": 0.5}
    usual = pretraining_settings("tespec", "sample", ["objective.mask.ratio=0.5"])
    assert changed_pretraining(usual, "swin") == {}
    mask = usual.objective["mask"] | {"ratio": 0.0}
    changed = dataclasses.replace(usual, segments=3, objective=usual.objective | {"mask": mask})
    assert changed_pretraining(changed, "swin") == {"objective.mask.ratio": 0.0, "segments": 3}
    other = pretraining_settings("tespec", "sample", ["objective=cpc", "objective.ahead=1"])
    assert changed_pretraining(other, "swin") == {"objective": "cpc", "objective.ahead": 1}
    unknown = dataclasses.replace(usual, name="mine")
    assert changed_pretraining(unknown, "swin").keys() > {"batch_size", "optimisation.steps", "objective.mask.ratio"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("optimisation.step=7", "unknown setting 'step'; did you mean 'steps'"),
        ("batch_size=many", "batch_size: 'many' is not allowed; it should be a valid integer"),
        ("batch_size=2.5", "batch_size: 2.5 is not allowed"),
        ("batch_size=0", "batch_size: 0 is not allowed; it should be greater than 0"),
        ("optimisation.steps=-1", r"optimisation\.steps: -1 is not allowed; it should be greater than 0"),
        ("sampling=true", "sampling: True is not allowed"),
        ("sampling=random", "sampling: 'random' is not allowed; it should be 'streams', 'mixed' or 'clips'"),
        ("batch_size=1", "sampling: 'mixed' needs a lane of streams and one of clips, and batch_size is 1"),
        ("head=3", "head: 3 is not allowed; it should be a valid dictionary"),
        ("augmentation.zoom_in=[1]", "zoom_in: \\[1\\] is not allowed; it should be a list of two"),
        ("optimisation.peak_lr=0", r"optimisation\.peak_lr: 0 is not allowed; it should be greater than 0"),
        ("optimisation.peak_lr=.nan", r"optimisation\.peak_lr: nan is not allowed"),
        ("augmentation.zoom_out=[0.5, 2]", "zoom_out: 0.5 is not allowed; it should be greater than or"),
        ("window_ms=-5", "window_ms: -5 is not allowed"),
        ("rule=rtv", "rule: 'rtv' is not allowed; it should be 'edges' or 'rvt'"),
        ("batch_size", "no '='"),
        ("batch_size=[", "the value is not YAML"),
    ],
)
def test_wrong_changes_are_named(change, message):
    with pytest.raises(UserError, match=message):
        finetuning_settings("ddd17", "recurrent", "sample", [change])


def test_unknown_names_list_the_choices():
    with pytest.raises(UserError, match=r"ddd71: no such file in configs/tasks; choose from .*ddd17"):
        finetuning_settings("ddd71", "recurrent", "paper")
    with pytest.raises(UserError, match="no architecture 'transformer'; choose from recurrent, feedforward"):
        finetuning_settings("ddd17", "transformer", "paper")


def test_a_mapping_of_another_type_is_replaced_whole():
    base = {"decoder": {"type": "A", "width": 3}, "mask": {"unit": 32, "ratio": 0.5}}
    assert merge(base, {"decoder": {"type": "B"}}, "x")["decoder"] == {"type": "B"}
    assert merge(base, {"mask": {"unit": 16}}, "x")["mask"] == {"unit": 16, "ratio": 0.5}
    assert base["mask"]["unit"] == 32


@pytest.mark.parametrize("number", ["1e-3", "0.001", "1.0e-3"])
def test_numbers_are_read_as_people_write_them(number):
    settings = finetuning_settings("ddd17", "recurrent", "sample", [f"optimisation.peak_lr={number}"])
    assert settings.optimisation.peak_lr == 0.001


def test_what_the_data_says_wins_over_the_config_and_the_user_over_both():
    of_data = {"splits": {"train": ["a"], "test": ["b"]}, "protocol": {"rows": 64}}
    settings = finetuning_settings("ddd17", "recurrent", "sample", [], of_data)
    assert settings.splits == {"train": ("a",), "test": ("b",), "val": ()}
    assert settings.protocol["rows"] == 64
    own = finetuning_settings("ddd17", "recurrent", "sample", ["protocol.rows=32"], of_data)
    assert own.protocol["rows"] == 32


def test_a_backbone_that_has_seen_the_data_learns_more_slowly():
    settings = finetuning_settings("1mpx", "recurrent", "paper")
    assert settings.optimisation.peak_lr == 3.46e-4
    assert settings.after_pretraining_on("1Mpx").optimisation.peak_lr == 1e-4
    assert settings.after_pretraining_on("-") == settings
    assert finetuning_settings("gen1", "recurrent", "paper").after_pretraining_on("1Mpx").optimisation.peak_lr == 2e-4


PAPER = {
    ("gen1", "recurrent"): (8, 2e-4, "linear", 400_000, 2000, 21, 50),
    ("1mpx", "recurrent"): (24, 3.46e-4, "linear", 400_000, 2000, 5, 50),
    ("gen1", "feedforward"): (64, 2e-4, "linear", 400_000, 2000, 1, 50),
    ("1mpx", "feedforward"): (32, 3.46e-4, "linear", 400_000, 2000, 1, 50),
    ("dsec", "recurrent"): (8, 1e-4, "cosine", 50_000, 250, 10, None),
    ("ddd17", "recurrent"): (16, 1e-4, "cosine", 50_000, 250, 15, None),
    ("dsec", "feedforward"): (16, 1e-4, "cosine", 50_000, 250, 1, 100),
    ("ddd17", "feedforward"): (16, 1e-4, "cosine", 50_000, 250, 1, 100),
    ("mvsec", "recurrent"): (8, 1e-4, "cosine", 20_000, 100, 10, None),
    ("mvsec", "feedforward"): (16, 1e-4, "cosine", 20_000, 100, 1, 100),
}


@pytest.mark.parametrize(("task", "arch"), PAPER)
def test_settings_are_the_rows_of_the_papers_table(task, arch):
    settings = finetuning_settings(task, arch, "paper")
    found = settings.optimisation
    assert (
        settings.batch_size,
        found.peak_lr,
        found.schedule,
        found.steps,
        found.warmup_steps,
        settings.segments,
        settings.window_ms,
    ) == PAPER[task, arch]
    assert (found.start_divisor, found.end_divisor, found.optimizer) == (25, 1000, "Adam")


def test_a_profile_says_only_what_differs_from_its_base(tmp_path, monkeypatch):
    base, small = (finetuning_settings("1mpx", "recurrent", profile) for profile in ("sample", "small"))
    assert small.optimisation.steps != base.optimisation.steps
    assert (small.width, small.augmentation, small.downsample) == (base.width, base.augmentation, base.downsample)
    assert small.deviations[: len(base.deviations)] == base.deviations
    assert len(small.deviations) > len(base.deviations)
    copy = tmp_path / "configs"
    shutil.copytree(config.CONFIGS, copy)
    monkeypatch.setattr(config, "CONFIGS", copy)
    (copy / "profiles" / "third.yaml").write_text("name: third\nbase: small\n")
    with pytest.raises(UserError, match="profile third: its base has a base itself"):
        finetuning_settings("ddd17", "recurrent", "third")
    (copy / "profiles" / "third.yaml").write_text("name: third\nbase: sample\nfinetuning: {stepps: 3}\n")
    with pytest.raises(UserError, match="unknown setting 'stepps'"):
        finetuning_settings("ddd17", "recurrent", "third")


def test_what_a_profile_says_of_an_architecture_outweighs_what_it_says_of_both(tmp_path, monkeypatch):
    copy = tmp_path / "configs"
    shutil.copytree(config.CONFIGS, copy)
    monkeypatch.setattr(config, "CONFIGS", copy)
    path = copy / "profiles" / "own.yaml"
    path.write_text(
        "name: own\nbase: sample\nfinetuning: {architectures: {recurrent: {optimisation: {peak_lr: 1.0e-4}}}}\n"
        "tasks: {ddd17: {optimisation: {peak_lr: 2.0e-4, steps: 77}}}\n"
    )
    recurrent, alone = (finetuning_settings("ddd17", arch, "own").optimisation for arch in ("recurrent", "feedforward"))
    assert (recurrent.peak_lr, alone.peak_lr) == (1e-4, 2e-4)
    assert (recurrent.steps, alone.steps) == (77, 77)
    path.write_text("name: own\nbase: sample\nfinetuning: {architectures: {recurent: {batch_size: 4}}}\n")
    with pytest.raises(UserError, match="profile own: unknown setting 'recurent'; did you mean 'recurrent'"):
        finetuning_settings("ddd17", "feedforward", "own")
    path.write_text("name: own\nbase: sample\nfinetuning: {architectures: {recurrent: {batchsize: 4}}}\n")
    with pytest.raises(UserError, match="profile own: unknown setting 'batchsize'; did you mean 'batch_size'"):
        finetuning_settings("ddd17", "recurrent", "own")


@pytest.mark.parametrize(
    "text",
    [
        "tasks: {ddd17: 3}",
        "tasks: {ddd17: {architectures: 3}}",
        "finetuning: {architectures: {recurrent: 3}}",
        "finetuning: {architectures: [recurrent]}",
    ],
)
def test_a_group_of_a_profile_that_holds_no_settings_is_refused(tmp_path, monkeypatch, text):
    copy = tmp_path / "configs"
    shutil.copytree(config.CONFIGS, copy)
    monkeypatch.setattr(config, "CONFIGS", copy)
    (copy / "profiles" / "own.yaml").write_text(f"name: own\nbase: sample\n{text}\n")
    with pytest.raises(UserError, match=r"profile own.* no (group of )?settings"):
        finetuning_settings("ddd17", "recurrent", "own")


def test_every_pretraining_of_a_comparison_takes_as_many_steps_of_as_many_samples():
    every = [pretraining_settings(recipe, "small") for recipe in pretrained_methods()]
    assert len({settings.optimisation.steps for settings in every}) == 1
    assert len({settings.batch_size * settings.segments for settings in every}) == 1


@pytest.mark.parametrize("profile", names("profiles"))
@pytest.mark.parametrize("task", names("tasks"))
def test_recurrent_networks_train_on_streams_and_clips_and_others_on_single_windows(task, profile):
    recurrent, alone = (finetuning_settings(task, arch, profile) for arch in ("recurrent", "feedforward"))
    assert (recurrent.sampling, recurrent.carries_state) == ("mixed", True)
    assert 0 < round(recurrent.random_share * recurrent.batch_size) < recurrent.batch_size
    assert (alone.sampling, alone.segments, alone.carries_state) == ("clips", 1, False)


@pytest.mark.parametrize("sampling", ["streams", "mixed"])
def test_a_state_is_carried_by_those_that_have_one(sampling):
    with pytest.raises(
        UserError, match=rf"sampling: '{sampling}' carries a state, and feed-forward networks have none"
    ):
        finetuning_settings("ddd17", "feedforward", "sample", [f"sampling={sampling}"])
    assert pretraining_settings("tespec", "sample", ["recurrent=false", f"sampling={sampling}"]).sampling == sampling


def test_methods_differ_in_nothing_but_their_start():
    for task in names("tasks"):
        for arch in ARCHITECTURES:
            settings = finetuning_settings(task, arch, "small")
            assert all(settings.after_pretraining_on(data) == settings for data in ("-", "1Mpx", "ImageNet-1k"))


@pytest.mark.parametrize("key", ["optimisation.peak_lr", "augmentation.flip", "window_ms"])
@pytest.mark.parametrize("number", [10**400, -(10**400)])
def test_a_number_larger_than_any_float_is_refused(key, number):
    with pytest.raises(UserError, match=r"is not allowed"):
        finetuning_settings("ddd17", "recurrent", "sample", [f"{key}={number}"])


@pytest.mark.parametrize("steps", [10, 15])
def test_a_warm_up_that_leaves_no_step_is_refused_by_name(steps):
    message = rf"optimisation\.warmup_steps: 15 steps of warm-up leave none of the {steps} of .*; set it below {steps}"
    with pytest.raises(UserError, match=message):
        finetuning_settings("ddd17", "recurrent", "sample", [f"optimisation.steps={steps}"])
    with pytest.raises(UserError, match=r"optimisation\.warmup_steps: 30 steps"):
        pretraining_settings("tespec", "sample", [f"optimisation.steps={steps}"])
    few = [f"optimisation.steps={steps}", "optimisation.warmup_steps=3"]
    assert finetuning_settings("ddd17", "recurrent", "sample", few).optimisation.warmup_steps == 3


@pytest.fixture
def own_configs(tmp_path, monkeypatch):
    monkeypatch.setattr(config, "_added", {})
    folder = tmp_path / "mine"
    shutil.copytree(config.CONFIGS / "tasks", folder / "tasks")
    for path in (folder / "tasks").iterdir():
        path.rename(path.with_name(f"own_{path.name}"))
    return folder


def test_configs_of_another_folder_are_read_like_those_that_come_with_the_harness(own_configs):
    with pytest.raises(UserError, match="no such file in configs/tasks"):
        finetuning_settings("own_ddd17", "recurrent", "paper")
    config.add_folder(own_configs)
    assert "own_ddd17" in names("tasks")
    assert "ddd17" in names("tasks")
    own, harness = (finetuning_settings(name, "recurrent", "paper") for name in ("own_ddd17", "ddd17"))
    assert own == harness


def test_a_config_never_takes_the_place_of_another(own_configs, tmp_path):
    for name in ("own_ddd17", "own_dsec"):
        (own_configs / "tasks" / f"{name}.yaml").rename(own_configs / "tasks" / f"{name.removeprefix('own_')}.yaml")
    with pytest.raises(UserError, match="has the name 'ddd17' already; rename one of them"):
        config.add_folder(own_configs)
    with pytest.raises(UserError, match="no folder of configs"):
        config.add_folder(tmp_path / "nowhere")
    with pytest.raises(UserError, match=r"no such config; give a file that ends in \.yaml"):
        config.add_file("tasks", tmp_path / "nothing.yaml")

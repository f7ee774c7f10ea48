import dataclasses
from functools import partial

import pydantic
import pytest

from baselines.ecddp import Ecddp
from baselines.ecdp import Ecdp
from tespec.core import config
from tespec.core.config import changed_settings, finetuning_settings, names, pretraining_settings
from tespec.core.errors import UserError
from tespec.core.paths import REPOSITORY
from tespec.core.settings import ARCHITECTURES, SAMPLING, build, merge
from tespec.pretraining.method import method_settings
from tespec.registry import METHODS, pretrained_methods


def test_every_profile_resolves_every_task_and_recipe():
    for profile in names("profiles"):
        for task in names("tasks"):
            recurrent, feedforward = (
                finetuning_settings(task, arch, profile) for arch in ARCHITECTURES
            )
            # Recurrent networks train on stream, others on single windows.
            assert recurrent.sampling == "mixed"
            assert (
                0
                < round(SAMPLING[recurrent.sampling] * recurrent.batch_size)
                < recurrent.batch_size
            )
            assert (feedforward.sampling, feedforward.segments) == ("random", 1)
        for recipe in pretrained_methods():
            # raises if they do not fit the method
            method_settings(pretraining_settings(recipe, profile).objective)


def test_the_data_wins_over_the_config_and_the_user_over_both():
    of_data = {"splits": {"train": ["a"], "test": ["b"]}, "protocol": {"rows": 64}}
    settings = finetuning_settings("ddd17", "recurrent", "sample", [], of_data)
    assert settings.splits == {"train": ("a",), "test": ("b",), "val": ()}
    assert settings.protocol["rows"] == 64
    changes = ["protocol.rows=32", "optimisation.peak_lr=1e-3", "window_ms=40"]
    changed = finetuning_settings("ddd17", "recurrent", "sample", changes, of_data)
    assert (changed.protocol["rows"], changed.window_ms) == (32, 40.0)
    assert changed.optimisation.peak_lr == 1e-3


def test_changed_settings_are_those_that_differ_from_the_defaults():
    of_data = {"protocol": {"rows": 64}}
    given = ["optimisation.steps=70", "batch_size=4", "label_fraction=0.5"]
    settings = finetuning_settings("ddd17", "recurrent", "sample", given, of_data)
    assert changed_settings(settings, "swin", of_data) == {
        "optimisation.steps": 70,
        "label_fraction": 0.5,
    }
    usual = pretraining_settings("tespec", "sample", ["objective.mask.ratio=0.5"])
    assert changed_settings(usual, "swin") == {}
    mask = usual.objective["mask"] | {"ratio": 0.0}
    changed = dataclasses.replace(usual, segments=3, objective=usual.objective | {"mask": mask})
    assert changed_settings(changed, "swin") == {"objective.mask.ratio": 0.0, "segments": 3}
    other = pretraining_settings("tespec", "sample", ["objective=cpc", "objective.ahead=1"])
    assert changed_settings(other, "swin") == {"objective": "cpc", "objective.ahead": 1}
    raised = {"objective": "ecddp", "objective_version": Ecddp.version}
    assert (
        changed_settings(pretraining_settings("tespec", "sample", ["objective=ecddp"]), "swin")
        == raised
    )


def test_the_user_s_peak_rate_also_holds_after_pretraining():
    def after(*changes):
        settings = finetuning_settings("1mpx", "recurrent", "paper", changes)
        return settings.after_pretraining_on("1mpx").optimisation.peak_lr

    assert after("optimisation.peak_lr=5e-5") == after("optimisation={peak_lr: 5e-5}") == 5e-5
    assert after("peak_lr_after.1Mpx=2e-4", "optimisation.peak_lr=5e-5") == 2e-4
    others = finetuning_settings("ddd17", "recurrent", "paper", ["optimisation.peak_lr=5e-5"])
    assert changed_settings(others, "swin") == {"optimisation.peak_lr": 5e-5}


def test_a_number_counts_by_its_value_however_it_is_written():
    settings = finetuning_settings(
        "gen1", "recurrent", "paper", ["head.score_threshold=1e-3", "protocol.min_side=1e1"]
    )
    assert (settings.head["score_threshold"], settings.protocol["min_side"]) == (0.001, 10)
    assert changed_settings(settings, "swin") == {}


WRONG = [
    (
        "window_ms=null",
        r"window_ms: is null, but windows of feed-forward networks need a length; set it in ms",
    ),
    ("sampling=stream", "'stream' carries a state, but feed-forward networks have none"),
    ("optimisation.step=7", "unknown setting 'step'; did you mean 'steps'"),
    ("batch_size=many", "batch_size: 'many' is not allowed; it should be a valid integer"),
    ("batch_size=1", "sampling: 'mixed' needs at least two lanes, but batch_size is 1"),
    (
        "augmentation.zoom_in=[1]",
        "zoom_in: \\[1\\] is not allowed; it should be a list of two values",
    ),
    ("augmentation.zoom_out=[1.5, 1.2]", "augmentation.zoom_out: 1.5 is above 1.2; swap them"),
    (
        "optimisation.peak_lr=0",
        r"optimisation\.peak_lr: 0 is not allowed; it should be greater than 0",
    ),
    ("batch_size", "no '='"),
    ("batch_size=[", "the value is not valid YAML"),
    (f"optimisation.peak_lr={10**400}", "peak_lr: 100.* is not allowed"),
    (
        "downsample.to_width=320",
        "to_width: is 320, but downsample.factor is 1; give a width with factor auto",
    ),
    ("downsample.factor=auto", "downsample.to_width: is missing, but downsample.factor is auto"),
    (
        "optimisation.clip.at=null",
        "optimisation.clip.at: missing for clipping by value; set it, or set by to none",
    ),
    ("optimisation.steps=15", "warmup_steps: 15 is not less than .* is 15; set it below 15"),
]


@pytest.mark.parametrize(("change", "message"), WRONG)
def test_wrong_changes_are_named(change, message):
    arch = "feedforward" if change in ("sampling=stream", "window_ms=null") else "recurrent"
    with pytest.raises(UserError, match=message):
        finetuning_settings("ddd17", arch, "sample", [change])


def test_an_unknown_architecture_is_named():
    with pytest.raises(
        UserError, match="no architecture 'transformer'; choose from recurrent, feedforward"
    ):
        finetuning_settings("ddd17", "transformer", "sample")


def test_a_mapping_of_another_type_is_replaced():
    base = {"decoder": {"type": "A", "backbone": 3}, "mask": {"unit": 32, "ratio": 0.5}}
    changes = {"decoder": {"type": "B"}, "mask": {"unit": 16}}
    assert merge(base, ("x", changes)) == {
        "decoder": {"type": "B"},
        "mask": {"unit": 16, "ratio": 0.5},
    }


@pytest.fixture
def write_config(tmp_path, monkeypatch):
    """Return a function that writes and adds a profile or task `custom`, and returns its path."""
    monkeypatch.setattr(config, "_added", {})

    def write(text, kind="profiles"):
        path = tmp_path / "custom.yaml"
        path.write_text(text)
        config.add_file(kind, path)
        return path

    return write


def test_of_a_profile_the_task_wins_and_then_the_architecture(write_config):
    write_config(
        "base: sample\n"
        "finetuning:\n  batch_size: 6\n"
        "  architectures: {recurrent: {optimisation: {peak_lr: 1.0e-4}}}\n"
        "tasks:\n  ddd17:\n    optimisation: {steps: 77}\n"
        "    architectures: {feedforward: {optimisation: {peak_lr: 2.0e-4}}}"
    )
    recurrent, feedforward = (
        finetuning_settings("ddd17", arch, "custom") for arch in ARCHITECTURES
    )
    assert (recurrent.optimisation.peak_lr, feedforward.optimisation.peak_lr) == (1e-4, 2e-4)
    assert (recurrent.optimisation.steps, feedforward.optimisation.steps) == (77, 77)
    # overrides the base profile's value for an architecture
    assert (recurrent.batch_size, feedforward.batch_size) == (6, 6)
    base = finetuning_settings("ddd17", "recurrent", "sample")
    assert (recurrent.backbone, recurrent.segments) == (base.backbone, base.segments)
    custom, base_deviations = (set(settings.deviations) for settings in (recurrent, base))
    assert custom - base_deviations == {
        "batch_size: 6 instead of 16",
        "optimisation.steps: 77 instead of 50000",
    }
    assert base_deviations - custom == {
        "batch_size: 4 instead of 16",
        "optimisation.peak_lr: 0.001 instead of 0.0001",
        "optimisation.steps: 300 instead of 50000",
    }


def test_settings_for_a_frozen_backbone_follow_those_of_the_same_config(write_config):
    write_config(
        "base: sample\n"
        "finetuning:\n  batch_size: 6\n  labels_per_chunk: 3\n"
        "  frozen: {optimisation: {peak_lr: 4.0e-3}, batch_size: 7,\n"
        "    architectures: {recurrent: {optimisation: {peak_lr: 2.0e-3}}}}\n"
        "tasks:\n  ddd17: {labels_per_chunk: 1, frozen: {optimisation: {steps: 77}}}"
    )
    found = {
        (arch, frozen): finetuning_settings("ddd17", arch, "custom", frozen=frozen)
        for arch in ARCHITECTURES
        for frozen in (False, True)
    }
    full, frozen = found["recurrent", False], found["recurrent", True]
    assert (full.optimisation.peak_lr, full.optimisation.steps, full.batch_size) == (1e-3, 300, 6)
    assert (frozen.optimisation.peak_lr, frozen.optimisation.steps) == (2e-3, 77)
    assert (frozen.batch_size, frozen.labels_per_chunk, frozen.frozen) == (7, 1, True)
    assert found["feedforward", True].optimisation.peak_lr == 4e-3
    assert set(frozen.deviations) - set(full.deviations) == {
        "batch_size: 7 instead of 16",
        "optimisation.peak_lr: 0.002 instead of 0.0001",
        "optimisation.steps: 77 instead of 50000",
    }
    assert changed_settings(frozen, "swin") == {}
    changes = ["optimisation.steps=50", "batch_size=7"]
    changed = finetuning_settings("ddd17", "recurrent", "custom", changes, frozen=True)
    assert changed_settings(changed, "swin") == {"optimisation.steps": 50}
    layers = config.cell_layers("ddd17", "recurrent", "custom", frozen=True)
    origins = {key: source for source, layer in layers for key in config.flattened(layer)}
    assert origins["optimisation.steps"] == "profile custom, task ddd17, frozen"
    write_config("base: sample\nfinetuning: {frozen: {stepps: 3}}")
    finetuning_settings("ddd17", "recurrent", "custom")
    with pytest.raises(UserError, match="profile custom, frozen: unknown setting 'stepps'"):
        finetuning_settings("ddd17", "recurrent", "custom", frozen=True)


def test_a_task_wins_over_its_base_in_all_that_it_states(write_config):
    write_config("base: ddd17\nbatch_size: 5\narchitectures: {feedforward: {segments: 2}}", "tasks")
    recurrent, feedforward = (
        finetuning_settings("custom", arch, "paper") for arch in ARCHITECTURES
    )
    assert (
        recurrent.batch_size,
        recurrent.segments,
        feedforward.batch_size,
        feedforward.segments,
    ) == (
        5,
        15,
        5,
        2,
    )
    layers = config.cell_layers("custom", "feedforward", "paper")
    origins = {key: source for source, layer in layers for key in config.flattened(layer)}
    assert (origins["window_ms"], origins["segments"]) == ("task ddd17", "task custom")
    # the settings of another kind's head do not exist
    write_config("base: ddd17\nkind: depth\nhead: {channels: 64}", "tasks")
    heads = [layer.get("head") for _, layer in config.cell_layers("custom", "recurrent", "paper")]
    assert [head for head in heads if head] == [{"channels": 64}] * 2


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        (
            "tasks",
            "base: ddd17\narchitectures: {recurent: {segments: 2}}",
            "task custom: unknown arch.* mean 'recurrent'",
        ),
        (
            "tasks",
            "base: ddd17\noptimisation: {stepps: 2}",
            "task custom: unknown setting 'stepps'; did you mean 'steps'",
        ),
        ("tasks", "base: ddd17\nsplits: 3", "task custom: splits is not a mapping of settings"),
        ("tasks", "base: ddd17\nsplits:", "task custom: splits is not a mapping of settings"),
        ("profiles", "base: sample\nfinetuning: {stepps: 3}", "unknown setting 'stepps'"),
        (
            "profiles",
            "base: sample\nthreads: many",
            "profile custom, threads: 'many' is not allowed",
        ),
        (
            "profiles",
            "base: sample\nmethods: {moby: 3}",
            "profile custom, methods.moby: 3 is not allowed",
        ),
        (
            "profiles",
            "base: sample\nfinetuning: {architectures: {recurrent: {batchsize: 4}}}",
            "mean 'batch_size'",
        ),
        (
            "profiles",
            "base: sample\ntasks: {ddd17: 3}",
            "profile custom, tasks.ddd17: 3 is not allowed",
        ),
        (
            "profiles",
            "base: sample\nfinetuning: {architectures: [recurrent]}",
            "is not a mapping of settings",
        ),
    ],
)
def test_mistakes_in_a_custom_file_are_named(write_config, kind, text, message):
    write_config(text, kind)
    with pytest.raises(UserError, match=message):
        finetuning_settings(
            *(
                ("custom", "recurrent", "paper")
                if kind == "tasks"
                else ("ddd17", "recurrent", "custom")
            )
        )


@pytest.mark.parametrize(
    ("group", "name", "meant"),
    [("methods", "tespecc", "tespec"), ("tasks", "ddd71", "ddd17"), ("backbones", "swinn", "swin")],
)
def test_names_of_a_profile_without_effect_are_refused(write_config, group, name, meant):
    write_config(f"base: sample\n{group}: {{{name}: {'a' if group == 'backbones' else {}}}}")
    message = f"profile custom, {group}: unknown name '{name}'; did you mean '{meant}'"
    resolve = partial(finetuning_settings, "ddd17", "recurrent", "custom")
    if group == "methods":
        resolve = partial(pretraining_settings, "cpc", "custom")
    with pytest.raises(UserError, match=message):
        resolve()


def test_a_profile_sets_the_data_of_methods_that_learn_from_recordings(write_config):
    write_config("base: paper\npretraining: {dataset: gen1}")
    found = {name: pretraining_settings(name, "custom").dataset for name in ("tespec", "moby")}
    assert found == {"tespec": "gen1", "moby": "objects"}


def test_a_profile_may_be_for_own_tasks_beside_it(write_config, tmp_path):
    (tmp_path / "street.yaml").touch()
    write_config("base: paper\ntasks: {street: {batch_size: 1}}")
    assert finetuning_settings("ddd17", "recurrent", "custom").profile == "custom"


def test_every_pretraining_of_a_comparison_takes_as_many_steps_of_as_many_samples():
    every = [pretraining_settings(recipe, "study") for recipe in pretrained_methods()]
    assert len({settings.optimisation.steps for settings in every}) == 1
    assert len({settings.batch_size * settings.segments for settings in every}) == 1


GEN1_AT_SAMPLE_SIZE = """
protocol.min_diagonal: 12 instead of 30
protocol.min_side: 4 instead of 10
head.score: objectness_x_class instead of class
head.min_diagonal: 12 instead of 30
head.min_side: 4 instead of 10
downsample.factor: auto instead of 1
downsample.keep: all instead of nearest
downsample.to_width: 160 instead of null
""".strip().splitlines()


def test_a_custom_task_inherits_the_settings_of_a_profile_for_its_base(write_config):
    write_config("base: gen1\ntitle: Mine\nclasses: [circle]\nhead: {neck_blocks: 1}", "tasks")
    mine, gen1 = (finetuning_settings(task, "recurrent", "demo") for task in ("custom", "gen1"))
    assert mine.head == gen1.head | {"neck_blocks": 1}
    assert (mine.protocol, mine.downsample) == (gen1.protocol, gen1.downsample)
    assert set(gen1.deviations) > set(GEN1_AT_SAMPLE_SIZE)
    of_the_file = {
        'classes: ["circle"] instead of ["car", "pedestrian"]',
        "head.neck_blocks: 1 instead of 2",
    }
    assert set(mine.deviations) == {*gen1.deviations, *of_the_file}
    paper = finetuning_settings("custom", "recurrent", "paper")
    assert (paper.head["min_diagonal"], set(paper.deviations)) == (30, of_the_file)


def test_a_custom_task_inherits_only_settings_that_apply_to_it(write_config, tmp_path):
    write_config("base: gen1\ndataset: Drives\nprotocol: {rows: 9}", "tasks")
    other_data = finetuning_settings("custom", "recurrent", "demo")
    assert (other_data.protocol, other_data.downsample.factor) == ({"rows": 9}, 1)
    assert other_data.head["min_diagonal"] == 12
    assert not any(text.startswith("protocol") for text in other_data.deviations)
    write_config("base: gen1\nkind: counts\nhead: {hidden: 8}", "tasks")
    other_kind = finetuning_settings("custom", "recurrent", "demo")
    assert (other_kind.head, other_kind.protocol["min_diagonal"]) == ({"hidden": 8}, 12)
    (tmp_path / "mine.yaml").write_text(
        "base: demo\ntasks: {custom: {head: {hidden: 4}}, gen1: {batch_size: 2}}"
    )
    config.add_file("profiles", tmp_path / "mine.yaml")
    mine = finetuning_settings("custom", "recurrent", "mine", ["segments=3"])
    assert (mine.head, mine.batch_size, mine.segments) == ({"hidden": 4}, 2, 3)


def test_deviations_follow_from_the_settings_that_are_used(write_config):
    assert finetuning_settings("ddd17", "recurrent", "paper").deviations == ()
    changes = ["label_fraction=0.1", "splits.train=[a, b]", "evaluation_lanes=2", "title=Other"]
    changed = finetuning_settings("ddd17", "recurrent", "paper", changes)
    assert set(changed.deviations) == {
        "label_fraction: 0.1 instead of 1",
        'splits.train: ["a", "b"] instead of null',
    }
    long = finetuning_settings(
        "ddd17", "recurrent", "paper", [f"splits.train={[str(n) for n in range(99)]}"]
    )
    assert long.deviations == ("splits.train: 99 values instead of null",)
    # without a base: no paper has its settings
    write_config((config.CONFIGS / "tasks" / "ddd17.yaml").read_text(), "tasks")
    assert finetuning_settings("custom", "recurrent", "sample").deviations == ()


def test_deviations_name_a_network_that_is_not_the_papers():
    micro = "backbone: swin_micro instead of swin_tiny"
    assert micro in finetuning_settings("ddd17", "recurrent", "sample").deviations
    assert (
        micro in finetuning_settings("ddd17", "recurrent", "paper", network="swin_micro").deviations
    )
    assert micro in pretraining_settings("tespec", "paper", network="swin_micro").deviations
    assert (
        "backbone: resnet_micro instead of resnet50"
        in pretraining_settings("ecdp", "sample").deviations
    )


def test_a_task_with_one_architecture_ignores_settings_for_the_other(write_config, tmp_path):
    text = (config.CONFIGS / "tasks" / "ddd17.yaml").read_text()
    write_config(text.split("  feedforward:")[0], "tasks")
    assert finetuning_settings("custom", "recurrent", "smoke").segments == 3
    with pytest.raises(UserError, match="no architecture 'feedforward'"):
        finetuning_settings("custom", "feedforward", "smoke")


def test_deviations_of_a_pretraining_are_declared_or_differing_settings(write_config):
    paper, sample = (pretraining_settings("ecddp", profile) for profile in ("paper", "sample"))
    assert paper.deviations == (*Ecddp.recipe.deviations, *Ecddp.deviations)
    assert sample.deviations[: len(paper.deviations)] == paper.deviations
    assert "objective.local_views: 2 instead of 8" in sample.deviations
    other = pretraining_settings("tespec", "paper", ["objective=ecdp", "objective.out=64"])
    assert other.deviations == (*Ecdp.deviations, "objective.type: ecdp instead of tespec", OUT)
    # which recordings' settings do not affect
    images = pretraining_settings("moby", "sample").deviations
    assert not any(text.startswith(("downsample", "augmentation")) for text in images)


OUT = f"objective.out: 64 instead of {Ecdp.recipe.objective.out}"


def test_settings_of_a_profile_for_a_method_override_those_for_all(write_config):
    write_config(
        "base: sample\npretraining: {batch_size: 7, segments: 3}\n"
        "methods:\n  tespec: {batch_size: 5, objective: {patch_eps: 0.5}}\n"
        "  cpc: {batch_size: 2, objective: {ahead: 1}}"
    )
    tespec, moby = (pretraining_settings(name, "custom") for name in ("tespec", "moby"))
    sample = pretraining_settings("tespec", "sample")
    assert (tespec.batch_size, tespec.segments, moby.segments) == (5, 3, 3)
    assert (tespec.objective["patch_eps"], tespec.objective["mask"]) == (
        0.5,
        sample.objective["mask"],
    )
    # the base's settings for a method do not override the profile's for all
    assert [pretraining_settings(name, "custom").batch_size for name in ("mem", "ecdp")] == [7, 7]
    assert pretraining_settings("cpc", "custom").segments == 3 < sample.segments
    # the loss is cpc's, the training tespec's
    cpc = pretraining_settings("tespec", "custom", ["objective=cpc"])
    assert (cpc.batch_size, cpc.objective["ahead"]) == (5, 1)


# Number of deviations from its publication that each method declares, in its class and its recipe.
DECLARED = {
    "ecddp": 7,
    "ecdp": 7,
    "mem": 8,
    "mem-tokenizer": 3,
    "cm3ae": 7,
    "scaleevent": 7,
    "imagenet": 1,
    "cpc": 2,
}


def test_every_method_with_a_declared_difference_has_its_deviations():
    table = (
        (REPOSITORY / "docs" / "pretraining.md")
        .read_text()
        .split("## Fidelity")[1]
        .split("\n## ")[0]
    )
    rows = [row.strip("|").split("|") for row in table.splitlines() if row.startswith("| ")]
    methods = [
        row for row in rows if not row[0].startswith((" Detection", " Segmentation", " Depth"))
    ]
    declared = {
        cells[0].strip().lower().replace(", ", "-") for cells in methods if "declared" in cells[-1]
    }
    assert declared <= set(DECLARED)
    kinds = {name: METHODS.module_dict[name] for name in pretrained_methods()}
    counts = {
        name: len({*kind.deviations, *kind.recipe.deviations}) for name, kind in kinds.items()
    }
    assert {name: count for name, count in counts.items() if count} == DECLARED


def test_a_custom_config_is_a_file_with_a_new_name(write_config, tmp_path):
    file = write_config("base: ddd17", "tasks")
    base = config.CONFIGS / "tasks" / "ddd17.yaml"
    assert config.user_files(tasks="custom", profiles="paper") == [base, file]
    with pytest.raises(UserError, match="already has the name 'ddd17'; rename one of them"):
        config.add_file("tasks", file.rename(tmp_path / "ddd17.yaml"))
    (tmp_path / "a\x01b.yaml").write_text("base: ddd17")
    for name in ("nothing.yaml", "a\x01b.yaml"):
        with pytest.raises(UserError, match=r"not an existing .yaml file with a printable name; "):
            config.add_file("tasks", tmp_path / name)


def test_a_settings_class_that_refuses_its_values_is_answered_in_one_line():
    @pydantic.dataclasses.dataclass
    class Even:
        number: int

        def __post_init__(self):
            raise ValueError("numbers are even")

    with pytest.raises(
        UserError, match=r"^protocol: .* is not allowed; Value error, numbers are even"
    ):
        build(Even, {"number": 3}, "protocol")

import csv
import io
import re

import pandas as pd
import pytest
from made_records import pretraining, record

import tespec
from tespec.comparison import export
from tespec.comparison.export import to_csv
from tespec.comparison.frame import results, to_frame
from tespec.comparison.gains import compare_evaluations, gains_table
from tespec.comparison.published import published_frame, read_ablations, read_published, titles_of
from tespec.comparison.records import write_record
from tespec.comparison.tables import ACCUMULATED, NONE, PARTIAL, make_tables
from tespec.core.errors import UserError
from tespec.core.paths import REPOSITORY

MEASURED = "measured (sample, sample, full)"
RATIO = pretraining(overrides={"objective.mask.ratio": 0.25})


def one(records, name="segmentation", **options):
    """A table of records, or of their frame."""
    frame = to_frame(records) if isinstance(records, list) else records
    (table,) = make_tables(frame, only=[name], **options)
    return table


def column(table, *header):
    """Non-empty cells of a column, by (method, recurrent)."""
    cells = table.cells[header]
    return {
        (index[1], index[3]): text
        for index, text in zip(cells.index, cells, strict=True)
        if text != NONE
    }


def depth_record(method, error, seed=0, **changes):
    scores = {"abs": {"title": "Abs ↓", "better": "lower", "unit": "m"}}
    return record(method, seed=seed, task="mvsec", metrics={"abs": error}, scores=scores, **changes)


def older(run):
    return run.model_copy(update={"written": run.written.replace(year=2020)})


@pytest.fixture(scope="module")
def sample():
    return tespec.results(REPOSITORY / "results" / "sample")


@pytest.fixture(scope="module")
def sample_tables(sample):
    return {table.name: table for table in make_tables(sample)}


@pytest.mark.parametrize("name", ["detection", "segmentation", "depth"])
def test_every_published_number_is_in_the_table_and_its_csv(sample_tables, name, tmp_path):
    table = sample_tables[name]
    (tmp_path / "table.csv").write_text(to_csv(table), encoding="utf-8")
    written = pd.read_csv(tmp_path / "table.csv", dtype=str, keep_default_na=False)
    decimals, found = read_published(name)["decimals"], published_frame()
    found = found[(found["table"] == name) & (found["source"] == "paper")]
    tasks, metrics = titles_of(name)
    seen = 0
    for number in found.itertuples():
        header = (tasks[number.task], metrics[number.metric], "published")
        (row,) = (
            place
            for place, label in enumerate(table.cells.index)
            if (*label[1:4], label[4].split(" (m")[0])
            == (
                number.label,
                number.network,
                "yes" if number.arch == "recurrent" else "no",
                number.pretraining_data,
            )
        )
        text = "" if number.value != number.value else f"{number.value:.{decimals}f}"
        assert (table.cells[header].iloc[row], table.bold[header].iloc[row]) == (
            text or NONE,
            number.bold,
        )
        assert written[" ".join(header)].iloc[row] == text
        seen += text != ""
    assert seen == {"detection": 24, "segmentation": 50, "depth": 77}[name]
    methods = found["label"][~found["order"].duplicated()].tolist()
    measured = (table.cells.filter(like="measured") != NONE).any(axis=1)
    labels = table.cells.index[~measured]
    assert [label[1] for label in labels if label[0] != "Other publications"] == methods


def test_every_published_number_of_the_ablations_is_in_its_table(sample_tables):
    texts = [
        text
        for table in sample_tables.values()
        if table.name.startswith("ablation_")
        for name in table.cells
        if name[2] == "published"
        for text in table.cells[name]
        if text != NONE
    ]
    wanted = [
        f"{value:.3f}"
        for table in read_ablations().values()
        for row in table.rows
        for value in row.paper
        if value
    ]
    assert sorted(texts) == sorted(wanted)
    assert len(texts) == 48


def test_a_cell_is_mean_deviation_and_seeds_and_says_what_it_lacks():
    table = one(
        [
            *(record("scratch", seed=seed, miou=40.0 + seed) for seed in range(3)),
            *(record("tespec", seed=seed, miou=60.0 + seed) for seed in range(2)),
            record("moby", miou=41.0),
            *(record("imagenet", seed=seed, miou=None if seed else 99.0) for seed in range(3)),
            record("prior", "feedforward", kind="reference", miou=70.0, backbone=""),
        ]
    )
    assert column(table, "DDD17", "mIoU ↑", MEASURED) == {
        ("Scratch", "yes"): "41.00 ± 1.00 (3)",
        ("Tespec", "yes"): "60.50 ± 0.71 (2 of 3)",
        ("Moby", "yes"): "41.00 (1 of 3)",
        ("Imagenet", "yes"): "not finite (2 of 3)",
        ("Prior", "no"): "70.00 (1)",
    }
    assert table.cells.index[-1] == ("References", "Prior", "-", "no", "-")
    bold = table.bold["DDD17", "mIoU ↑", MEASURED]
    # The best mean of the methods is bold; references and non-finite means are excluded.
    assert [label[1] for label in bold.index[bold]] == ["Tespec"]


def test_means_over_fewer_classes_or_recordings_than_there_are_say_so():
    """Also where all rows lack the same class; only the affected metric is annotated."""
    partial = "all mean_class_acc: 2 of 3 classes; moving miou: 1 of 3 frames"
    made = [record("tespec", seed=seed, protocol={"partial means": partial}) for seed in range(2)]
    table = one(made)
    for metric, text in (
        ("mIoU ↑", "40.00 ± 0.00 (2)"),
        ("mAcc ↑", "50.00 ± 0.00 (2, 2 of 3 classes)"),
    ):
        assert column(table, "DDD17", metric, MEASURED) == {("Tespec", "yes"): text}
    assert PARTIAL in table.notes
    assert PARTIAL not in one([record("tespec")]).notes
    assert to_frame(made)["partial"].tolist() == ["", "2 of 3 classes"] * 2


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("overrides", {"overrides": {"accumulate": 2}}),
        ("pretraining_overrides", {"start": pretraining(overrides={"accumulate": 2})}),
    ],
)
def test_gradient_accumulation_leaves_the_default_tables_and_is_noted_in_others(name, change):
    made = [record("scratch"), record("tespec", **change)]
    default, shown = one(made), one(made, where={name: "*"})
    assert list(column(default, "DDD17", "mIoU ↑", MEASURED)) == [("Scratch", "yes")]
    assert ACCUMULATED not in default.notes
    assert f"Not shown: 1 results with {name} " in default.notes[-1]
    labels = [*shown.cells.columns.get_level_values(2), *shown.cells.index.get_level_values(1)]
    assert "accumulate=2" in " ".join(labels)
    assert ACCUMULATED in shown.notes
    assert ACCUMULATED in gains_table(to_frame(made), "scratch", {name: "*"}).notes


def test_errors_are_best_where_they_are_lowest_and_one_row_is_not_the_best():
    made = [depth_record("scratch", 5.0), depth_record("tespec", 4.0)]
    bold = one(made, "depth").bold["MVSEC", "Abs ↓", MEASURED]
    assert [label[1] for label in bold.index[bold]] == ["Tespec"]
    assert not one(made[:1], "depth").bold["MVSEC", "Abs ↓", MEASURED].any()


@pytest.mark.parametrize(
    ("changes", "where", "label"),
    [
        ({"profile": "smoke"}, {}, "measured (sample, smoke, full)"),
        ({"data": "ddd17", "data_fingerprint": "f" * 12}, {}, "measured (ddd17, sample, full)"),
        ({"split": "val"}, {"split": "*"}, "measured (sample, sample, full, val split)"),
        (
            {"label_fraction": 0.05},
            {"label_fraction": "*"},
            "measured (sample, sample, 5 % of labels)",
        ),
        ({"frozen": True}, {"evaluation": "*"}, "measured (sample, sample, frozen)"),
        ({"overrides": {"a.b": 1}}, {"overrides": "*"}, "measured (sample, sample, full, a.b=1)"),
        (
            {"overrides": {"test_time_augmentation": "flip"}},
            {"overrides": "*"},
            "measured (sample, sample, full, test_time_augmentation=flip)",
        ),
    ],
)
def test_different_settings_never_share_a_column(changes, where, label):
    made = [record(miou=40.0), record(seed=1, miou=50.0, **changes)]
    table = one(made, where=where)
    assert list(column(table, "DDD17", "mIoU ↑", MEASURED).values()) == ["40.00 (1)"]
    remark = ", TTA" if "test_time_augmentation" in label else ""
    assert list(column(table, "DDD17", "mIoU ↑", label).values()) == [f"50.00 (1{remark})"]
    if where:
        shown = one(made)
        assert label not in shown.cells.columns.get_level_values(2)
        assert shown.notes[-1].startswith("Not shown: 1 results with ")


VERSIONS = {
    "method_version": {"method_version": 10},
    "task_version": {"task_version": 10},
    "results_version": {"results_version": 10},
    "plugin": {"plugin": "f" * 12},
}


@pytest.mark.parametrize("name", VERSIONS)
def test_versions_are_never_averaged_and_each_is_shown_as_what_it_is(name):
    """The highest version is shown, even if a lower one has a later date; the newest plug-in."""
    first = record("mine", miou=40.0)
    newest = record("mine", seed=1, miou=50.0, **VERSIONS[name])
    year = 2020 if name == "plugin" else 2200
    first = first.model_copy(update={"written": first.written.replace(year=year)})
    made = [record("scratch", **VERSIONS[name]), first, newest]
    table = one(made, measured=True)
    assert set(table.cells.xs("Mine", level="Method").iloc[0]) == {"50.00 (1)", "60.00 (1)"}
    assert table.notes[-1] == f"Not shown: 1 results of another {name} (--where {name}=*)."
    both = one(made[1:], where={name: "*"}, measured=True)
    shown = [text for text in both.cells.to_numpy().ravel() if text != NONE]
    assert sorted(shown) == ["40.00 (1)", "50.00 (1)", "50.00 (1)", "60.00 (1)"]
    text = f"{name.replace('_', ' ')} {newest.model_dump()['cell'][name]}"
    labels = [*both.cells.index.get_level_values("Method"), *(name[2] for name in both.cells)]
    assert sum(text in label for label in labels) in (1, 2)


def test_data_of_different_content_are_told_apart():
    made = [record("tespec"), record("tespec", seed=1, data_fingerprint="f" * 12)]
    labels = {label[2] for label in one(made, measured=True).cells.columns}
    assert len(labels) == 2
    assert any("data fingerprint ffffffff" in label for label in labels)
    made = [
        record("tespec", seed=seed, start=pretraining(), weights={"data_fingerprint": name})
        for seed, name in enumerate("ab")
    ]
    index = one(made, measured=True).cells.index
    assert [label[1] for label in index] == [
        "Tespec, pretraining fingerprint a",
        "Tespec, pretraining fingerprint b",
    ]


def test_rows_of_different_machines_say_so():
    other = {"device": "NVIDIA H100", "cpu": "B"}
    table = one([record(), record("tespec"), record("moby", environment=other)])
    assert column(table, "DDD17", "mIoU ↑", MEASURED) == {
        ("Scratch", "yes"): "40.00 (1)",
        ("Tespec", "yes"): "40.00 (1)",
        ("Moby", "yes"): "40.00 (1)ᵃ",
    }
    assert "Measured on different machines: ᵃ NVIDIA H100; unmarked: A, 1 threads." in table.notes


def test_each_of_many_machines_has_a_mark_of_its_own():
    made = [
        record(seed=seed, environment={"cpu": f"C{seed:03}", "threads": 1}) for seed in range(300)
    ]
    (note,) = [note for note in one(made).notes if note.startswith("Measured on")]
    marks = [
        part.split()[0]
        for part in note.removeprefix("Measured on different machines: ").split("; ")
    ]
    assert len(set(marks)) == 300


def test_weights_of_the_sample_world_never_stand_in_a_row_or_column_of_the_paper():
    """They are named by network and data, below the published row of their method."""
    start = pretraining(profile="demo", backbone="swin_micro")
    facts = {"title": "TESPEC", "group": "TESPEC", "backbone": "Swin-T/7"}
    real = {"data": "ddd17", "profile": "paper"}
    narrow = record("tespec", start=start, backbone="swin_micro", facts=facts, **real)
    table = one([narrow])
    labels = [label[1:] for label in table.cells.index]
    position = labels.index(("TESPEC", "swin_micro", "yes", "1Mpx (sample world, demo)"))
    assert labels[position - 1] == ("TESPEC (Ours)", "Swin-T/7", "yes", "1Mpx")
    measured = table.cells.iloc[position]
    assert list(measured[measured != NONE].index) == [
        ("DDD17", metric, "measured (ddd17, paper, full)") for metric in ("mIoU ↑", "mAcc ↑")
    ]
    paper = table.cells.iloc[position - 1]
    assert all("published" in name[2] for name in paper[paper != NONE].index)


@pytest.mark.parametrize("method", ["ecddp", "tespec", "scratch"])
def test_no_measured_row_wears_a_published_mark(method):
    facts = {"title": "ECDDP", "group": "", "backbone": "Swin-T/7"}
    for arch in ("recurrent", "feedforward"):
        (label,) = column(one([record(method, arch, facts=facts)]), "DDD17", "mIoU ↑", MEASURED)
        assert label[0] == "ECDDP"
    notes = one([record(method)], measured=True).notes
    assert not any(note[1:2] == " " for note in notes)


def test_methods_that_the_paper_lacks_have_rows_behind_its_own():
    made = [
        record("mine", backbone="swin_micro"),
        record("mine", "feedforward"),
        record("tespec", "feedforward"),
        record("other", facts=record("mine").facts),
    ]
    index = [label[:4] for label in one(made).cells.index]
    assert [label for label in index if label[0] != "Other publications"][-4:] == [
        ("", "Tespec", "Swin-T/7", "no"),
        ("Mine", "Mine, method mine", "Swin-T/7", "no"),
        ("Mine", "Mine, method mine", "swin_micro", "yes"),
        ("Mine", "Mine, method other", "Swin-T/7", "yes"),
    ]


def test_three_seeds_from_three_files_are_one_cell_of_three_runs():
    files = [
        record(
            "mine",
            seed=seed,
            miou=50.0 + seed,
            start="own weights",
            pretraining=f"{seed}" * 64,
            start_sha256=str(seed),
        )
        for seed in range(3)
    ]
    scratch = [record(seed=seed, miou=40.0 + 2 * seed) for seed in range(3)]
    table = one([*files, *scratch], measured=True)
    row = table.cells.xs("Mine", level="Method")
    assert row["DDD17", "mIoU ↑", MEASURED].tolist() == ["51.00 ± 1.00 (3)"]
    assert row.index.get_level_values("Pre-training").tolist() == ["own weights"]
    (gain,) = gains_table(to_frame([*files, *scratch]), "scratch").data.to_dict("records")
    assert (gain["mean"], gain["n"], gain["note"]) == (pytest.approx(9.0), 3, "")


def test_a_positive_control_is_a_reference_and_not_ranked():
    made = [record(name, miou=miou, frozen=True) for name, miou in (("scratch", 20), ("mine", 30))]
    control = record("control", kind="control", miou=70, frozen=True, start=made[0].cell)
    frozen = {"evaluation": "frozen"}
    table = one([*made, control], where=frozen, measured=True)
    assert any("keep their random values" in note for note in table.notes)
    label = next(label for label in table.cells.index if "Control" in label)
    assert (label[0], table.cells.index[-1]) == ("References", label)
    assert table.bold.any(axis=1).tolist() == [label[1] == "Mine" for label in table.cells.index]
    gains = gains_table(to_frame([*made, control]), "scratch", frozen)
    assert [row["method"] for row in gains.data.to_dict("records")] == ["mine"]


def test_few_labels_and_frozen_backbones_stand_beside_the_published_numbers():
    made = [
        record("mine", miou=30.0),
        record("mine", miou=10.0, label_fraction=0.01),
        record("mine", miou=5.0, frozen=True),
    ]
    frame = to_frame(made)

    def texts(source, **options):
        cells = one(frame, **options).cells
        rows = [
            label[1] in ("ScaleEvent§¶", "Mine") and label[2] != "ViT-L" for label in cells.index
        ]
        columns = [name[:2] == ("DDD17", "mIoU ↑") and source in name[2] for name in cells.columns]
        return [text for text in cells.loc[rows, columns].to_numpy().ravel() if text != NONE]

    assert texts("published") == ["59.64", "62.81"]
    assert texts("published", where={"label_fraction": "0.01"}) == ["57.23"]
    assert texts("published", where={"label_fraction": "0.05"}) == ["59.54"]  # not measured
    # The other tables have no published or measured result with so few labels.
    assert [
        table.data["table"].iloc[0]
        for table in make_tables(frame, where={"label_fraction": "0.01"})
        if "ablation" not in table.name
    ] == ["segmentation", "depth"]
    assert texts("measured", where={"label_fraction": "0.01"}) == ["10.00 (1)"]
    assert texts("published", where={"frozen": "True"}) == ["57.87"]
    assert texts("measured", where={"frozen": "True"}) == ["5.00 (1)"]
    assert texts("published (frozen)", where={"evaluation": "frozen"}) == ["57.87"]
    assert texts("measured", by="label_fraction") == ["10.00 (1)", "30.00 (1)"]
    assert sorted(texts("published", by="label_fraction")) == sorted(
        ["59.64", "57.23", "59.54", "61.45", "62.06", "62.81"]
    )
    # Wildcards apply to published numbers as to measured ones.
    assert sorted(texts("published", where={"label_fraction": "*"})) == sorted(
        texts("published", by="label_fraction")
    )
    assert texts("published (1 % of labels)", where={"label_fraction": "*"}) == ["57.23"]
    assert any(note.startswith("§ its pre-training sees images") for note in one(made).notes)


def test_a_task_of_ones_own_has_a_table_with_its_own_metrics():
    scores = {"err": {"title": "Error", "better": "lower", "unit": "px"}}
    made = [record(task="my task", metrics={"err": 0.5, "extra": 1.0}, scores=scores)]
    table = one(made, "task_my_task")
    assert list(table.cells.columns) == [("my task", "Error (px) ↓", MEASURED)]
    assert table.cells.to_numpy().tolist() == [["0.500 (1)"]]
    assert one([record(task="x", scores={})], "task_x").cells.shape == (1, 2)


# Ablations.


def measured_of(table, metric="mIoU ↑"):
    """Measured texts of an ablation by source and row."""
    return {
        (name[2], label[0]): text
        for name, texts in table.cells.items()
        for label, text in texts.items()
        if name[1] == metric and text != NONE and name[2] != "published"
    }


def test_an_ablation_finds_its_rows_by_their_settings():
    made = [
        record("tespec", start=pretraining()),
        record("tespec", miou=50.0, start=RATIO),
        record("tespec", miou=9.0, start=pretraining(overrides={**RATIO.overrides, "bins": 5})),
        record("moby", start=RATIO),
        record("tespec", "feedforward", start="own weights"),
    ]
    table = one(made, "ablation_masking")
    assert measured_of(table) == {
        (MEASURED, "25%"): "50.00 (1)",
        (MEASURED, "50% (default)"): "40.00 (1)",
    }
    index = table.cells.index.tolist()
    assert index[1:3] == [
        ("25%", "Swin-T/7", "yes", "1Mpx"),
        ("25%", "Swin-T/7", "yes", "1Mpx (sample world, sample)"),
    ]
    # A record with changed settings is not in the comparison.
    assert column(one(made), "DDD17", "mIoU ↑", MEASURED)["Tespec", "yes"] == "40.00 (1)"
    assert "ablation_memory" not in [table.name for table in make_tables(to_frame(made))]


def test_two_ablations_that_share_a_row_both_show_it():
    """The paper has Eq. 6 in two tables, on two data sets."""
    start = pretraining(overrides={"objective.target.kind": "high_pass"})
    made = [record("tespec", miou=50.0, start=start), record("tespec", start=pretraining())]
    for name in ("ablation_target", "ablation_target_ddd17"):
        assert measured_of(one(made, name))[MEASURED, "Eq. 6"] == "50.00 (1)"


def test_an_ablation_by_factors_finds_the_settings_of_the_profile():
    steps = pretraining(profile="paper", overrides={"optimisation.steps": 200_000})
    wrong = pretraining(profile="paper", overrides={"optimisation.steps": 200_001})
    made = [
        record("tespec", miou=50.0, start=steps),
        record("tespec", miou=60.0, start=wrong),
        record("tespec", start=pretraining(profile="paper")),
    ]
    assert measured_of(one(made, "ablation_steps")) == {
        (MEASURED, "200k"): "50.00 (1)",
        (MEASURED, "400k (default)"): "40.00 (1)",
    }


def test_a_version_of_the_objective_is_not_a_setting_and_versions_have_rows_of_their_own():
    starts = [
        pretraining(overrides={"objective": "ecddp", "objective_version": version})
        for version in (2, 3)
    ]
    made = [record("tespec", miou=50.0, start=starts[0]), record("tespec", start=pretraining())]
    assert measured_of(one(made, "ablation_objective"))[MEASURED, "ECDDP"] == "50.00 (1)"
    both = measured_of(one([*made, record("tespec", start=starts[1])], "ablation_objective"))
    assert sorted(both.values()) == ["40.00 (1)", "40.00 (1)", "50.00 (1)"]
    assert sum("objective_version=3" in label for _, label in both) == 1


def test_rows_of_an_ablation_name_their_network():
    narrow = {"backbone": "swin_micro"}
    made = [
        record("tespec", miou=50.0, start=RATIO),
        record("tespec", start=pretraining()),
        record(
            "tespec", miou=30.0, start=pretraining(overrides=RATIO.overrides, **narrow), **narrow
        ),
        record("tespec", miou=20.0, start=pretraining(**narrow), **narrow),
    ]
    table = one(made, "ablation_masking", measured=True)
    texts = table.cells["DDD17", "mIoU ↑", MEASURED]
    assert {label[:2]: text for label, text in texts.items()} == {
        ("25%", "Swin-T/7"): "50.00 (1)",
        ("25%", "swin_micro"): "30.00 (1)",
        ("50% (default)", "Swin-T/7"): "40.00 (1)",
        ("50% (default)", "swin_micro"): "20.00 (1)",
    }
    # The default of another network is no row of the ablation.
    table = one([*made[:2], made[3]], "ablation_masking", measured=True)
    assert [label[1] for label in table.cells.index] == ["Swin-T/7"] * 2


def test_a_deliberate_number_of_seeds_of_an_ablation_is_not_marked():
    def made(start, count):
        return [record("tespec", seed=seed, start=start, pretraining=0) for seed in range(count)]

    other = pretraining(overrides={"objective.mask.ratio": 0.75})
    default = made(pretraining(), 5)
    texts = measured_of(one([*default, *made(RATIO, 3)], "ablation_masking"))
    assert texts[MEASURED, "25%"] == "40.00 ± 0.00 (3)"
    assert texts[MEASURED, "50% (default)"] == "40.00 ± 0.00 (5)"
    # Among each other, rows of an ablation are complete or not, and so are those of a comparison.
    texts = measured_of(one([*default, *made(RATIO, 3), *made(other, 2)], "ablation_masking"))
    assert texts[MEASURED, "75%"] == "40.00 ± 0.00 (2 of 3)"
    seeds = [record(seed=seed) for seed in range(6)]
    assert column(one([*default, *seeds]), "DDD17", "mIoU ↑", MEASURED) == {
        ("Scratch", "yes"): "40.00 ± 0.00 (6)",
        ("Tespec", "yes"): "40.00 ± 0.00 (5 of 6)",
    }


# Selections.


def test_values_side_by_side_are_in_the_order_of_numbers():
    made = [record(seed=seed, miou=float(seed)) for seed in (10, 9, 2)]

    def levels(source, by):
        columns = one(made, by=by).cells.columns
        return [
            name[3] for name in columns if name[:2] == ("DDD17", "mIoU ↑") and source in name[2]
        ]

    assert levels("measured", "seed") == ["2", "9", "10"]
    assert levels("published", "label_fraction") == ["0.01", "0.05", "0.1", "0.2", "1"]


def test_a_note_on_what_is_not_shown_stands_in_the_tables_of_its_task_alone():
    made = [
        *(record(method, seed=seed) for method in ("scratch", "tespec") for seed in range(2)),
        depth_record("scratch", 5.0, split="val"),
        record("tespec", start=RATIO, split="val", pretraining=0),
    ]
    notes = {table.name: " ".join(table.notes) for table in make_tables(to_frame(made))}
    noted = {name for name, text in notes.items() if "Not shown" in text}
    assert noted == {"segmentation", "depth"}
    assert "Not shown: 1 results with split val" in notes["depth"]
    assert "Not shown: 1 results with split val" in notes["segmentation"]


def test_files_of_own_weights_in_one_cell_are_named():
    made = [
        record("mine", seed=seed, start="own weights", pretraining=name * 64, start_sha256=name)
        for seed, name in enumerate("ab")
    ]
    assert (
        "Mine: files aaaaaaaa, bbbbbbbb of own weights count as draws of one pre-training; "
        "their settings are unknown."
    ) in one(made).notes
    assert not any("own weights" in note for note in one(made[:1]).notes)


def test_plug_in_files_that_differ_within_a_task_of_ones_own_are_named():
    """One of them may have changed the task."""
    made = [record("a", task="x", plugin="1" * 12), record("b", task="x", plugin="2" * 12)]
    note = (
        "Plug-in files differ, and with them perhaps the task: 111111111111 (A), 222222222222 (B)."
    )
    assert note in one(made, "task_x").notes
    assert note not in one([made[0], record("b", task="x")], "task_x").notes


def test_a_row_without_a_fact_that_others_have_says_so():
    made = [record("mine"), record("mine", seed=1, plugin="f" * 12)]
    index = one(made, where={"plugin": "*"}, measured=True).cells.index
    assert [label[1] for label in index] == ["Mine, no plugin", "Mine, plugin ffffffffffff"]


@pytest.mark.parametrize(
    ("options", "name", "caption"),
    [
        ({}, "segmentation", "Semantic segmentation"),
        (
            {"measured": True},
            "segmentation_measured",
            "Semantic segmentation, measured rows",
        ),
        (
            {"measured": True, "where": {"method": "tes*"}, "by": "seed"},
            "segmentation_measured_method-tes__by_seed",
            "Semantic segmentation, measured rows; method = tes*; by seed",
        ),
    ],
)
def test_a_selection_has_a_file_name_and_a_caption_of_its_own(options, name, caption):
    table = one([record("tespec")], **options)
    assert (table.name, table.title) == (name, caption)


def test_a_skipped_record_is_named_in_the_notes_of_each_table(tmp_path):
    write_record(record("tespec"), tmp_path)
    write_record(record("scratch"), tmp_path)
    (tmp_path / "runs" / "torn.json").write_text("{")
    frame = results(tmp_path)
    for table in [*make_tables(frame), gains_table(frame, "scratch")]:
        assert any(note.startswith("Skipped 1 damaged records: ") for note in table.notes)
        assert "torn.json" in " ".join(table.notes)


# Gains.


@pytest.mark.parametrize(
    ("changes", "where", "text"),
    [
        ({"method_version": 2}, "method_version", "Moby, method version 2"),
        ({"plugin": "f" * 12}, "plugin", "Moby, plugin ffffffffffff"),
        (
            {"start": pretraining("moby", overrides={"lr": 1})},
            "pretraining_overrides",
            "Moby, lr=1",
        ),
        ({"start": "own weights", "pretraining": "f" * 64}, "weights", "Moby"),
    ],
)
def test_gains_of_several_versions_have_rows_of_their_own(changes, where, text):
    made = [record(seed=seed, miou=40.0) for seed in range(2)]
    made += [record("moby", seed=seed, miou=50.0 + seed) for seed in range(2)]
    made += [
        record("moby", seed=seed, miou=20.0 + seed, start_sha256="b", **changes)
        for seed in range(2)
    ]
    cells = gains_table(to_frame(made), "scratch", {where: "*"}).cells
    gains = dict(
        zip(cells.index.get_level_values("Method") + ", " + cells.index.get_level_values(5),
            cells["gain"], strict=True)
    )  # fmt: skip
    assert sorted(gains.values()) == ["+10.500", "-19.500"]
    assert [label.startswith(text) for label, gain in gains.items() if gain == "-19.500"] == [True]


def test_gains_over_a_method_of_several_versions_are_over_the_highest():
    first = [record(seed=seed, miou=20.0 + seed) for seed in range(2)]
    highest = [record(seed=seed, miou=40.0 - seed, method_version=2) for seed in range(2)]
    highest = [older(run) for run in highest]
    cells = gains_table(to_frame([*first, *highest]), "scratch", {"method_version": "*"}).cells
    assert cells["gain"].tolist() == ["-19.000"]


def test_gains_without_a_partner_name_what_is_not_shown():
    made = [record("scratch"), record("tespec", overrides={"rule": "rvt"})]
    with pytest.raises(
        UserError, match=r"no other method.*\(Not shown: 1 results with overrides rule=rvt"
    ):
        gains_table(to_frame(made), "scratch")


def test_gains_are_paired_by_seed_and_turned_for_errors():
    made = [depth_record("scratch", error, seed) for seed, error in enumerate((5.0, 6.0, 7.0, 9.0))]
    # without the fourth seed of scratch
    made += [depth_record("tespec", 4.0, seed) for seed in range(3)]
    made += [depth_record("moby", 5.0, seed, environment={"device": "cuda"}) for seed in range(2)]
    made += [record("tespec", seed=0), record("scratch", seed=1), record("mine", "feedforward")]
    data = gains_table(to_frame(made), "scratch").data.set_index(["task", "method"])
    assert data["n"].to_dict() == {
        ("ddd17", "mine"): 0,
        ("ddd17", "tespec"): 0,
        ("mvsec", "moby"): 2,
        ("mvsec", "tespec"): 3,
    }
    assert data.loc[("mvsec", "tespec"), "mean"] == pytest.approx(2.0)
    assert data["note"].to_dict() == {
        ("ddd17", "mine"): "no scratch with Swin-T/7",
        ("ddd17", "tespec"): "no common seed",
        ("mvsec", "moby"): "another machine",
        ("mvsec", "tespec"): "",
    }
    assert data["p_holm"].max() == pytest.approx(min(1, data["p"].max()))


def test_gains_of_one_network_do_not_depend_on_those_of_another():
    """A variance between pre-trainings that is shared by unequal networks gives wrong intervals."""

    def made(backbone, spread):
        scratch = [record(seed=seed, miou=40.0 + seed % 2, backbone=backbone) for seed in range(3)]
        return scratch + [
            record(
                "tespec",
                seed=seed,
                backbone=backbone,
                miou=50.0 + spread * start + 0.3 * seed * start + seed,
                start=pretraining(backbone=backbone),
                pretraining=start,
                start_sha256=str(start),
            )
            for seed in range(3)
            for start in range(2)
        ]

    def interval(records):
        data = gains_table(to_frame(records), "scratch").data.set_index("backbone")
        return data.loc["swin_tiny", ["low", "high"]].tolist()

    quiet, noisy = made("swin_tiny", 0.1), made("resnet50", 20.0)
    assert interval([*quiet, *noisy]) == pytest.approx(interval(quiet))


def test_p_values_are_corrected_within_each_evaluation():
    made = [
        record(method, seed=seed, miou=miou + (seed * k) % 3, frozen=frozen)
        for frozen in (False, True)
        for k, (method, miou) in enumerate({"scratch": 40.0, "moby": 44.0, "tespec": 43.0}.items())
        for seed in range(4)
    ]
    both = gains_table(to_frame(made), "scratch", {"evaluation": "*"}).data
    alone = gains_table(to_frame(made), "scratch").data
    assert both["p_holm"].tolist() == [*alone["p_holm"], *alone["p_holm"]]
    assert (alone["p_holm"] > alone["p"]).any()


def test_evaluations_are_compared_by_the_rankings_of_their_methods():
    made = [
        record(f"m{number}", seed=seed, miou=10.0 * number + (number * seed) % 3, frozen=frozen)
        for number in range(4)
        for seed in range(3)
        for frozen in (False, True)
    ]
    lines = compare_evaluations(to_frame(made), ("full", "frozen"))
    assert lines[0].startswith(
        "ddd17, Swin-T/7, recurrent (sample, sample, full) against frozen: tau-b 1.000 ["
    )
    assert "4 methods" in lines[0]
    with pytest.raises(UserError, match="no network has both evaluations; there are: frozen, full"):
        compare_evaluations(to_frame(made), ("full", "5 % of labels"))


# What each format shows of a measured number.


def shown_rows(table, style):
    """Row labels and texts of the rows of a table in a format, as one text for each row."""
    text = getattr(export, f"to_{style}")(table)
    text = re.sub(r"\\([_%])", r"\1", text).replace(r"$\uparrow$", "↑")
    if style == "csv":
        return [" | ".join(row) for row in csv.reader(io.StringIO(text))]
    if style == "html":
        return re.findall(r"<tr.*?</tr>", text, re.DOTALL)
    return text.splitlines()


@pytest.fixture(scope="module")
def measured_tables(sample):
    return [*make_tables(sample, measured=True), gains_table(sample, "scratch")]


@pytest.mark.parametrize("style", ["csv", "latex", "markdown", "html"])
def test_each_measured_row_names_network_pretraining_data_evaluation_and_runs(
    measured_tables, style
):
    for table in measured_tables:
        lines = shown_rows(table, style)
        everything = "\n".join(lines)
        assert re.search(r"sample, study, full", everything)
        for label in table.cells.index:
            names = label[1:] if table.cells.index.names[0] == "Group" else label
            (line, *_) = (line for line in lines if all(name in line for name in names))
            assert "sample world" in line or "No Pre-training" in line or "Label prior" in line
            assert re.search(r"swin|resnet|Label prior", line)
            assert re.search(r"\(\d+\)", line) or "gains" in table.name


def test_gains_are_of_one_metric():
    records = [record("scratch", seed=seed, miou=40.0 + seed) for seed in range(3)]
    other = {"scores": {"error": {"title": "Error", "better": "lower", "unit": "m"}}}
    records += [record("moby", seed=seed, metrics={"error": 4.0}, **other) for seed in range(3)]
    (row,) = gains_table(to_frame(records), "scratch").data.to_dict("records")
    assert pd.isna(row["mean"])
    assert row["note"] == "no scratch with Swin-T/7"


def test_gains_say_over_which_of_several_baselines_they_are():
    records = [record("scratch", seed=seed, miou=40.0 + seed) for seed in range(3)]
    starts = [pretraining(), pretraining(profile="paper")]
    records += [
        record("tespec", seed=seed, miou=41.0 + seed, start=start, pretraining=0)
        for seed in range(3)
        for start in starts
    ]
    data = gains_table(to_frame(records), "tespec").data
    assert len(data) == 2
    assert all("over Tespec, 1Mpx (sample world" in note for note in data["note"])

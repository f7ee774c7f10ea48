import pandas as pd
import pytest
from made_records import record

import tespec
from tespec.comparison.export import to_csv
from tespec.comparison.frame import to_frame
from tespec.comparison.published import published_frame, read_ablations, read_published, titles_of
from tespec.comparison.records import RESULTS_VERSION
from tespec.comparison.tables import (
    ACCUMULATED,
    NONE,
    PARTIAL,
    SEVERAL,
    SINGLE,
    gains_table,
    make_tables,
)
from tespec.core.errors import UserError
from tespec.core.paths import REPOSITORY

MEASURED = "measured (sample, sample)"


def one(records, name="segmentation", **options):
    (table,) = make_tables(to_frame(records), only=[name], **options)
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


@pytest.fixture(scope="module")
def sample():
    return tespec.results(REPOSITORY / "results" / "sample")


@pytest.mark.parametrize("name", ["detection", "segmentation", "depth"])
def test_every_published_number_is_in_the_table_and_its_csv(sample, name, tmp_path):
    (table,) = make_tables(sample, only=[name])
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
                number.title + number.mark,
                number.backbone,
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
    methods = (found["title"] + found["mark"])[~found["order"].duplicated()].tolist()
    labels = [
        label
        for label in table.cells.index
        if label[0] != "Other publications" and label[2] != "resnet_micro"
    ]
    assert [label[1] for label in labels if label[1] in methods] == methods


def test_every_published_number_of_the_ablations_is_in_its_table(sample):
    tables = [table.cells for table in make_tables(sample) if table.name.startswith("ablation_")]
    texts = [
        text for cells in tables for name in cells if name[2] == "published" for text in cells[name]
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
            record(
                "prior",
                "feedforward",
                kind="reference",
                miou=70.0,
                facts={"title": "Prior", "backbone": "-"},
            ),
        ]
    )
    assert column(table, "DDD17", "mIoU ↑", MEASURED) == {
        ("No Pre-training", "yes"): "41.00 ± 1.00 (3)",
        ("TESPEC (Ours)", "yes"): "60.50 ± 0.71 (2 of 3)",
        ("MoBY", "yes"): "41.00 (1 of 3)",
        ("RGB Supervised", "yes"): "not finite (2 of 3)",
        ("Prior", "no"): "70.00 (1)",
    }
    bold = table.bold["DDD17", "mIoU ↑", MEASURED]
    # The best mean of the methods is bold; references and non-finite means are excluded.
    assert [label[1] for label in bold.index[bold]] == ["TESPEC (Ours)"]


def test_means_over_fewer_classes_or_recordings_than_there_are_say_so():
    """Also where all rows lack the same class; only the affected metric is annotated."""
    partial = "all mean_class_acc: 2 of 3 classes; moving miou: 1 of 3 frames"
    made = [record("tespec", seed=seed, protocol={"partial means": partial}) for seed in range(2)]
    table = one(made)
    for metric, text in (
        ("mIoU ↑", "40.00 ± 0.00 (2)"),
        ("mAcc ↑", "50.00 ± 0.00 (2, 2 of 3 classes)"),
    ):
        assert column(table, "DDD17", metric, MEASURED) == {("TESPEC (Ours)", "yes"): text}
    assert PARTIAL in table.notes
    assert PARTIAL not in one([record("tespec")]).notes
    assert to_frame(made)["partial"].tolist() == ["", "2 of 3 classes"] * 2


@pytest.mark.parametrize("of", ["overrides", "pretraining_overrides"])
def test_gradient_accumulation_leaves_the_default_tables_and_is_noted_in_others(of):
    recipe = {"dataset": "1mpx", "data": "sample", "overrides": {"accumulate": 2}}
    change = (
        {"overrides": {"accumulate": 2}} if of == "overrides" else {"weights": {"recipe": recipe}}
    )
    made = [record("scratch"), record("tespec", **change)]
    default, shown = one(made), one(made, where={of: "*"})
    assert ("TESPEC (Ours)", "yes") not in column(default, "DDD17", "mIoU ↑", MEASURED)
    assert ACCUMULATED not in default.notes
    assert f"Not shown: 1 results with {of} " in default.notes[-1]
    assert "accumulate=2" in " ".join(shown.cells.columns.get_level_values(2))
    assert ACCUMULATED in shown.notes
    assert ACCUMULATED in gains_table(to_frame(made), "scratch", {of: "*"}).notes


def test_errors_are_best_where_they_are_lowest_and_one_row_is_not_the_best():
    made = [depth_record("scratch", 5.0), depth_record("tespec", 4.0)]
    bold = one(made, "depth").bold["MVSEC", "Abs ↓", MEASURED]
    assert [label[1] for label in bold.index[bold]] == ["TESPEC (Ours)"]
    assert not one(made[:1], "depth").bold["MVSEC", "Abs ↓", MEASURED].any()


@pytest.mark.parametrize(
    ("changes", "where", "label"),
    [
        ({"profile": "smoke"}, {}, "measured (sample, smoke)"),
        ({"data": "ddd17", "data_fingerprint": "f" * 12}, {}, "measured (ddd17, sample)"),
        ({"split": "val"}, {"split": "*"}, "measured (sample, sample, val split)"),
        (
            {"config": {"label_fraction": 0.05}},
            {"label_fraction": "*"},
            "measured (sample, sample, 5 % of labels)",
        ),
        ({"overrides": {"a.b": 1}}, {"overrides": "*"}, "measured (sample, sample, a.b=1)"),
    ],
)
def test_different_settings_never_share_a_column(changes, where, label):
    made = [record(miou=40.0), record(seed=1, miou=50.0, **changes)]
    table = one(made, where=where)
    assert list(column(table, "DDD17", "mIoU ↑", MEASURED).values()) == ["40.00 (1)"]
    assert list(column(table, "DDD17", "mIoU ↑", label).values()) == ["50.00 (1)"]
    if where:
        shown = one(made)
        assert label not in shown.cells.columns.get_level_values(2)
        assert f"Not shown: 1 results with {next(iter(where))}" in shown.notes[-1]


def test_columns_that_differ_in_nothing_named_say_what_they_differ_in():
    table = one(
        [record(), record(seed=1, data_fingerprint="f" * 12), record(seed=2, task_version=2)]
    )
    labels = {label[2] for label in table.cells.columns if label[0] == "DDD17"} - {"published"}
    assert len(labels) == 3
    assert any("data_fingerprint ffffffff" in label for label in labels)
    recipes = (
        {"dataset": "1mpx", "data": "sample", "profile": "sample", "data_fingerprint": fingerprint}
        for fingerprint in "ab"
    )
    made = [
        record("tespec", seed=seed, weights={"recipe": recipe})
        for seed, recipe in enumerate(recipes)
    ]
    assert (
        len({label[2] for label in one(made, where={"weights": "*"}, measured=True).cells.columns})
        == 2
    )


def test_the_newest_results_version_is_shown_and_older_ones_have_a_column_of_their_own():
    newer = {"results_version": RESULTS_VERSION + 1}
    made = [
        record(miou=50.0).model_copy(update=newer),
        record(miou=40.0),
        record(seed=1, miou=44.0),
    ]
    label = f"{MEASURED[:-1]}, results version {RESULTS_VERSION + 1})"
    assert list(column(one(made), "DDD17", "mIoU ↑", label).values()) == ["50.00 (1)"]
    assert (
        "Not shown: 2 results of an older results_version (--where results_version=*)."
        in one(made).notes
    )
    both = one(made, where={"results_version": "*"})
    assert list(column(both, "DDD17", "mIoU ↑", MEASURED).values()) == ["42.00 ± 2.83 (2)"]


@pytest.mark.parametrize(
    "choice", [{"plugin": "f" * 12}, {"method_version": 2}, {"weights": {"sha256": "ff"}}]
)
def test_of_several_versions_of_a_method_the_newest_is_shown(choice):
    older = record("mine", miou=40.0)
    newer = record("mine", miou=50.0, **choice).model_copy(
        update={"written": older.written.replace(year=2200)}
    )
    table = one([older, newer, record("scratch", miou=30.0)])
    assert column(table, "DDD17", "mIoU ↑", MEASURED)["Mine", "yes"] == "50.00 (1)"
    name = next(iter(choice))
    assert table.notes[-1].startswith(f"Not shown: 1 results of an older {name} (--where {name}=*)")
    both = one([older, newer], where={name: "*"}, measured=True)
    shown = [text for text in both.cells.iloc[0] if text != NONE]
    assert sorted(shown) == ["40.00 (1)", "50.00 (1)", "50.00 (1)", "60.00 (1)"]
    assert all(f"{name} " in label[2] for label in both.cells.columns)


def test_rows_of_different_machines_say_so():
    other = {"device": "NVIDIA H100", "cpu": "B"}
    table = one([record(), record("tespec"), record("moby", environment=other)])
    cells = column(table, "DDD17", "mIoU ↑", MEASURED)
    assert cells == {
        ("No Pre-training", "yes"): "40.00 (1)",
        ("TESPEC (Ours)", "yes"): "40.00 (1)",
        ("MoBY", "yes"): "40.00 (1)ᵃ",
    }
    assert "Measured on different machines: ᵃ NVIDIA H100; unmarked: A, 1 threads." in table.notes


def test_methods_that_the_paper_lacks_have_rows_behind_its_own():
    made = [
        record("mine"),
        record("mine", "feedforward", facts=record("mine").facts | {"backbone": "Mine"}),
        record("tespec", "feedforward"),
        record("other", facts=record("mine").facts),
    ]
    index = [label[:4] for label in one(made).cells.index]
    assert [label for label in index if label[0] != "Other publications"][-4:] == [
        ("", "Tespec", "Swin-T/7", "no"),
        ("Mine", "Mine (mine)", "Mine", "no"),
        ("Mine", "Mine (mine)", "Swin-T/7", "yes"),
        ("Mine", "Mine (other)", "Swin-T/7", "yes"),
    ]


@pytest.mark.parametrize(
    ("measured", "label"), [(False, "1Mpx (measured: DDD17)"), (True, "DDD17")]
)
def test_a_row_says_if_its_measured_pretraining_saw_other_data(measured, label):
    made = [record("tespec", weights={"recipe": {"dataset": "ddd17", "data": "sample"}})]
    rows = [
        names for names in one(made, measured=measured).cells.index if names[1] == "TESPEC (Ours)"
    ]
    assert [names[-1] for names in rows] == [label]


def test_few_labels_and_frozen_backbones_stand_beside_the_published_numbers():
    few, frozen = {"label_fraction": 0.01}, {"freeze": True}
    made = [
        record("mine", miou=30.0),
        record("mine", miou=10.0, config=few, overrides=few),
        record("mine", miou=5.0, config=frozen, overrides=frozen),
    ]

    def texts(source, **options):
        cells = one(made, **options).cells
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
        table.name
        for table in make_tables(to_frame(made), where={"label_fraction": "0.01"}, measured=False)
        if not table.name.startswith("ablation")
    ] == ["segmentation", "depth"]
    assert texts("measured", where={"label_fraction": "0.01"}) == ["10.00 (1)"]
    assert texts("published", where={"frozen": "True"}) == ["57.87"]
    assert texts("measured", where={"frozen": "True"}) == ["5.00 (1)"]
    assert texts("measured", by="label_fraction") == ["10.00 (1)", "30.00 (1)"]
    assert texts("published", by="label_fraction") == [
        "59.64",
        "57.23",
        "59.54",
        "61.45",
        "62.06",
        "62.81",
    ]
    # Wildcards apply to published numbers as to measured ones.
    assert sorted(texts("published", where={"label_fraction": "*"})) == sorted(
        texts("published", by="label_fraction")
    )
    assert texts("published (1 % of labels)", where={"label_fraction": "*"}) == ["57.23"]
    assert texts("published", where={"frozen": "*"}) == ["59.64", "62.81", "57.87"]
    assert texts("published (frozen backbone)", where={"frozen": "[FT]*"}) == ["57.87"]
    assert any(note.startswith("§ its pre-training sees images") for note in one(made).notes)
    # only marks in use are explained
    assert not any(note[1] == " " for note in one(made, measured=True).notes)


def test_test_time_augmentation_chooses_the_published_row():
    augmented = {"test_time_augmentation": "flip"}
    made = [
        record("ecddp", "feedforward", task="dsec", overrides=overrides)
        for overrides in ({}, augmented)
    ]
    table = one(made, where={"overrides": "*"}, measured=True)
    assert [label[1] for label in table.cells.index] == ["ECDDP†", "ECDDP‡"]


def test_a_task_of_ones_own_has_a_table_with_its_own_metrics():
    scores = {"err": {"title": "Error", "better": "lower", "unit": "px"}}
    made = [record(task="my task", metrics={"err": 0.5, "extra": 1.0}, scores=scores)]
    table = one(made, "task_my_task")
    assert list(table.cells.columns) == [("my task", "Error (px) ↓", MEASURED)]
    assert table.cells.to_numpy().tolist() == [["0.500 (1)"]]
    assert one([record(task="x", scores={})], "task_x").cells.shape == (1, 2)


def test_an_ablation_finds_its_rows_by_their_variant():
    recipe = {"recipe": {"overrides": {"objective.mask.ratio": 0.25}}}
    made = [
        record("tespec"),
        record("tespec", miou=50.0, weights=recipe, variant="masking: 25%", start_sha256="a"),
        record("tespec", miou=9.0, weights=recipe, start_sha256="b"),
        record("moby", variant="masking: 0%"),
    ]
    table = one(made, "ablation_masking")
    assert table.cells["DDD17", "mIoU ↑", MEASURED].to_dict() == {
        "0%": NONE,
        "25%": "50.00 (1)",
        "50% (default)": "40.00 (1)",
        "75%": NONE,
    }
    # A record with changed settings but no variant is in neither the ablation nor the comparison.
    assert list(column(one(made), "DDD17", "mIoU ↑", MEASURED).values()) == ["40.00 (1)"]
    assert "ablation_memory" not in [table.name for table in make_tables(to_frame(made))]


def test_rows_of_one_variant_that_differ_in_more_have_columns_of_their_own():
    """The row names the variant alone, so backbone and further settings are in the column."""

    def made(miou, variant="masking: 25%", backbone="Swin-T/7", **more):
        weights = {
            "recipe": {"overrides": ({"objective.mask.ratio": 0.25} if variant else {}) | more}
        }
        facts = record().facts | {"backbone": backbone}
        return record(
            "tespec",
            miou=miou,
            variant=variant,
            weights=weights,
            facts=facts,
            start_sha256=str(miou),
        )

    def cells(*records):
        shown = one(records, "ablation_masking").cells.items()
        columns = {
            name: [text for text in texts if text != NONE]
            for name, texts in shown
            if name[1] == "mIoU ↑"
        }
        return {
            name.removeprefix(MEASURED): texts
            for (_, _, name), texts in columns.items()
            if name != "published"
        }

    plain, default, narrow, narrow_default = (
        made(50.0),
        made(40.0, ""),
        made(30.0, backbone="a"),
        made(20.0, "", "a"),
    )
    steps = ", pretraining.steps=9"
    assert cells(plain, default, made(60.0, steps=9)) == {
        "": ["50.00 (1)", "40.00 (1)"],
        steps: ["60.00 (1)"],
    }
    assert cells(plain, default, narrow, narrow_default) == {
        ", Swin-T/7": ["50.00 (1)", "40.00 (1)"],
        ", a": ["30.00 (1)", "20.00 (1)"],
    }
    # The default of another backbone is no row of the ablation.
    assert cells(plain, default, narrow_default) == {"": ["50.00 (1)", "40.00 (1)"]}


@pytest.mark.parametrize(
    ("changes", "where", "place", "text"),
    [
        ({"method_version": 2}, "method_version", "Data", "method_version 2"),
        ({"plugin": "f" * 12}, "plugin", "Data", "plugin ffffffffffff"),
        ({"weights": {"sha256": "ff"}}, "weights", "Data", "weights ff"),
        (
            {"weights": {"recipe": {"overrides": {"lr": 1}}}},
            "variant",
            "Method",
            "pretraining.lr=1",
        ),
        (
            {"weights": {"recipe": {"overrides": {"lr": 1}}}},
            "pretraining_overrides",
            "Method",
            ", pretraining.lr=1",
        ),
    ],
)
def test_gains_of_several_versions_have_rows_of_their_own(changes, where, place, text):
    made = [record(seed=seed, miou=40.0) for seed in range(2)]
    made += [record("moby", seed=seed, miou=50.0 + seed) for seed in range(2)]
    made += [
        record("moby", seed=seed, miou=20.0 + seed, start_sha256="b", **changes)
        for seed in range(2)
    ]
    cells = gains_table(to_frame(made), "scratch", {where: "*"}).cells
    gains = dict(zip(cells.index.get_level_values(place), cells["gain"], strict=True))
    assert sorted(gains.values()) == ["+10.500", "-19.500"]
    assert [gain for label, gain in gains.items() if label.endswith(text)] == ["-19.500"]


def test_gains_over_a_method_of_several_versions_are_over_the_newest():
    older = [record(seed=seed, miou=20.0 + seed) for seed in range(2)]
    older = [run.model_copy(update={"written": run.written.replace(year=2020)}) for run in older]
    newer = [record(seed=seed, miou=40.0 - seed, method_version=2) for seed in range(2)]
    cells = gains_table(to_frame([*older, *newer]), "scratch", {"method_version": "*"}).cells
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
    table = gains_table(to_frame(made), "scratch")
    data = table.data.set_index(["task", "method"])
    assert data.loc[("mvsec", "tespec"), ["mean", "n"]].tolist() == [2.0, 3]
    assert data.loc[("mvsec", "tespec"), "p_holm"] == pytest.approx(
        2 * data.loc[("mvsec", "tespec"), "p"]
    )
    assert data["note"].to_dict() == {
        ("ddd17", "mine"): "no scratch with Swin-T/7",
        ("ddd17", "tespec"): "no common seed",
        ("mvsec", "moby"): "another machine",
        ("mvsec", "tespec"): "",
    }
    assert table.cells["gain"].tolist() == [NONE, NONE, "+0.500", "+2.000"]


def test_runs_of_several_pretrainings_are_one_cell_and_its_gain_averages_over_them():
    def made(name, seed, start, miou):
        weights = {} if start is None else {"recipe": {"seed": start}}
        return record(name, seed=seed, miou=miou, weights=weights, start_sha256=str(start))

    tespec = [
        made("tespec", seed, start, 50 + 10 * seed + start) for seed in (0, 1) for start in (0, 1)
    ]
    moby = [
        made("moby", seed, start, 40 + 13 * seed + 3 * start) for seed in (0, 1) for start in (0, 1)
    ]
    scratch = [made("scratch", seed, None, 40 + seed) for seed in (0, 1)]
    table = one([*tespec, *scratch], measured=True)
    # A method without pre-training is complete with one run per seed.
    assert table.cells["DDD17", "mIoU ↑", MEASURED].tolist() == [
        "40.50 ± 0.71 (2)",
        "55.50 ± 5.80 (4)",
    ]
    assert "over runs (fine-tuning seeds × pre-training seeds)" in table.notes[0]

    def gain(*records, over="scratch"):
        table = gains_table(to_frame(records), over)
        return table.data.set_index("method").loc[
            "tespec", ["mean", "n", "note"]
        ].tolist(), table.notes

    several = "2 pre-trainings"
    assert gain(*tespec, *scratch)[0] == [15.0, 2, several]
    assert gain(*tespec, *moby, over="moby")[0] == [pytest.approx(7.5), 2, several]
    assert SEVERAL in gain(*tespec, *scratch)[1]
    assert SINGLE not in gain(*tespec, *scratch)[1]
    assert SINGLE in gain(*tespec[::2], *scratch)[1]
    # A missing run leaves no interval; one pre-training per seed is not a second level.
    missing = f"{several}, a score is missing or not finite"
    assert gain(*tespec[:3], *scratch)[0][1:] == [2, missing]
    shared_start = gain(tespec[0], tespec[3], *scratch)
    assert shared_start[0] == [15.0, 2, ""]
    assert SINGLE not in shared_start[1]
    lost = [*tespec[:3], made("tespec", 1, 1, None)]
    assert gain(*lost, *scratch)[0][1:] == [2, missing]

import pytest
from made_records import record

import tespec
from tespec.comparison.frame import CELL, COLUMNS, ORIGIN, ROW, SETTING, select, to_frame
from tespec.comparison.records import RESULTS_VERSION
from tespec.core.paths import REPOSITORY


def test_grouping_the_committed_records_by_cell_never_mixes():
    frame = tespec.results(REPOSITORY / "results" / "sample")
    assert list(frame.columns) == COLUMNS
    assert frame.attrs["left_out"] == []
    runs = frame[frame["kind"] == "evaluation"]
    # Each seed occurs once per pre-training.
    assert not runs.duplicated([*CELL, "seed", "pretraining_seed"]).any()
    assert runs.groupby(CELL)["seed"].nunique().min() > 1


@pytest.mark.parametrize(
    "column", [name for name in CELL if name not in ("kind", "metric", "frames", "backbone")]
)
def test_each_column_of_a_cell_tells_records_apart(column):
    recipe = {"dataset": "1mpx", "seed": 0, "overrides": {}}
    changes = {
        "label_fraction": {
            "config": {"label_fraction": 0.05},
            "overrides": {"label_fraction": 0.05},
        },
        "frozen": {"config": {"freeze": True}, "overrides": {"freeze": True}},
        "overrides": {"overrides": {"optimisation.steps": 10}},
        "pretraining_overrides": {
            "weights": {"recipe": recipe | {"overrides": {"objective.mask.ratio": 0.25}}}
        },
        "weights": {"weights": {"recipe": recipe | {"dataset": "gen1"}}},
        "method": {"facts": record().facts},
        "results_version": {},
    }
    other = {"arch": "feedforward", "split": "val", "method_version": 2, "task_version": 2}
    change = changes.get(column, {column: other.get(column, "other")})
    first = record(weights={"recipe": recipe})
    second = record(
        "other" if column == "method" else "scratch", **({"weights": {"recipe": recipe}} | change)
    )
    if column == "results_version":
        second = first.model_copy(update={"results_version": RESULTS_VERSION + 1})
    frame = to_frame([first, second])
    assert {name for name in CELL if frame[name].nunique() > 1} - {"metric"} == {column}
    assert frame.groupby(CELL).size().eq(1).all()


def test_tables_use_every_column_of_a_cell():
    """Without one of them, a table cell would average over more than seeds."""
    assert set(CELL) <= {*ROW, *SETTING, *ORIGIN, "task", "metric"}


@pytest.mark.parametrize("recipe", [{}, {"recipe": {"seed": 0, "dataset": "1mpx"}}])
def test_of_several_results_of_a_seed_the_newest_counts(recipe):
    """Weights that were made again have another hash, and so do the runs that start from them."""
    made = [
        record(seed=seed, miou=50.0 + seed, weights=recipe, start_sha256="new") for seed in range(3)
    ]
    older = [record(seed=seed, miou=20.0, weights=recipe, start_sha256="old") for seed in range(2)]
    older = [each.model_copy(update={"written": each.written.replace(year=2020)}) for each in older]
    chosen, notes = select(to_frame([*older, *made]), {})
    assert chosen.loc[chosen["main"], ["seed", "value"]].to_numpy().tolist() == [
        [0, 50.0],
        [1, 51.0],
        [2, 52.0],
    ]
    assert notes == ["Not shown: 2 results of an older name (--where name=*)."]
    assert set(select(to_frame([*older, *made]), {"name": older[0].name})[0]["value"]) == {
        20.0,
        30.0,
    }


def test_converted_weights_are_told_apart_by_their_hash():
    """Their recipe says only what the network is, and names the file."""
    recipe = {"source": {"format": "tespec-release"}, "backbone": "swin_tiny", "recurrent": True}
    made = [record(weights={"sha256": name * 64, "recipe": recipe}) for name in "ab"]
    assert to_frame(made)["weights"].unique().tolist() == ["a" * 12, "b" * 12]


def test_the_data_of_a_pretraining_are_those_of_its_recipe():
    recipes = {
        "DDD17": {"dataset": "ddd17", "data": "sample"},
        "objects": {"dataset": "objects", "data": "objects"},
        "-": {},
        "drive": {"dataset": "1mpx", "data": "drive"},  # --data drive.raw
    }
    frame = to_frame([record(weights={"recipe": recipe}) for recipe in recipes.values()])
    assert frame["pretraining_data"].unique().tolist() == [*recipes]
    assert frame["pretraining_overrides"].unique().tolist() == ["", "pretraining.data=drive"]


def test_numbers_that_are_not_finite_are_nan_and_the_main_metric_is_marked():
    frame = to_frame([record(miou=None, groups={"moving": {"miou": 30.0}})])
    assert frame["value"].tolist() == pytest.approx([float("nan"), float("nan"), 30.0], nan_ok=True)
    assert frame["main"].tolist() == [True, False, False]
    assert frame["frames"].tolist() == ["all", "all", "moving"]
    assert frame["metric_title"].tolist() == ["mIoU ↑", "mAcc ↑", "mIoU ↑"]
    assert (frame["classes"] == 2).all()
    assert to_frame([]).columns.tolist() == COLUMNS

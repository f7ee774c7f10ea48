import json
from contextlib import suppress
from dataclasses import fields

import pytest
from made_records import pretraining, record
from pydantic import TypeAdapter

import tespec
from tespec.comparison.cell import REQUIRED_SHA256, Cell, run_name
from tespec.comparison.export import to_html
from tespec.comparison.frame import COLUMN, COLUMNS, ROW, notes_on, select, to_frame
from tespec.comparison.records import Record
from tespec.comparison.tables import make_tables
from tespec.core.paths import REPOSITORY


def test_grouping_the_committed_records_by_cell_never_mixes():
    frame = tespec.results(REPOSITORY / "results" / "sample")
    assert list(frame.columns) == COLUMNS
    assert frame.attrs["left_out"] == []
    runs = frame[frame["kind"] == "evaluation"]
    # Each seed occurs once per pre-training.
    assert not runs.duplicated(["cell", "metric", "frames", "seed", "pretraining_seed"]).any()
    assert runs[runs["overrides"] == ""].groupby("cell")["seed"].nunique().min() > 1


OTHER = {
    "kind": "reference",
    "method": "moby",
    "task": "dsec",
    "data": "ddd17",
    "profile": "smoke",
    "arch": "feedforward",
    "backbone": "swin_micro",
    "overrides": {"bins": 5},
    "start": pretraining("scratch"),
    "split": "val",
    "label_fraction": 0.1,
    "frozen": True,
    "method_version": 2,
    "task_version": 2,
    "plugin": "f" * 12,
    "results_version": 9,
    "data_fingerprint": "f" * 12,
}


@pytest.mark.parametrize("name", [*(field.name for field in fields(Cell)), "data_fingerprint"])
def test_each_fact_of_a_cell_is_a_column_and_tells_table_cells_apart(name):
    """Without one of them, a table cell would average over more than seeds."""
    frame = to_frame([record(), record(**{name: OTHER[name]})])
    assert name in {"task", *ROW, *COLUMN}
    assert frame["cell"].nunique() == frame[name].nunique() == 2


STARTS = {
    "": "scratch",
    "own weights": "own weights",
    "tespec: 1Mpx (sample world, study)": pretraining(profile="study"),
    "tespec: 1Mpx (sample world, study), objective.mask.ratio=0.25": pretraining(
        profile="study", overrides={"objective.mask.ratio": 0.25}
    ),
    "tespec: 1Mpx (study), arch=feedforward, backbone=swin_micro, method_version=2": pretraining(
        arch="feedforward", data="1mpx", profile="study", backbone="swin_micro", method_version=2
    ),
    "tespec: drive (sample), task=1mpx": pretraining(data="drive"),
    "mem: 1Mpx (sample world, sample), from mem-tokenizer: 1Mpx (sample world, sample)": (
        pretraining("mem", start=pretraining("mem-tokenizer"))
    ),
}


@pytest.mark.parametrize("text", STARTS)
def test_the_start_is_described_by_all_facts_that_the_cell_does_not_share(text):
    start = "" if text == "" else STARTS[text]
    frame = to_frame([record("tespec", start=start)])
    assert set(frame["start"]) == {text}


def test_cells_of_different_starts_differ_in_text_and_hash():
    frame = to_frame(
        record("tespec", start=start if text else "") for text, start in STARTS.items()
    )
    assert frame["cell"].nunique() == frame["start"].nunique() == len(STARTS)


def test_a_teacher_from_a_file_is_no_changed_setting_and_tells_rows_apart():
    """Real data need such a file, so default tables show these results."""
    starts = [
        pretraining("ecdp", start="own weights", overrides={REQUIRED_SHA256: name})
        for name in ("a" * 64, "b" * 64)
    ]
    frame = to_frame([record("ecdp", start=starts[0])])
    assert set(frame["pretraining_overrides"]) == {""}
    runs, _ = select(to_frame([record("ecdp", start=start) for start in starts]), {})
    assert runs["label"].nunique() == 2


def test_of_several_results_of_a_seed_the_newest_counts():
    """Weights that were made again have another hash, and so do the runs that start from them."""
    made = [record(seed=seed, miou=50.0 + seed, start_sha256="new") for seed in range(3)]
    older = [record(seed=seed, miou=20.0, start_sha256="old") for seed in range(2)]
    older = [run.model_copy(update={"written": run.written.replace(year=2020)}) for run in older]
    frame = to_frame([*older, *made])
    chosen, left_out = select(frame, {})
    assert chosen.loc[chosen["main"], ["seed", "value"]].to_numpy().tolist() == [
        [0, 50.0],
        [1, 51.0],
        [2, 52.0],
    ]
    assert notes_on(frame, left_out) == ["Not shown: 2 results that were computed again since."]
    assert set(select(frame, {"name": older[0].name})[0]["value"]) == {20.0, 30.0}


def test_the_gain_over_all_frames_is_the_main_number_of_a_history():
    gains = {"miou_gain, all": 2.0, "miou_gain, standing": 3.0}
    frame = to_frame([record(kind="history", metrics=gains)])
    assert frame.loc[frame["main"], "metric"].tolist() == ["miou_gain, all"]


def test_numbers_that_are_not_finite_are_nan_and_the_main_metric_is_marked():
    frame = to_frame([record(miou=None, groups={"moving": {"miou": 30.0}})])
    assert frame["value"].tolist() == pytest.approx([float("nan"), float("nan"), 30.0], nan_ok=True)
    assert frame["main"].tolist() == [True, False, False]
    assert frame["frames"].tolist() == ["all", "all", "moving"]
    assert frame["metric_title"].tolist() == ["mIoU ↑", "mAcc ↑", "mIoU ↑"]
    assert (frame["classes"] == 2).all()
    assert to_frame([]).columns.tolist() == COLUMNS


RATIO = pretraining(overrides={"objective.mask.ratio": 0.25})
ODD = [None, [], 10**30, -1, "NaN", {"a": {"b": 1}}, "\x1b[31m\u202e\n<b>&%$", ""]


def test_a_malformed_record_is_refused_by_name_or_shown():
    """No value of a field ends a command."""
    fields = json.loads(record("tespec", start=RATIO, pretraining=0).model_dump_json())
    places = [fields, fields["cell"], fields["cell"]["start"], fields["weights"], fields["cost"]]
    made = []
    for place in places:
        for key in [*place]:
            value = place.pop(key)
            for odd in (*ODD, KeyError):
                place |= {} if odd is KeyError else {key: odd}
                with suppress(ValueError):
                    made.append(validated(fields))
                place.pop(key, None)
            place[key] = value
    assert len(made) > 100
    runs = {run.name: run for run in [record(), record(seed=1), *made]}
    frame = to_frame(runs.values())
    assert set(frame["name"]) == {*runs}
    everything = dict.fromkeys(["overrides", "results_version", "split"], "*")
    for where in ({}, everything):
        tables = make_tables(frame, only=["segmentation", "ablation_masking"], where=where)
        assert all(map(to_html, tables))


def validated(fields):
    """Record of fields, with the name that they give."""
    try:
        cell = TypeAdapter(Cell).validate_python(fields["cell"])
        facts = [fields[name] for name in ("seed", "data_fingerprint", "start_sha256")]
        name = run_name(cell, *facts)
    except (ValueError, LookupError, TypeError):
        name = "?"
    return Record.model_validate_json(json.dumps(fields | {"name": name}))

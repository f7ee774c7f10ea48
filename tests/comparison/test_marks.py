"""Marks of measured rows and statuses of records stand in every format of the tables."""

import csv
import io

import pytest
from made_records import cell, record

import tespec
from tespec.comparison.cell import OWN_WEIGHTS
from tespec.comparison.export import print_table, write_tables
from tespec.comparison.frame import notes_on, select, to_frame
from tespec.comparison.gains import gains_table
from tespec.comparison.records import REPORTED, read_records, write_record
from tespec.comparison.tables import make_tables
from tespec.report import run_facts
from tespec.weights.load import WeightsReport
from tespec.weights.released import FORMATS

FORMAT_ENDS = [".csv", "_long.csv", ".tex", ".md", ".html"]


def own_weights(weights, **changes):
    """Record of a run from a file of weights with these facts."""
    return record(
        "gep", title="GEP", start=OWN_WEIGHTS, pretraining="f" * 64, weights=weights, **changes
    )


MARKED = {
    "labels seen": own_weights({"seen": {"labels": "depth"}}),
    "images seen": own_weights({"seen": {"images": "DINOv2"}}),
    "evaluation set seen": own_weights({"seen": {"evaluation set": "DSEC's test set"}}),
    "new stem": own_weights({"stem": "new"}),
    "stem repeated": own_weights({"stem": "repeated"}),
    "file not confirmed": own_weights({"doubt": "file not confirmed"}),
    "layout second-hand": own_weights({"doubt": "layout second-hand"}),
    "TTA": record(config={"test_time_augmentation": "flip"}),
    "rescored": record("gep", "feedforward", kind="predictions", backbone=""),
}
SENT = {"reported": [], "reproduced": [record()]}


def texts_of(records, reported, folder, capsys):
    """Texts of the segmentation table by format, also as the terminal prints it."""
    (table,) = make_tables(to_frame(records, reported), only=["segmentation"], measured=True)
    write_tables([table], folder)
    print_table(table, all_columns=True)
    texts = {end: (folder / f"{table.name}{end}").read_text() for end in FORMAT_ENDS}
    return table, texts | {"terminal": capsys.readouterr().out}


@pytest.mark.parametrize("mark", [*MARKED, *SENT])
def test_each_mark_is_in_each_format(mark, tmp_path, capsys):
    reported = [record(environment={"cpu": "B", "threads": 2})] if mark in SENT else []
    records = [MARKED[mark]] if mark in MARKED else SENT[mark]
    table, texts = texts_of(records, reported, tmp_path, capsys)
    lines = csv.DictReader(io.StringIO(texts.pop("_long.csv")))
    line = next(line for line in lines if line["source"] == "measured")
    assert mark in f"{line['mark']} {line['status']} {'TTA' * (line['tta'] == 'True')}"
    for name, text in texts.items():
        assert mark in " ".join(text.split()), name
    # The notes repeat some of these words; they are in the row itself.
    assert mark in f"{table.cells.index[0][-1]} {table.cells.iloc[0, 0]}"


def test_unmarked_records_have_no_mark(tmp_path, capsys):
    table, _ = texts_of([record("tespec"), record("moby", seed=1)], [], tmp_path, capsys)
    assert [index[-1] for index in table.cells.index] == ["-", "-"]
    assert not [note for note in table.notes if "TTA" in note or "eported" in note]


def test_marks_that_differ_are_rows_of_their_own():
    made = [
        own_weights({"seen": {"images": "CLIP"}, "stem": stem}, start_sha256=stem)
        for stem in ("repeated", "new")
    ]
    (table,) = make_tables(to_frame(made), only=["segmentation"], measured=True)
    assert [index[-1] for index in table.cells.index] == [
        "own weights; images seen, new stem",
        "own weights; images seen, stem repeated",
    ]
    assert "GEP: its initial weights have seen images: CLIP." in table.notes


def test_a_reported_record_is_a_row_until_it_is_computed_here(tmp_path):
    sent = record("tespec", miou=50.0, environment={"cpu": "B", "threads": 2, "revision": "abc"})
    write_record(record(), tmp_path)
    write_record(sent, tmp_path / REPORTED)
    frame = tespec.results(tmp_path)
    main = frame[frame.main].set_index("method")
    assert main.status.to_dict() == {"scratch": "computed", "tespec": "reported"}
    # A plan computes what others have only reported.
    assert [made.cell.method for made in read_records(tmp_path)[0]] == ["scratch"]
    assert run_facts(main.loc["tespec"].to_dict())["what"].startswith(
        "Tespec, Swin-T/7, recurrent, reported;"
    )
    (table,) = make_tables(frame, only=["segmentation"], measured=True)
    scores = dict(zip(table.cells.index.get_level_values(1), table.cells.iloc[:, 0], strict=True))
    assert scores["Tespec"].startswith("50.00 (1, reported)")
    assert not table.bold.to_numpy().any()  # of one computed row
    assert "1 reported" in gains_table(frame, "scratch").data.note.item()

    write_record(record("tespec", miou=49.5), tmp_path)
    frame = tespec.results(tmp_path)
    reproduced = frame[frame.main & (frame.method == "tespec")]
    assert reproduced[["status", "value", "reported_value"]].to_numpy().tolist() == [
        ["reproduced", 49.5, 50.0]
    ]
    (table,) = make_tables(frame, only=["segmentation"], measured=True)
    (note,) = [note for note in table.notes if note.startswith("Reproduced")]
    assert note == (
        "Reproduced: Tespec on ddd17, seed 0: miou 49.50 here (A, 1 threads), 50.00 reported "
        "(B, 2 threads, torch ?, revision abc), difference -0.50."
    )


def test_a_reported_gain_is_never_bold():
    computed = [record(seed=seed, miou=40.0 + seed / 10) for seed in range(5)]
    others = [record("tespec", seed=seed, miou=50.0 + seed % 2) for seed in range(5)]
    bold = [
        gains_table(to_frame([*computed, *others]), "scratch").bold,
        gains_table(to_frame(computed, others), "scratch").bold,
    ]
    assert [table["gain"].item() for table in bold] == [True, False]


def test_a_reported_record_of_other_data_stays_a_row():
    frame = to_frame([record()], [record(data_fingerprint="f" * 12), record(seed=1)])
    assert sorted(frame[frame.main].status) == ["computed", "reported", "reported"]


def test_rescored_predictions_are_named_by_the_user_and_have_no_network():
    made = record("mine", "feedforward", kind="predictions", backbone="", title="My net")
    (table,) = make_tables(to_frame([made, record()]), only=["segmentation"], measured=True)
    assert ("Mine", "My net", "-", "no", "-") in [*table.cells.index]
    assert cell(kind="predictions", backbone="").network == "-"
    changed = {"test_time_augmentation": "flip"}  # their settings hold only what was changed
    augmented = record("mine", kind="predictions", backbone="", overrides=changed)
    assert to_frame([augmented])[["status", "tta"]].to_numpy()[0].tolist() == ["rescored", True]


def test_the_facts_of_published_weights_reach_the_record():
    for known in FORMATS:
        report = WeightsReport("file", "", 1, 1, format=known.name)
        made = record(weights=report.facts()).weights
        assert made.seen == dict(known.seen)
        assert (made.doubt != "") == ("read in the authors' code" != known.source != "")
    # A converted file is that of its source, one that was pre-trained here has seen nothing else.
    converted = {"source": {"file": "gep.pth", "format": "gep"}}
    facts = WeightsReport("file", "", 1, 1, format="tespec", recipe=converted).facts()
    assert record(weights=facts).weights.marks == [
        "images seen",
        "evaluation set seen",
        "file not confirmed",
    ]
    assert (
        record(weights=WeightsReport("file", "", 1, 1, format="tespec").facts()).weights.marks == []
    )


def submitted(title="My net", citation="", **changes):
    """Record of predictions that were scored."""
    facts = {"title": title, "citation": citation}
    return record("mine", **{"kind": "predictions", "backbone": "", "facts": facts, **changes})


TTA = {"test_time_augmentation": "flip"}


@pytest.mark.parametrize(
    ("changes", "label"),
    [
        ({"title": "Their net"}, "Their net"),
        ({"citation": "They2025"}, "My net (They2025)"),
        ({"citation": "They2025", "method_version": 9, "plugin": "f" * 12}, "My net (They2025)"),
        ({"overrides": TTA}, "My net, cell "),
    ],
)
def test_predictions_of_two_networks_are_two_rows(changes, label):
    """Their methods have one name, and the versions are not of one author."""
    made = [submitted(), submitted(miou=60.0, start_sha256="f", **changes)]
    (table,) = make_tables(to_frame(made), only=["segmentation"], measured=True)
    rows = {index[1]: text for index, text in table.cells.iloc[:, 0].items()}
    assert sorted(text[:5] for text in rows.values()) == ["40.00", "60.00"]
    (found,) = [name for name, text in rows.items() if text.startswith("60.00")]
    assert found.startswith(label)
    assert ("TTA" in rows[found]) == ("overrides" in changes)


def test_a_new_stem_is_a_row_of_the_tables_without_a_filter():
    changed = {"overrides": {"new_stem": True}}
    made = [own_weights({}), own_weights({"stem": "new"}, start_sha256="f", **changed)]
    (table,) = make_tables(to_frame(made), only=["segmentation"], measured=True)
    assert [index[-1] for index in table.cells.index] == ["own weights", "own weights; new stem"]
    assert not [note for note in table.notes if note.startswith("Not shown")]
    # A record that lacks the mark is still told apart.
    (table,) = make_tables(to_frame([own_weights({}, **changed), *made]), only=["segmentation"])
    assert [note for note in table.notes if "with overrides new_stem=True" in note]


@pytest.mark.parametrize("name", ["method_version", "task_version", "results_version", "plugin"])
def test_a_reported_record_hides_nothing_that_was_computed_here(name):
    value = "f" * 12 if name == "plugin" else 99
    sent = record(miou=90.0, **{name: value})
    sent = sent.model_copy(update={"written": sent.written.replace(year=2200)})
    chosen, left_out = select(to_frame([record()], [sent]), {})
    assert set(chosen["status"]) == {"computed"}
    assert set(left_out["reason"]) == {name}
    assert set(select(to_frame([], [sent]), {})[0]["status"]) == {"reported"}


def test_all_reported_records_of_a_key_are_counted():
    sent = [record(miou=miou, start_sha256=str(miou)) for miou in (30.0, 50.0)]
    frame = to_frame([], sent)
    assert sorted(frame[frame.main].value) == [30.0, 50.0]
    assert notes_on(frame, select(frame, {})[1]) == [
        "Not shown: 1 results that were computed again since."
    ]
    frame = to_frame([record(miou=49.0, start_sha256="50.0")], sent)
    main = frame[frame.main].set_index("status")
    assert main.value.to_dict() == {"reproduced": 49.0, "reported": 30.0}
    assert main.reported_value["reproduced"] == 50.0
    assert set(select(frame, {})[0]["status"]) == {"reproduced"}


def test_predictions_are_never_reproduced_and_repeat_only_their_own_record():
    sent = [submitted(start_sha256=name) for name in "ab"]
    frame = to_frame([submitted(start_sha256="a")], sent)
    main = frame[frame.main].set_index("name")
    assert main.status.to_dict() == {sent[0].name: "rescored", sent[1].name: "reported"}

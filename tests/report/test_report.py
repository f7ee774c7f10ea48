"""The report: one self-contained page with the numbers of the records."""

import base64
import io
import re

import pytest
from made_records import pretraining, record
from PIL import Image

from tespec.cli.main import main
from tespec.comparison.frame import to_frame
from tespec.comparison.records import read_records, write_record
from tespec.core.paths import REPOSITORY
from tespec.report import score_figures, write_report

HOSTILE = "<b>a&b</b><script>x</script>$"


@pytest.fixture
def results(tmp_path):
    """Results of two methods and the label prior, with pictures and a title that contains HTML."""
    folder = tmp_path / "results"
    (folder / "pictures").mkdir(parents=True)
    for run in (
        *(record(seed=seed, miou=40.0 + seed) for seed in range(3)),
        record(method="mine", miou=52.5, title=HOSTILE),
        record(kind="pretraining", method="mine", task="sample", title=HOSTILE),
        record("prior", "feedforward", kind="reference", backbone="", miou=30.5),
    ):
        write_record(run, folder)
        if run.cell.kind != "reference":
            Image.new("RGB", (1500, 300), (200, 30, 60)).save(
                folder / "pictures" / f"{run.name}.png"
            )
    return folder


def written(results, code=0):
    assert main(["report", "--results", str(results)]) == code
    return (results / "report.html").read_text(encoding="utf-8")


def svg_of(source):
    return base64.b64decode(source.partition(",")[2]).decode()


def test_the_page_lists_runs_and_pretrainings_and_loads_nothing(results, capsys):
    text = written(results)
    runs, pretrainings, tables = (
        text.split(f'<section id="{name}">')[1].split("</section>")[0]
        for name in ("runs", "pretrainings", "tables")
    )
    names = {name: record for record in read_records(results)[0] if (name := record.name)}
    for name, run in names.items():
        shown, hidden = (runs, pretrainings)[:: -1 if run.cell.kind == "pretraining" else 1]
        assert f"<td>{name}</td>" in shown
        assert f"<td>{name}</td>" not in hidden
    assert "Scratch, Swin-T/7, recurrent; ddd17: sample, sample, full" in runs
    assert "<td>miou 41 %</td>" in runs
    assert "A, 1 threads" in runs
    assert "0.00347" in pretrainings  # hours
    assert re.search(r"41\.00.* ± 1\.00.*52\.50", tables, re.DOTALL)
    assert "sample world" in text
    assert [len(re.findall(f"image/{kind}", text)) for kind in ("svg", "webp")] == [1, 1]
    links = set(re.findall('href="#([^"]*)"', text))
    assert set() < links <= set(re.findall('id="([^"]*)"', text))
    assert "6 records" in capsys.readouterr().out
    assert all(source.startswith("data:") for source in re.findall('<img src="([^"]*)"', text))
    assert not re.search(r"<(script|link|iframe)|https?://", text)
    assert "&lt;b&gt;a&amp;b&lt;/b&gt;" in text  # HTML in a title is escaped
    assert not any(
        "<script>" in svg_of(source) for source in re.findall(r'src="(data:image/svg[^"]*)"', text)
    )


def test_the_sample_worlds_results_fit_a_megabyte_and_notes_are_given_once(tmp_path):
    sample, out = REPOSITORY / "results" / "sample", tmp_path / "new" / "page.html"
    assert main(["report", "--results", str(sample), "--out", str(out)]) == 0
    text = out.read_text(encoding="utf-8")
    assert len(text) < 1_000_000
    notes = re.findall("Not shown: .*?[)]", text)  # of longer trainings, and of ablations
    assert (len(notes), len({*notes})) == (2, 2)
    captions = re.findall("<caption>(.*?)</caption>", text)
    assert captions
    assert all(text.count(caption) == 1 for caption in captions)
    assert "95 % t interval" not in text
    assert all(f"<td>{record.name}</td>" in text for record in read_records(sample)[0])


def test_there_are_few_pictures_which_are_small_and_a_broken_one_is_named(results, monkeypatch):
    monkeypatch.setattr("tespec.report.MOST", 1)
    (source,) = re.findall('data:image/webp;base64,([^"]*)', written(results))
    with Image.open(io.BytesIO(base64.b64decode(source))) as picture:
        assert picture.size == (1000, 200)
    for path in (results / "pictures").iterdir():
        path.write_bytes(b"no picture")
    assert "cannot be read (UnidentifiedImageError)" in written(results)


def test_a_figure_shows_each_run_and_the_mean_of_each_method():
    made = [record(seed=seed, miou=miou) for seed, miou in enumerate([40.0, 41.0, 45.0])]
    made += [record("mine", miou=50.0), record("mine", seed=1, miou=None)]
    made += [
        record(kind="reference", method="prior", miou=30.0, backbone=""),
        record(seed=8, miou=98.0, start=pretraining(overrides={"lr": 1})),
    ]
    (figure,) = score_figures(to_frame(made))
    svg = svg_of(figure.source)
    assert figure.title == "ddd17: measured (sample, sample, full)"
    assert "2 to 3 of each method" in figure.note
    assert svg.count("<use ") - svg.count('id="xtick') - svg.count('id="ytick') >= 4 + 1
    # A seed that diverged leaves no mean.
    assert ">not finite</text>" in svg
    for label in ("Mine, Swin-T/7", "Scratch, Swin-T/7", "mIoU (%), higher is better"):
        assert f">{label}</text>" in svg
    assert ">label prior</text>" in svg
    assert "lr=1" not in svg
    assert score_figures(to_frame(made)) == [figure]


def test_the_tables_show_evaluations_side_by_side(results):
    write_record(record(frozen=True, miou=33.25), results)
    text = written(results)
    assert all(re.search(rf"{miou}.* \(\d\)", text) for miou in (r"41\.00", r"33\.25"))
    assert "by evaluation" in text
    assert "Not shown" not in text


def test_figures_are_of_one_column_of_the_tables():
    made = [record(), record(arch="feedforward"), record("mine", frozen=True, title=HOSTILE)]
    _, frozen, full = score_figures(to_frame([*made, record(profile="paper")]))
    assert frozen.title == "ddd17: measured (sample, sample, frozen)"
    assert all(label in svg_of(full.source) for label in ("recurrent", "feed-forward"))
    assert "&lt;b&gt;a&amp;b" in svg_of(frozen.source)


def test_a_folder_without_records_is_refused_and_a_broken_file_named(results, tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    for folder in (tmp_path / "empty", tmp_path / "nowhere"):
        assert main(["report", "--results", str(folder)]) == 2
        assert len(capsys.readouterr().err.splitlines()) == 1
        assert not (folder / "report.html").exists()
    (results / "runs" / "torn.json").write_text("{")
    assert "torn.json" in written(results, code=1)
    assert "torn.json" in capsys.readouterr().err


def test_a_folder_with_pretrainings_alone_has_a_report(tmp_path):
    made = record("tespec", kind="pretraining", task="1mpx", metrics={"loss": 0.9}, scores={})
    write_record(made, tmp_path)
    write_report(tmp_path, tmp_path / "report.html")
    assert made.name in (tmp_path / "report.html").read_text()

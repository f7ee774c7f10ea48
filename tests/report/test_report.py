"""The report: one self-contained page with the numbers of the records."""

import base64
import io
import re

import numpy as np
import pytest
from made_records import record
from PIL import Image
from scipy import stats

import tespec
from tespec.cli.main import main
from tespec.comparison.frame import to_frame
from tespec.comparison.records import write_record
from tespec.core.paths import REPOSITORY
from tespec.report import score_figures, score_points

HOSTILE = "<b>a&b</b><script>x</script>$"


@pytest.fixture
def results(tmp_path):
    """Folder of results of two methods and the label prior, with pictures and a title that contains HTML."""
    folder = tmp_path / "results"
    (folder / "pictures").mkdir(parents=True)
    for each in (
        *(record(seed=seed, miou=40.0 + seed) for seed in range(3)),
        record(method="mine", miou=52.5, title=HOSTILE),
        record(kind="pretraining", method="mine", task="sample", title=HOSTILE),
        record(
            kind="reference", method="prior", arch="feedforward", miou=30.5, title="Label prior"
        ),
    ):
        write_record(each, folder)
        if each.kind != "reference":
            Image.new("RGB", (1500, 300), (200, 30, 60)).save(
                folder / "pictures" / f"{each.name}.png"
            )
    return folder


def written(results, code=0):
    assert main(["report", "--results", str(results)]) == code
    return (results / "report.html").read_text(encoding="utf-8")


def svg_of(source):
    return base64.b64decode(source.partition(",")[2]).decode()


def test_the_page_holds_numbers_figures_and_pictures_and_loads_nothing(results, capsys):
    text = written(results)
    assert re.search(r"41\.00.* ± 1\.00.*52\.50", text, re.DOTALL)
    assert all(
        each in text for each in ("evaluation (4)", "torch 2.13.0", "A, 1 threads", "sample world")
    )
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


def test_the_sample_worlds_results_fit_a_megabyte(tmp_path):
    sample, out = REPOSITORY / "results" / "sample", tmp_path / "new" / "page.html"
    assert main(["report", "--results", str(sample), "--out", str(out)]) == 0
    text = out.read_text(encoding="utf-8")
    assert len(text) < 1_000_000
    points = score_points(tespec.results(sample))
    means = points.loc[points.kind == "evaluation", "mean"]
    assert len(means) == 18
    assert all(f"{mean:.2f}" in text or f"{mean:.3f}" in text for mean in means)


def test_there_are_few_pictures_which_are_small_and_a_broken_one_is_named(results, monkeypatch):
    monkeypatch.setattr("tespec.report.MOST", 1)
    (source,) = re.findall('data:image/webp;base64,([^"]*)', written(results))
    with Image.open(io.BytesIO(base64.b64decode(source))) as picture:
        assert picture.size == (1000, 200)
    for path in (results / "pictures").iterdir():
        path.write_bytes(b"no picture")
    assert "cannot be read (UnidentifiedImageError)" in written(results)


def test_scores_are_means_with_t_intervals():
    values = [40.0, 41.5, 45.0]
    made = [record(seed=seed, miou=value) for seed, value in enumerate(values)]
    made += [record(method="mine", miou=50.0), record(method="mine", seed=1, miou=None)]
    made += [
        record(seed=9, miou=99.0, config={"label_fraction": 0.1}),
        record(seed=8, miou=98.0, variant="masking: 25%"),
    ]
    points = score_points(to_frame(made)).set_index("label")
    scratch = points.loc["Scratch, Swin-T/7"]
    interval = stats.t.interval(0.95, 2, np.mean(values), stats.sem(values))
    np.testing.assert_allclose(
        [scratch["mean"], scratch.low, scratch.high], [np.mean(values), *interval]
    )
    assert points.n.to_dict() == {"Scratch, Swin-T/7": 3, "Mine, Swin-T/7": 2}
    # As in the tables, a seed that diverged leaves no mean.
    assert points.loc["Mine, Swin-T/7", ["mean", "low", "high"]].isna().all()
    assert ">not finite</text>" in svg_of(score_figures(to_frame(made))[0].source)
    # A missing run of a seed and a pre-training leaves no interval.
    runs = [(0, 0, 40.0), (0, 1, 44.0), (1, 0, 48.0)]
    crossed = [record(seed=seed, miou=miou, weights={"recipe": {"seed": start}}, start_sha256=str(start))
               for seed, start, miou in runs]  # fmt: skip
    (point,) = score_points(to_frame(crossed)).itertuples()
    assert (point.mean, point.n, np.isnan(point.low)) == (44.0, 2, True)


@pytest.mark.parametrize(
    ("changes", "labels"),
    [
        ({"config": {"freeze": True}, "overrides": {"freeze": True}}, []),
        ({"config": {"label_fraction": 0.1}, "overrides": {"label_fraction": 0.1}}, []),
        ({"method_version": 0}, []),
        ({"plugin": "other"}, []),
        ({"weights": {"sha256": "other"}}, []),
        ({"facts": record().facts | {"backbone": "swin_micro"}}, ["Scratch, swin_micro"]),
        ({"overrides": {"lr": 1}}, ["Scratch, Swin-T/7, lr=1"]),
        (
            {"weights": {"recipe": {"overrides": {"lr": 1}}}},
            ["Scratch, Swin-T/7, pretraining.lr=1"],
        ),
        (
            {"overrides": {"test_time_augmentation": "flip"}},
            ["Scratch, Swin-T/7, test_time_augmentation=flip"],
        ),
    ],
)
def test_points_never_average_different_experiments(changes, labels):
    """An older version is not shown, nor is a protocol that is not the default; other settings are in the label."""
    made = [record(seed=seed, miou=50.0 + seed) for seed in (0, 1)]
    other = [record(**({"seed": seed, "miou": 20.0} | changes)) for seed in (0, 1)]
    older = [each.model_copy(update={"written": each.written.replace(year=2020)}) for each in other]
    points = score_points(to_frame([*made, *older]))
    means = dict(zip(points.label, points["mean"], strict=True))
    assert means == {"Scratch, Swin-T/7": 50.5, **dict.fromkeys(labels, 20.0)}


def test_methods_of_one_title_have_points_of_their_own():
    points = score_points(
        to_frame([record("mine", title="A", miou=50.0), record("other", title="A", miou=20.0)])
    )
    assert points.label.tolist() == ["A (mine), Swin-T/7", "A (other), Swin-T/7"]


def test_figures_are_of_one_setting_and_name_their_axes():
    prior = record(kind="reference", method="prior", miou=30.0)
    frame = to_frame(
        [record(), record(arch="feedforward"), prior, record(profile="paper", title=HOSTILE)]
    )
    figures = score_figures(frame)
    titles = [
        f"ddd17: data sample, profile {profile}, test split" for profile in ("paper", "sample")
    ]
    assert [each.title for each in figures] == titles
    paper, sample = (svg_of(each.source) for each in figures)
    assert all(
        each in sample
        for each in ("mIoU (%), higher is better", "label prior", "recurrent", "feed-forward")
    )
    assert "label prior" not in paper
    assert "&lt;b&gt;a&amp;b" in paper
    assert score_figures(frame) == figures


def test_a_folder_without_records_is_refused_and_a_broken_file_named(results, tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    for folder in (tmp_path / "empty", tmp_path / "nowhere"):
        assert main(["report", "--results", str(folder)]) == 2
        assert len(capsys.readouterr().err.splitlines()) == 1
        assert not (folder / "report.html").exists()
    (results / "runs" / "torn.json").write_text("{")
    assert "torn.json" in written(results, code=1)
    assert "torn.json" in capsys.readouterr().err
